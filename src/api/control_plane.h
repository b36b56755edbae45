// ControlPlane: messages among the ranks of a communicator outside of the data path, to make other communicators of
// them. It is one interface for ranks as processes (ProcessControl, on a Bootstrap) and for ranks that init_all has
// made as threads (ThreadControl, on a ThreadMeeting).
//
// A wait ends at the deadline, soon after an error of the interrupt, or when a rank is gone. Errors name the ranks.
//
// Thread safety: one call at a time for each rank. All ranks make the collective calls in the same order.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/settings.h"
#include "rondo/status.h"
#include "rondo/types.h"
#include "topology/binding.h"
#include "transport/transport.h"

namespace rondo {

class Callbacks;
class CommunicatorImpl;
class ProgressThread;

/// Returns the transport to use instead of `real`, which it owns. Only tests that inject faults set it
/// (tests/support/fault_transport.h). No environment variable, setting or public header can. Called once for each rank
/// of each communicator, before its first connection.
using TransportDecorator =
    std::function<std::unique_ptr<Transport>(Rank rank, int nranks, std::unique_ptr<Transport> real)>;

/// The options of a new communicator. Its children inherit them.
struct ChildOptions {
  Settings settings;
  std::optional<AbortToken> abort;
  TransportDecorator decorate = nullptr;
  std::optional<int> device = {};       // this rank's device, if buffers are in device memory
  std::optional<Binding> binding = {};  // of the parent's threads; its children use it too
  std::shared_ptr<Callbacks> callbacks = nullptr;      // the parent's; nullptr: new ones
  std::shared_ptr<ProgressThread> progress = nullptr;  // the parent's; nullptr: the process's

  std::unique_ptr<Transport> decorated(Rank rank, int nranks, std::unique_ptr<Transport> real) const {
    return decorate ? decorate(rank, nranks, std::move(real)) : std::move(real);
  }
};

/// Adds the name of the call to an error of making a communicator. Ok stays ok.
inline Status in_call(std::string_view call, const Status& s) {
  const std::string begins = std::string(call) + ": ";
  if (s.ok() || s.message().starts_with(begins)) return s;
  return Status(s.code(), begins + std::string(s.message()));
}

class ControlPlane {
 public:
  virtual ~ControlPlane() = default;

  /// Collective. Sets (*all)[r] to the bytes that rank r passed.
  virtual Status gather(std::string_view mine, std::vector<std::string>* all) = 0;
  /// Collective over all ranks. Makes a communicator of `members`, which are in the order of their new ranks. Every
  /// rank passes its own group. Returns nullptr to a rank that passes no members.
  virtual Expected<std::unique_ptr<CommunicatorImpl>> make_child(const std::vector<Rank>& members,
                                                                 const ChildOptions& options) = 0;
  /// Makes a communicator of the live ranks that are not in `excluded`, in their order. All of them must call it. It
  /// also works after errors.
  virtual Expected<std::unique_ptr<CommunicatorImpl>> make_of_survivors(const std::vector<Rank>& excluded,
                                                                        const ChildOptions& options) = 0;
  /// Collective. Call it after make_child; `made` is this rank's result. Returns ok if all ranks succeeded. Otherwise
  /// all ranks get the error of one rank.
  virtual Status commit(const Status& made, const ChildOptions& options) = 0;
  /// Sets the failure because of which this rank will leave, for ranks that wait for it. Ok: there is no failure.
  void leave_because(const Status& cause) { cause_ = cause; }
  /// Sets a function that is called at least every 60 ms while gather, make_child and commit wait. Its error ends the
  /// wait. Call this before the first collective call.
  virtual void set_interrupt(std::function<Status()> interrupt) = 0;

 protected:
  Status cause_;
};

}  // namespace rondo

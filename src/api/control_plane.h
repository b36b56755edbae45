// ControlPlane: what the ranks of a communicator tell one another outside of the data path, for making other
// communicators of them. One interface over ranks as processes (ProcessControl, on a Bootstrap) and ranks as threads
// that were made together (ThreadControl, on a ThreadMeeting).
//
// Every wait ends at the deadline, soon after the interrupt says so, or when a rank that is waited for is gone; errors
// name the ranks.
//
// Thread safety: one call at a time per rank; all ranks make the collective calls in the same order.
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

class CommunicatorImpl;

/// Puts something of its own between a rank's engine and the transport that was made for it; it owns the real one. The
/// way in for tests that inject faults (tests/support/fault_transport.h): nothing in the environment, the settings or
/// the public headers reaches it. Called once for each rank of each communicator, before its first connection.
using TransportDecorator =
    std::function<std::unique_ptr<Transport>(Rank rank, int nranks, std::unique_ptr<Transport> real)>;

/// What a new communicator starts from, besides its ranks. Its children inherit it.
struct ChildOptions {
  Settings settings;
  std::optional<AbortToken> abort;
  TransportDecorator decorate = nullptr;
  std::optional<int> device = {};  // of communicators of device memory: this rank's
  std::optional<Binding> binding = {};  // of the parent's threads, and so of a child's

  std::unique_ptr<Transport> decorated(Rank rank, int nranks, std::unique_ptr<Transport> real) const {
    return decorate ? decorate(rank, nranks, std::move(real)) : std::move(real);
  }
};

/// An error of making a communicator with the name of the call that it ended; ok stays ok.
inline Status in_call(std::string_view call, const Status& s) {
  const std::string begins = std::string(call) + ": ";
  if (s.ok() || s.message().starts_with(begins)) return s;
  return Status(s.code(), begins + std::string(s.message()));
}

class ControlPlane {
 public:
  virtual ~ControlPlane() = default;

  /// Collective: (*all)[r] becomes the bytes that rank r passed.
  virtual Status gather(std::string_view mine, std::vector<std::string>* all) = 0;
  /// Collective over all ranks: a communicator of `members`, in the order of their new ranks; every rank passes its own
  /// group. Nothing for a rank that passes no members.
  virtual Expected<std::unique_ptr<CommunicatorImpl>> make_child(const std::vector<Rank>& members,
                                                                 const ChildOptions& options) = 0;
  /// Collective over the ranks that live and are not in `excluded`, whatever became of the communicator: a communicator
  /// of them, in the order of their ranks. (*members)[i] is the old rank of new rank i.
  virtual Expected<std::unique_ptr<CommunicatorImpl>> make_of_survivors(const std::vector<Rank>& excluded,
                                                                        const ChildOptions& options) = 0;
  /// Collective, after make_child: `made` is how it went here. Ok where it went well on all
  /// ranks, else the same rank's error on all of them.
  virtual Status commit(const Status& made, const ChildOptions& options) = 0;
  /// Why this rank is going to leave, for those who wait for it; ok: without a failure.
  virtual void leave_because(const Status& cause) = 0;
  /// Asked at least every 50 ms while gather and make_child wait; an error ends the wait. Set before the first call.
  virtual void set_interrupt(std::function<Status()> interrupt) = 0;
};

}  // namespace rondo

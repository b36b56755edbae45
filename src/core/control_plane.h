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

#include "core/settings.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

class CommunicatorImpl;

/// What a new communicator starts from, besides its ranks.
struct ChildOptions {
  Settings settings;
  std::optional<AbortToken> abort;
};

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
  /// Asked at least every 50 ms while gather and make_child wait; an error ends the wait. Set before the first call.
  virtual void set_interrupt(std::function<Status()> interrupt) = 0;
};

}  // namespace rondo

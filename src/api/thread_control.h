// ThreadControl: the control plane of ranks that init_all has made as threads of this process, and the making of their
// communicators. The ranks share one ThreadMeeting: a table, a mutex, a condition variable, and the memory of their
// transports.
//
// Thread safety: ThreadMeeting from any thread. ThreadControl: see ControlPlane.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "api/control_plane.h"
#include "bootstrap/socket.h"
#include "transport/inproc/inproc.h"

namespace rondo {

/// The state that the ranks of one communicator of threads share. Make it by create().
class ThreadMeeting {
 public:
  /// A rank's contribution to a gather.
  struct Offer {
    std::string bytes;
    std::shared_ptr<ThreadMeeting> meeting;  // of a new communicator
  };
  using Offers = std::shared_ptr<const std::vector<Offer>>;
  /// The limits of a wait: deadline, abort flag and interrupt.
  struct Wait {
    Deadline deadline;
    std::function<Status()> interrupt;
  };
  /// Makes a meeting and the ranks' memory.
  static Expected<std::shared_ptr<ThreadMeeting>> create(int nranks);
  explicit ThreadMeeting(int nranks)
      : offers_(static_cast<size_t>(nranks)),
        here_(offers_.size()),
        left_(offers_.size()),
        causes_(offers_.size()),
        attempts_(offers_.size()) {}

  /// Collective. Returns the offers of all ranks, by rank. After an error, all later calls return this error.
  Expected<Offers> gather(Rank rank, Offer mine, const Wait& wait);
  /// Removes a rank that will be destroyed. Ranks that wait for it get an error with `cause`, unless it is ok.
  void leave(Rank rank, const Status& cause);
  const std::shared_ptr<InprocWorld>& memory() const { return memory_; }

  struct Survivors {
    std::vector<Rank> members;           // old ranks, in order
    std::vector<std::string> settings;   // of the members, as passed to find_survivors
    std::shared_ptr<ThreadMeeting> meeting;  // new, for the members
  };
  /// Collective over the ranks that have not left and are not excluded.
  Expected<Survivors> find_survivors(Rank rank, const std::vector<Rank>& excluded, std::string settings,
                                     const Wait& wait);

 private:
  Status wait_for(std::unique_lock<std::mutex>& lock, Rank rank, const Wait& wait, std::string_view what,
                  const std::function<bool()>& done, const std::function<std::vector<Rank>()>& missing);
  Status close(Status why);
  struct Gathering {  // one shrink
    struct Caller {
      uint32_t attempt;
      std::string settings;
      bool waits;  // false: it has given up
    };
    std::map<Rank, Caller> callers;
    std::optional<Expected<Survivors>> outcome;  // nothing until decide()
  };
  void decide(Gathering& gathering);

  std::shared_ptr<InprocWorld> memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Offer> offers_;
  std::vector<bool> here_;
  std::vector<bool> left_;
  std::vector<std::string> causes_;  // by rank: the failure because of which it left
  uint64_t round_ = 0;
  Offers complete_;  // of the last round
  Status closed_;
  std::vector<uint32_t> attempts_;  // by rank: number of find_survivors calls
  std::map<std::vector<bool>, std::shared_ptr<Gathering>> gatherings_;  // by excluded ranks
};

/// Makes the communicators of all ranks, by rank.
Expected<std::vector<std::unique_ptr<CommunicatorImpl>>> make_thread_communicators(
    int nranks, const ChildOptions& options, const std::vector<int>& devices = {});

class ThreadControl final : public ControlPlane {
 public:
  ThreadControl(Rank rank, std::shared_ptr<ThreadMeeting> meeting, const ChildOptions& options)
      : rank_(rank), meeting_(std::move(meeting)), options_(options) {}
  ~ThreadControl() override { meeting_->leave(rank_, cause_); }

  Status gather(std::string_view mine, std::vector<std::string>* all) override;
  Expected<std::unique_ptr<CommunicatorImpl>> make_child(const std::vector<Rank>& members,
                                                         const ChildOptions& options) override;
  Expected<std::unique_ptr<CommunicatorImpl>> make_of_survivors(const std::vector<Rank>& excluded,
                                                                const ChildOptions& options) override;
  Status commit(const Status& made, const ChildOptions& options) override;
  void set_interrupt(std::function<Status()> interrupt) override { interrupt_ = std::move(interrupt); }

 private:
  ThreadMeeting::Wait wait(const ChildOptions& options, bool interruptible) const;

  const Rank rank_;
  const std::shared_ptr<ThreadMeeting> meeting_;
  const ChildOptions options_;
  std::function<Status()> interrupt_;
};

}  // namespace rondo

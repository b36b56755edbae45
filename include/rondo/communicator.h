// Communicator: one rank's end of a group of ranks, and the collectives on it. The C++ twin of rondo.h, same semantics.
//
// Thread safety: see rondo.h. A Communicator must outlive its Works.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rondo/rondo.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

using UniqueId = rondo_unique_id;

struct Config {
  double deadline_s = 0;       // 0: RONDO_TIMEOUT_S or 600
  double init_deadline_s = 0;  // 0: RONDO_INIT_TIMEOUT_S or 120
};

/// Optional parts of a call; the default is what a plain call does.
struct CallOptions {
  TypeRow* row = nullptr;           // nullptr: uniform_row(dtype)
  double deadline_s = 0;            // 0: the communicator's
  const char* algorithm = nullptr;  // nullptr: the planner's choice
  const void* premul = nullptr;     // Op::kPremulSum: one element of the accumulator type
  uint32_t promises = 0;            // RONDO_PROMISE_*
  uint64_t tag = 0;
};

struct Operation;  // src/engine
class CommunicatorImpl;  // src/core

/// An asynchronous operation. Movable; destroying it does not wait.
class RONDO_API Work {
 public:
  Work() = default;
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();
  /// Blocks until the operation is done; drives it meanwhile.
  Status wait();
  /// kInProgress, or how it ended.
  Status test();

 private:
  friend class CommunicatorImpl;
  friend class Communicator;
  std::shared_ptr<struct WorkState> state_;
};

class RONDO_API Communicator {
 public:
  static Expected<UniqueId> make_unique_id();
  static Expected<std::unique_ptr<Communicator>> init_rank(int nranks, const UniqueId& id, Rank rank,
                                                           const Config& config = {});
  static Expected<std::vector<std::unique_ptr<Communicator>>> init_all(int nranks, const Config& config = {});
  static Expected<std::unique_ptr<Communicator>> init_env(const Config& config = {});
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const;
  int size() const;

  /// in, out: count_elems. Blocks when work is nullptr. Errors: kInvalidArgument, kMismatch, kTimeout, kPeerLost,
  /// kAborted, kUnsupported. Steps and bytes: those of the plan's algorithm (explain_plan).
  Status all_reduce(const void* in, void* out, uint64_t count_elems, Dtype dtype, Op op,
                    const CallOptions* options = nullptr, Work* work = nullptr);
  /// in: size() * count_elems, out: count_elems.
  Status reduce_scatter(const void* in, void* out, uint64_t count_elems, Dtype dtype, Op op,
                        const CallOptions* options = nullptr, Work* work = nullptr);
  /// in: count_elems, out: size() * count_elems.
  Status all_gather(const void* in, void* out, uint64_t count_elems, Dtype dtype,
                    const CallOptions* options = nullptr, Work* work = nullptr);

  /// Memory that all ranks can reach. Collective, equal bytes on all ranks; page-aligned, zeroed.
  Expected<void*> alloc(uint64_t bytes);
  Status free(void* ptr);

  /// From any thread.
  void abort();
  /// Ok, or the error after which this communicator refuses work. Never blocks.
  Status error() const;
  /// Which plan a call of this shape gets, and why.
  std::string explain_plan(Collective collective, uint64_t count_elems, Dtype dtype, Op op);

  CommunicatorImpl& impl() { return *impl_; }

 private:
  explicit Communicator(std::unique_ptr<CommunicatorImpl> impl);
  friend class CommunicatorImpl;
  std::unique_ptr<CommunicatorImpl> impl_;
};

/// Operations that this thread issues between the two run as one batch (see rondo_group_start).
RONDO_API void group_start();
RONDO_API Status group_end();

}  // namespace rondo

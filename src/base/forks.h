// How a communicator notices that fork() has copied it into another process, where its threads, its shared memory and
// its place in the job are missing.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "rondo/status.h"

namespace rondo {

/// The forks since the library was loaded, of this process and of those that it descends from: a child has one more
/// than its parent.
extern std::atomic<uint32_t> number_of_forks;

/// Of an object: whether the process that made it is this one. Costs one load. A child made by a bare clone() or
/// _Fork() goes unnoticed, since these run no handlers.
class MadeHere {
 public:
  explicit operator bool() const { return forks_ == number_of_forks.load(std::memory_order_relaxed); }

 private:
  const uint32_t forks_ = number_of_forks.load(std::memory_order_relaxed);
};

/// What every call on a communicator returns in a child of the process that made it.
/// `who`: "rank 1".
Status forked_error(std::string_view who);

}  // namespace rondo

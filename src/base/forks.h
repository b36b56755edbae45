// Detects that fork() has copied a communicator into another process, without its threads, shared memory and place in
// the job. Also keeps a child from inheriting a lock of OpenSSL that nobody will unlock.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <shared_mutex>
#include <string_view>

#include "rondo/status.h"

namespace rondo {

/// Number of forks since the library was loaded, in this process and its ancestors: a child has one more than its
/// parent.
extern std::atomic<uint32_t> number_of_forks;

/// True if this process created the object. Costs one load. Does not detect a child made by a bare clone() or _Fork(),
/// because these run no handlers.
class MadeHere {
 public:
  explicit operator bool() const { return forks_ == number_of_forks.load(std::memory_order_relaxed); }

 private:
  const uint32_t forks_ = number_of_forks.load(std::memory_order_relaxed);
};

/// Delays every fork() of this process while it is held. Otherwise a child inherits the locks that another thread holds
/// at the fork, and no thread that unlocks them. glibc takes care of its own locks, OpenSSL does not. Hold it for calls
/// of OpenSSL that take locks and do not block. One thread must not take it twice.
std::shared_lock<std::shared_mutex> delay_forks();

/// The error of every call on a communicator in a child of its process. `who`: "rank 1".
Status forked_error(std::string_view who);

}  // namespace rondo

// Detects that fork() has copied a communicator into another process, without its threads, shared memory and place in
// the job. Also keeps a child from inheriting a lock of OpenSSL that nobody will unlock.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string_view>

#include "rondo/status.h"

namespace rondo {

/// Number of forks between the process that loaded the library and this one. A child has one more than its parent had;
/// a fork does not change the parent's number.
extern std::atomic<uint32_t> number_of_forks;

/// True if this process created the object. Costs one load. Does not detect a child made by a bare clone() or _Fork(),
/// because these run no handlers.
class MadeHere {
 public:
  explicit operator bool() const { return forks_ == number_of_forks.load(std::memory_order_relaxed); }

 private:
  const uint32_t forks_ = number_of_forks.load(std::memory_order_relaxed);
};

/// The process's only object of this type. It is never destroyed, because users may outlive main(). A forked child
/// makes its own, because a thread of its parent may have held a mutex of it.
template <class T>
T& of_this_process() {
  struct Made {
    T object;
    MadeHere here;
    const Made* of_parent = nullptr;  // kept reachable, so that leak checkers do not report it in the child
  };
  static std::atomic<Made*> current = nullptr;
  Made* m = current.load(std::memory_order_acquire);
  if (m != nullptr && m->here) return m->object;
  auto made = std::make_unique<Made>();
  made->of_parent = m;
  return current.compare_exchange_strong(m, made.get(), std::memory_order_acq_rel) ? made.release()->object : m->object;
}

/// Delays every fork() of this process while it is held. Otherwise a child inherits the locks that another thread holds
/// at the fork, and no thread that unlocks them. glibc takes care of its own locks, OpenSSL does not. Hold it for calls
/// of OpenSSL that take locks and do not block. One thread must not take it twice.
std::shared_lock<std::shared_mutex> delay_forks();

/// The error of every call on a communicator in a child of its process. `who`: "rank 1".
Status forked_error(std::string_view who);

}  // namespace rondo

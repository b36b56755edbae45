// The time of a hand-over: how long a cache line takes from one core to another. The cores of a virtual machine may
// move, so it may change.
//
// Thread safety: any thread.
#pragma once

#include <sched.h>

#include <array>
#include <optional>

namespace rondo {

/// Restores the calling thread's CPUs.
class OwnCpus {
 public:
  OwnCpus() { known_ = ::sched_getaffinity(0, sizeof mask_, &mask_) == 0; }
  ~OwnCpus() {
    if (known_) ::sched_setaffinity(0, sizeof mask_, &mask_);
  }
  explicit operator bool() const { return known_; }
  OwnCpus(const OwnCpus&) = delete;
  OwnCpus& operator=(const OwnCpus&) = delete;

 private:
  cpu_set_t mask_{};
  bool known_;
};

/// Returns two CPUs of different cores that the calling thread may use. If there are none, sets the thread's CPUs to
/// all CPUs of its cgroup, and looks among these. Returns {-1, -1} if they are all of one core.
std::array<int, 2> two_cpus();

/// Returns the time of a hand-over between these cores in nanoseconds: the shortest of some means. Takes below a
/// millisecond; up to 10 if other work uses the cores. Returns nothing if it could not be measured.
std::optional<double> measure_handover_ns();

}  // namespace rondo

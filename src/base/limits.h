// The limits of a process (setrlimit, ulimit): which one an errno means, and how a write beyond one fails.
//
// Thread safety: any thread.
#pragma once

#include <signal.h>

#include <string>
#include <string_view>

#include "rondo/status.h"

namespace rondo {

/// What to do about an errno that comes of a limit: "raise the limit on file sizes (ulimit -f, now 1024 bytes)". Empty
/// for others. EAGAIN: of a thread that was to start.
std::string limit_of(int error);
/// "File too large (errno 27): raise the limit ..."
std::string errno_reason(int error);
/// kExhausted where a limit was reached, else kSystem.
StatusCode code_of(int error);

/// While it lives, what goes beyond the limit on file sizes fails with EFBIG; else SIGXFSZ would end the process. Holds
/// for the calling thread.
class NoSizeSignal {
 public:
  NoSizeSignal();
  ~NoSizeSignal();
  NoSizeSignal(const NoSizeSignal&) = delete;
  NoSizeSignal& operator=(const NoSizeSignal&) = delete;

 private:
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace rondo

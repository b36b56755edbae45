// Process limits (setrlimit, ulimit): the limit behind an errno, and safe failure of writes beyond the file size limit.
//
// Thread safety: any thread.
#pragma once

#include <signal.h>

#include <string>

#include "rondo/status.h"

namespace rondo {

/// The remedy for an errno caused by a limit: "raise the limit on file sizes (ulimit -f, now 1024 bytes)". Empty for
/// others. EAGAIN means that a thread could not be started.
std::string limit_of(int error);
/// "File too large (errno 27): raise the limit ..."
std::string errno_reason(int error);
/// kExhausted for a limit, else kSystem.
StatusCode code_of(int error);

/// While it lives, the calling thread's writes beyond the file size limit fail with EFBIG instead of ending the process
/// by SIGXFSZ.
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

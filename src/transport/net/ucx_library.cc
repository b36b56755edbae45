#include "transport/net/ucx_library.h"

#ifdef RONDO_HAVE_UCX

#include <dlfcn.h>
#include <fmt/format.h>
#include <signal.h>

#include <array>
#include <cstdlib>
#include <mutex>

namespace rondo::net {
namespace {

// Restores the signal handlers that UCX replaces unless UCX_ERROR_SIGNALS is set.
class SignalsKept {
 public:
  SignalsKept() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &before_[i]);
  }
  ~SignalsKept() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  SignalsKept(const SignalsKept&) = delete;
  SignalsKept& operator=(const SignalsKept&) = delete;

 private:
  static constexpr std::array kSignals = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
  std::array<struct sigaction, kSignals.size()> before_{};
};

template <class F>
bool find(void* in, const char* name, F* to) {
  *to = reinterpret_cast<F>(dlsym(in, name));
  return *to != nullptr;
}

Expected<Library> load() {
  const SignalsKept kept;
  setenv("UCX_TCP_CONN_NB", "y", 0);
  setenv("UCX_TCP_RX_SEG_SIZE", "128k", 0);
  void* ucp = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (ucp == nullptr)
    return Status(StatusCode::kUnsupported,
                  fmt::format("ranks on several hosts need UCX, and {}: install it (Debian: libucx0) or set "
                              "LD_LIBRARY_PATH",
                              dlerror()));
  Library l;
  const char* missing = nullptr;
#define RONDO_X(name) \
  if (!find(ucp, #name, &l.name)) missing = #name;
  RONDO_UCX_FUNCTIONS(RONDO_X)
#undef RONDO_X
  // It is in libucs, which libucp has loaded: dlsym searches it too.
  if (!find(ucp, "ucs_status_string", &l.ucs_status_string)) missing = "ucs_status_string";
  if (missing != nullptr)
    return Status(StatusCode::kUnsupported, fmt::format("libucp.so.0 has no {}: rondo needs UCX {}.{} or later",
                                                        missing, UCP_API_MAJOR, UCP_API_MINOR));
  return l;
}

}  // namespace

Expected<const Library*> library() {
  static std::mutex mutex;
  static Library loaded;
  static bool is_loaded = false;
  const std::lock_guard lock(mutex);
  if (!is_loaded) {
    RONDO_TRY_ASSIGN(loaded, load());
    is_loaded = true;
  }
  return &loaded;
}

}  // namespace rondo::net

#endif

#include "transport/ucx/ucx_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/function_table.h"

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

std::string open_ucx(UcxLibrary& l) {
  const SignalsKept kept;
  setenv("UCX_TCP_CONN_NB", "y", 0);
  setenv("UCX_TCP_RX_SEG_SIZE", "128k", 0);
  void* ucp = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (ucp == nullptr)
    return fmt::format("ranks on several hosts need UCX, and {}: install it (Debian: libucx0) or set LD_LIBRARY_PATH",
                       dlerror());
  const char* missing = nullptr;
#define RONDO_X(name) \
  if (!find(ucp, #name, &l.name)) missing = #name;
  RONDO_UCX_FUNCTIONS(RONDO_X)
#undef RONDO_X
  // It is in libucs, which libucp has loaded: dlsym searches it too.
  if (!find(ucp, "ucs_status_string", &l.ucs_status_string)) missing = "ucs_status_string";
  if (missing == nullptr) return {};
  return fmt::format("libucp.so.0 has no {}: rondo needs UCX {}.{} or later", missing, UCP_API_MAJOR, UCP_API_MINOR);
}

using Table = FunctionTable<UcxLibrary, open_ucx>;

std::mutex context_mutex;
std::map<std::string, std::weak_ptr<UcxContext>> contexts_in_use;  // by device; guarded by context_mutex

Status ucx_error(const UcxLibrary& lib, const char* what, ucs_status_t s) {
  return make_error(StatusCode::kSystem, "UCX: {}: {}", what, lib.ucs_status_string(s));
}

Expected<ucp_context_h> make(const UcxLibrary& lib, const std::string& device) {
  ucp_config_t* config = nullptr;
  if (const ucs_status_t s = lib.ucp_config_read(nullptr, nullptr, &config); s != UCS_OK)
    return ucx_error(lib, "reading its settings (UCX_*)", s);
  if (!device.empty())
    if (const ucs_status_t s = lib.ucp_config_modify(config, "NET_DEVICES", device.c_str()); s != UCS_OK) {
      lib.ucp_config_release(config);
      return ucx_error(lib, "choosing a device (RONDO_RAILS)", s);
    }
  ucp_params_t p{};
  p.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_REQUEST_SIZE;
  p.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  p.mt_workers_shared = 1;
  p.request_size = UcxContext::kRequestBytes;
  ucp_context_h handle = nullptr;
  const ucs_status_t s = lib.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &p, config, &handle);
  lib.ucp_config_release(config);
  if (s != UCS_OK) return ucx_error(lib, "looking for devices (UCX_TLS, UCX_NET_DEVICES)", s);
  return handle;
}

}  // namespace

Expected<std::shared_ptr<UcxContext>> UcxContext::acquire(const std::string& device) {
  const UcxLibrary* const lib = Table::get();
  if (lib == nullptr) return Status(StatusCode::kUnsupported, Table::why_not());
  if (!device.empty()) {  // UCX itself would continue without it
    RONDO_TRY_ASSIGN(const auto any, acquire());
    std::set<std::string> devices;
    for (const std::string& r : any->resources()) devices.insert(r.substr(r.find('/') + 1));
    if (!devices.contains(device))
      return invalid_argument(
          "RONDO_RAILS names {}, and UCX has no such device here: it has {} (UCX_NET_DEVICES "
          "and UCX_TLS choose among them)",
          device, fmt::join(devices, ", "));
  }
  const std::lock_guard lock(context_mutex);
  std::weak_ptr<UcxContext>& in_use = contexts_in_use[device];
  if (auto found = in_use.lock()) return found;
  RONDO_TRY_ASSIGN(const ucp_context_h handle, make(*lib, device));
  std::shared_ptr<UcxContext> made(new UcxContext(*lib, handle));
  in_use = made;
  return made;
}

UcxContext::UcxContext(const UcxLibrary& library, ucp_context_h handle) : library_(library), handle_(handle) {
  for (const std::string& r : resources()) {
    const std::string_view transport = std::string_view(r).substr(0, r.find('/'));
    has_rdma_ |= transport.starts_with("rc") || transport.starts_with("dc") || transport.starts_with("ud");
  }
}

UcxContext::~UcxContext() { library_.ucp_cleanup(handle_); }

// UCX 1.13 prints it only to a FILE: lines that end in "transport/device".
std::vector<std::string> UcxContext::resources() const {
  char* text = nullptr;
  size_t bytes = 0;
  FILE* file = open_memstream(&text, &bytes);
  if (file == nullptr) return {};
  library_.ucp_context_print_info(handle_, file);
  std::fclose(file);
  std::vector<std::string> found;
  for (std::string_view rest(text, bytes); !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const size_t space = line.rfind(' ');
    if (line.find("resource") == std::string_view::npos || space == std::string_view::npos) continue;
    const std::string_view word = line.substr(space + 1);
    if (word.find('/') != std::string_view::npos) found.emplace_back(word);
  }
  std::free(text);
  return found;
}

}  // namespace rondo::net

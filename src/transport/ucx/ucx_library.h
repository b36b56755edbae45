// libucp and its contexts. The library is opened when a communicator first needs it, like the CUDA driver: one build
// works with and without UCX, and programs on one host do not run its constructors. The build needs only UCX's headers.
//
// UCX replaces the handlers of SIGSEGV and similar signals when it is loaded; rondo restores the program's handlers.
//
// rondo sets two of UCX's variables for this process, unless the environment does. UCX_TCP_CONN_NB=y: by default UCX
// connects over TCP in blocking mode, for minutes if a host is gone, but no wait of rondo may last that long.
// UCX_TCP_RX_SEG_SIZE=128k: by default a message of 64 KiB does not fit UCX's receive segment and arrives in two parts.
// All other UCX variables apply as usual.
//
// Thread safety: all functions from any thread.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <vector>

#include "rondo/status.h"

namespace rondo::net {

// clang-format off
#define RONDO_UCX_FUNCTIONS(X) \
  X(ucp_get_version_string) \
  X(ucp_init_version) \
  X(ucp_cleanup) \
  X(ucp_context_print_info) \
  X(ucp_config_read) \
  X(ucp_config_modify) \
  X(ucp_config_release) \
  X(ucp_worker_create) \
  X(ucp_worker_destroy) \
  X(ucp_worker_get_address) \
  X(ucp_worker_release_address) \
  X(ucp_worker_progress) \
  X(ucp_worker_get_efd) \
  X(ucp_worker_arm) \
  X(ucp_worker_set_am_recv_handler) \
  X(ucp_ep_create) \
  X(ucp_ep_close_nbx) \
  X(ucp_am_send_nbx) \
  X(ucp_am_recv_data_nbx) \
  X(ucp_request_free) \
  X(ucp_worker_flush_nbx) \
  X(ucp_request_check_status)
// clang-format on

/// UCX's functions under their own names; ucp.h documents them.
struct UcxLibrary {
#define RONDO_X(name) decltype(&::name) name = nullptr;
  RONDO_UCX_FUNCTIONS(RONDO_X)
#undef RONDO_X
  decltype(&::ucs_status_string) ucs_status_string = nullptr;
};

/// A context over all devices of this machine that UCX finds, or over one network device. All communicators of the
/// process share a context while one of them holds it.
class UcxContext {
 public:
  static constexpr size_t kRequestBytes = 16;  // of each UCX request, for its user
  /// The process's context over a network device (UCX's name), or over UCX's choice; made if there is none. Errors:
  /// kUnsupported (no UCX), kSystem with UCX's text, kInvalidArgument (no such device).
  static Expected<std::shared_ptr<UcxContext>> acquire(const std::string& device = {});
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  const UcxLibrary& library() const { return library_; }
  ucp_context_h handle() const { return handle_; }
  /// The resources that UCX may use, such as "tcp/eth0", in its own order.
  std::vector<std::string> resources() const;
  /// True if a device can access a peer's memory by itself: UCX then chooses between copying and rendezvous. Over TCP a
  /// rendezvous costs a round trip and saves nothing.
  bool has_rdma() const { return has_rdma_; }

 private:
  UcxContext(const UcxLibrary& library, ucp_context_h handle);
  const UcxLibrary& library_;
  const ucp_context_h handle_;
  bool has_rdma_ = false;
};

}  // namespace rondo::net

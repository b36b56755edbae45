// The process's UCP contexts: one for all devices of this machine that UCX finds, or for one network device. All
// communicators share a context while one of them holds it. UCX_TLS, UCX_NET_DEVICES and all other UCX variables apply
// as usual.
//
// Thread safety: all functions from any thread.
#pragma once

#ifdef RONDO_HAVE_UCX

#include <memory>
#include <string>
#include <vector>

#include "transport/net/ucx_library.h"

namespace rondo::net {

class Context {
 public:
  /// The process's context over a network device (UCX's name), or over UCX's choice; made if there is none. Errors:
  /// kUnsupported (no UCX), kSystem with UCX's text, kInvalidArgument (no such device).
  static Expected<std::shared_ptr<Context>> acquire(const std::string& device = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Library& library() const { return library_; }
  ucp_context_h handle() const { return handle_; }
  /// The resources that UCX may use, such as "tcp/eth0", in its own order.
  std::vector<std::string> resources() const;
  /// True if a device can access a peer's memory by itself: UCX then chooses between copying and rendezvous. Over TCP a
  /// rendezvous costs a round trip and saves nothing.
  bool has_rdma() const { return has_rdma_; }

 private:
  Context(const Library& library, ucp_context_h handle);
  const Library& library_;
  const ucp_context_h handle_;
  bool has_rdma_ = false;
};

/// UCX's version and resources, or the reason why there is none; for display.
std::string describe();

}  // namespace rondo::net

#else

#include <string>

namespace rondo::net {
inline std::string describe() { return "not built in: TCP between hosts"; }
}  // namespace rondo::net

#endif

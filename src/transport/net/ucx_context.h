// The process's UCP contexts: what UCX found on this machine, or one network device of it; each is shared by all
// communicators while one holds it.
//
// UCX_TLS, UCX_NET_DEVICES and all other variables of UCX count as they do everywhere.
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
  /// The process's context over a network device as UCX names it, or over whatever UCX chooses; made if nobody
  /// holds it.
  /// Errors: kUnsupported (no UCX), kSystem with UCX's text, kInvalidArgument (no such device).
  static Expected<std::shared_ptr<Context>> acquire(const std::string& device = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Library& library() const { return library_; }
  ucp_context_h handle() const { return handle_; }
  /// What UCX may use, "tcp/eth0" one after the other, in its own order.
  std::vector<std::string> resources() const;
  /// True when some device can read and write a peer's memory by itself: then UCX's own choice between copying and
  /// rendezvous counts. Over TCP a rendezvous costs a round trip and spares nothing.
  bool has_rdma() const { return has_rdma_; }

 private:
  Context(const Library& library, ucp_context_h handle);
  const Library& library_;
  const ucp_context_h handle_;
  bool has_rdma_ = false;
};

/// UCX's version, then what it found: for people. Or why there is none.
std::string describe();

}  // namespace rondo::net

#else

#include <string>

namespace rondo::net {
inline std::string describe() { return "not built in: TCP between hosts"; }
}  // namespace rondo::net

#endif

// UCX as a network between hosts, also in builds without it.
#include <cstdlib>
#include <filesystem>

#include "transport/net/network.h"
#ifdef RONDO_HAVE_UCX
#include "transport/ucx/ucx_rail.h"
#endif

namespace rondo::net {
namespace {

#ifdef RONDO_HAVE_UCX
// True if there are RDMA devices (the folder may exist and be empty), or if the user has configured UCX.
bool has_devices_or_settings() {
  if (std::getenv("UCX_TLS") != nullptr || std::getenv("UCX_NET_DEVICES") != nullptr) return true;
  std::error_code ignored;
  return std::filesystem::directory_iterator("/sys/class/infiniband", ignored) != std::filesystem::directory_iterator();
}

std::string describe() {
  const auto context = UcxContext::acquire();
  if (!context.ok()) return std::string(context.status().message());
  std::string text = std::string((*context)->library().ucp_get_version_string()) + ":";
  for (const std::string& r : (*context)->resources()) text += " " + r;
  return text;
}
#endif

}  // namespace

const Network ucx_network = {
    .name = "ucx",
    .summary = "UCX",
    .lacks = "no UCX (install libucx-dev, build again)",
    .long_messages = false,  // UCX would assemble them from several of its own
#ifdef RONDO_HAVE_UCX
    .is_built = true,
    .is_preferred = has_devices_or_settings,
    .describe = describe,
    .make_rail = UcxRail::create,
#else
    .is_built = false,
    .is_preferred = [] { return false; },
    .describe = [] { return std::string("not built in"); },
    .make_rail = nullptr,
#endif
};

}  // namespace rondo::net

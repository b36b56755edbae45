#include "topology/machine.h"

#include <array>

namespace rondo {

std::string_view path_name(PciPath path) {
  constexpr std::array<std::string_view, 7> kNames = {"loc", "pix", "pxb", "phb", "node", "sys", "unknown"};
  return kNames[static_cast<size_t>(path)];
}
std::string_view path_text(PciPath path) {
  constexpr std::array<std::string_view, 7> kTexts = {"one board",
                                                      "one PCIe switch",
                                                      "several PCIe switches",
                                                      "the host bridge",
                                                      "the host bridges of a NUMA node",
                                                      "the link between sockets",
                                                      "an unknown PCIe path"};
  return kTexts[static_cast<size_t>(path)];
}

}  // namespace rondo

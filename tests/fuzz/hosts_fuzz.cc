// libFuzzer: users' descriptions of hosts, of any bytes: the structure of hwloc's XML, lists of CPUs.
#include <cstdlib>
#include <string>
#include <string_view>

#include "topology/host_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace rondo;
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  const Status shape = check_xml(text);
  if (!shape.ok() && !shape.message().starts_with("line ")) std::abort();
  if (shape.ok() && check_xml(std::string(text) + "<topology/>").ok()) std::abort();  // one outermost element
  const auto cpus = parse_cpu_list(text);
  if (!cpus.ok()) {
    if (cpus.status().message().empty()) std::abort();
    return 0;
  }
  const auto again = parse_cpu_list(cpu_list_text(*cpus));
  if (cpus->empty() || !again.ok() || *again != *cpus) std::abort();
  return 0;
}

#include "topology/host.h"

#include <fmt/format.h>

#include <algorithm>

namespace rondo {

void restrict_pus(HostTopology& host, std::span<const int> os_cpus) {
  for (Pu& pu : host.pus) pu.allowed = pu.allowed && std::find(os_cpus.begin(), os_cpus.end(), pu.os) != os_cpus.end();
}

std::string cpu_list_text(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (!text.empty()) text += ",";
    text += end - i == 1 ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[end - 1]);
    i = end;
  }
  return text.empty() ? "none" : text;
}

std::vector<int> os_numbers(const HostTopology& host, std::span<const int> pus) {
  std::vector<int> numbers;
  for (const int pu : pus) numbers.push_back(host.pus[pu].os);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace rondo

// libFuzzer: several flight records of any bytes, separated by a zero byte, through all of `rondo diagnose`.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "diagnose.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace rondo::tools;
  constexpr size_t kMostBytes = 64 * 1024, kMostRecords = 48;
  if (bytes > kMostBytes) return 0;
  std::vector<std::string> texts;
  for (std::string_view left(reinterpret_cast<const char*>(data), bytes); texts.size() < kMostRecords;) {
    const size_t end = left.find('\0');
    texts.emplace_back(left.substr(0, end));
    if (end == left.npos) break;
    left.remove_prefix(end + 1);
  }
  std::vector<std::string> problems;
  const std::vector<CommunicatorView> comms = merge_flight_records(texts, &problems);
  if (comms.empty() && problems.empty()) std::abort();
  for (const CommunicatorView& comm : comms) {
    if (comm.ranks.size() != static_cast<size_t>(comm.nranks)) std::abort();
    for (const RankView& r : comm.ranks)
      if (describe_rank(r).empty()) std::abort();
    for (const Finding& f : find_causes(comm)) {
      if (f.text.empty()) std::abort();
      for (const int rank : f.culprits)
        if (rank < 0 || rank >= comm.nranks) std::abort();
    }
  }
  (void)find_cycles_between(comms);
  return 0;
}

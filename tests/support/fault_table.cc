// The table at the end of a fault matrix.
#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include "support/fault_case.h"

namespace rondo::testing {
namespace {

struct Row {
  int num_cases = 0;
  std::vector<double> status_s, shrunk_s, summed_s;
};
std::map<std::pair<std::string, std::string>, Row>& rows() {
  static std::map<std::pair<std::string, std::string>, Row> all;
  return all;
}

std::string median_and_worst(std::vector<double> times_s) {
  if (times_s.empty()) return "-";
  std::sort(times_s.begin(), times_s.end());
  char text[64];
  std::snprintf(text, sizeof text, "%.1f / %.1f", times_s[times_s.size() / 2] * 1e3, times_s.back() * 1e3);
  return text;
}

}  // namespace

void note_for_table(World world, Fault fault, const std::string& outcome, const FaultTimes& times) {
  Row& row = rows()[{std::string(world_name(world)) + ", " + fault_name(fault), outcome}];
  ++row.num_cases;
  if (times.status_s >= 0) row.status_s.push_back(times.status_s);
  if (times.shrunk_s >= 0) row.shrunk_s.push_back(times.shrunk_s);
  if (times.summed_s >= 0) row.summed_s.push_back(times.summed_s);
}

void print_fault_table() {
  int total = 0;
  Row all;
  std::printf("%-24s %-36s %5s  %20s  %18s  %18s\n", "ranks, fault", "outcome", "cases", "fault to status", "to shrunk",
              "first all-reduce");
  std::printf("%-24s %-36s %5s  %20s  %18s  %18s\n", "", "", "", "median / worst, ms", "ms", "ms");
  for (const auto& [name, row] : rows()) {
    std::printf("%-24s %-36s %5d  %20s  %18s  %18s\n", name.first.c_str(), name.second.c_str(), row.num_cases,
                median_and_worst(row.status_s).c_str(), median_and_worst(row.shrunk_s).c_str(),
                median_and_worst(row.summed_s).c_str());
    total += row.num_cases;
    all.shrunk_s.insert(all.shrunk_s.end(), row.shrunk_s.begin(), row.shrunk_s.end());
    all.summed_s.insert(all.summed_s.end(), row.summed_s.begin(), row.summed_s.end());
  }
  std::printf("%-24s %-36s %5d  %20s  %18s  %18s\n", "all", "", total, "", median_and_worst(all.shrunk_s).c_str(),
              median_and_worst(all.summed_s).c_str());
  std::fflush(stdout);
}

}  // namespace rondo::testing

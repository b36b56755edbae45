// Random ranks are killed at random moments in all functions of a communicator (support/kill_case.h). A case that takes
// longer than a second is repeated once, because the machine may have been busy. It fails if it is too slow again.
//
//   RONDO_TEST_KILLS=3000 RONDO_TEST_KILL_SEED=1   number of cases, and number of the first; scripts/stress.sh --kill
//   RONDO_TEST_KILL_LIMIT_S=5                      replaces the second if other programs need the machine
// labels: mp
// timeout: 300
// alone
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "support/kill_case.h"
#include "support/shared.h"

namespace rondo::testing {
namespace {

uint64_t number_of(const char* setting, uint64_t otherwise) {
  const char* value = std::getenv(setting);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : otherwise;
}

struct Figures {
  std::vector<double> told_s, gone_on_s;
};

std::string range(std::vector<double> values) {
  if (values.empty()) return "-";
  std::sort(values.begin(), values.end());
  char text[80];
  std::snprintf(text, sizeof text, "median %.1f, worst %.1f ms", values[values.size() / 2] * 1e3, values.back() * 1e3);
  return text;
}

TEST(Kills, SurvivorsAreToldWhoDiedAndGoOn) {
  const uint64_t num = number_of("RONDO_TEST_KILLS", kSanitized ? 30 : 300);
  const uint64_t first = number_of("RONDO_TEST_KILL_SEED", 1);
  const auto limit_s = static_cast<double>(number_of("RONDO_TEST_KILL_LIMIT_S", kSanitized ? 5 : 1));
  Figures figures[kNumKillStages];
  uint64_t num_run = 0, num_again = 0, num_bad = 0;
  for (; num_run < num && num_bad < 10; ++num_run) {
    const KillCase c = kill_case(first + num_run);
    KillOutcome outcome = run_kill_case(c);
    if (outcome.told_s > limit_s && outcome.faults.empty()) {
      std::printf("%s: told after %.2f s; once more\n  %s\n", describe(c).c_str(), outcome.told_s,
                  outcome.slowest.c_str());
      ++num_again;
      outcome = run_kill_case(c);
    }
    if (outcome.told_s > limit_s)
      outcome.faults.push_back("the survivors were told after " + std::to_string(outcome.told_s) +
                               " s: " + outcome.slowest);
    for (const std::string& fault : outcome.faults) ADD_FAILURE() << describe(c) << "\n" << fault;
    num_bad += !outcome.faults.empty();
    figures[static_cast<int>(c.stage)].told_s.push_back(outcome.told_s);
    figures[static_cast<int>(c.stage)].gone_on_s.push_back(outcome.gone_on_s);
    if (num_run % 100 == 99) std::fflush(stdout);
  }
  for (int i = 0; i < kNumKillStages; ++i)
    std::printf("%-10s %4zu kills; told: %s; then going on: %s\n", kill_stage_name(static_cast<KillStage>(i)),
                figures[i].told_s.size(), range(figures[i].told_s).c_str(), range(figures[i].gone_on_s).c_str());
  std::printf("%llu kills from %llu on, %llu run again, %llu bad\n", static_cast<unsigned long long>(num_run),
              static_cast<unsigned long long>(first), static_cast<unsigned long long>(num_again),
              static_cast<unsigned long long>(num_bad));
}

}  // namespace
}  // namespace rondo::testing

// `rondo calibrate` refuses a busy machine, and constants that do not fit: it prints the reason and writes nothing.
// labels: unit
// alone
#include "calibrate_trust.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace rondo::tools {
namespace {

std::vector<int> own_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int c = 0; c < CPU_SETSIZE; ++c)
      if (CPU_ISSET(c, &set)) cpus.push_back(c);
  return cpus;
}

/// Two threads that occupy one processor.
class OtherWork {
 public:
  explicit OtherWork(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    for (std::thread& t : threads_) {
      t = std::thread([this] {
        while (!stop_.load(std::memory_order_relaxed)) {
        }
      });
      pthread_setaffinity_np(t.native_handle(), sizeof set, &set);
    }
  }
  ~OtherWork() {
    stop_ = true;
    for (std::thread& t : threads_) t.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread threads_[2];
};

TEST(CalibrateTrust, ABusyProcessorIsNamed) {
  const std::vector<int> cpus = own_cpus();
  ASSERT_FALSE(cpus.empty());
  const OtherWork work(cpus[0]);
  const std::string why = why_busy({cpus[0]});
  for (const std::string& words : {"processor " + std::to_string(cpus[0]), std::string("busy"), std::string("--force")})
    EXPECT_NE(why.find(words), std::string::npos) << words << " in: " << why;
  EXPECT_EQ(why_busy({}), "");
}

TEST(CalibrateTrust, NothingIsMeasuredNorWrittenOnABusyMachine) {
  const std::string path = std::filesystem::temp_directory_path() / ("rondo_busy_" + std::to_string(getpid()));
  const OtherWork work(own_cpus()[0]);
  std::FILE* const out = popen((RONDO_CLI " calibrate --quick -o " + path + " 2>&1").c_str(), "r");
  std::string text;
  for (int c; (c = std::fgetc(out)) != EOF;) text += static_cast<char>(c);
  const int status = pclose(out);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  EXPECT_NE(text.find("the machine is busy"), std::string::npos) << text;
  EXPECT_NE(text.find("nothing is written"), std::string::npos) << text;
  EXPECT_EQ(text.find("processes on"), std::string::npos) << "measured all the same: " << text;
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(CalibrateTrust, ConstantsThatMissTheirOwnTimingsAreRefused) {
  CostVector constants{};
  constants[0] = 100;
  std::vector<Observation> timings(9);
  for (size_t i = 0; i < timings.size(); ++i) {
    timings[i].counts[0] = 1;
    timings[i].measured_ns = i < 5 ? 50 : 100;  // for five the forecast is twice the measurement
  }
  const std::string why = why_unfit("shared cores", timings, constants);
  for (const char* words : {"shared cores", "100 %", "othing is written", "--force"})
    EXPECT_NE(why.find(words), std::string::npos) << words << " in: " << why;
  timings[0].measured_ns = 100;
  EXPECT_EQ(why_unfit("shared cores", timings, constants), "") << "less than half of them";
  EXPECT_EQ(why_unfit("shared cores", {}, constants), "");
}

}  // namespace
}  // namespace rondo::tools

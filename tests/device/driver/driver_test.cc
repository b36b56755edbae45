// The search for the CUDA driver: the messages if it is missing, turned off, too old, incomplete or without devices.
// Each case runs in a separate process, because the result is permanent. With --driver this program prints it.
// labels: unit tsan
// separate
#include "device/driver/driver.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace rondo::testing {
namespace {

using Environment = std::vector<std::pair<std::string, std::string>>;

// This program's message about the driver in that environment.
std::string found_with(const Environment& environment) {
  std::string command = "env -u RONDO_CUDA -u CUDA_DEVICE_MAX_CONNECTIONS";
  for (const auto& [name, value] : environment) command += " " + name + "='" + value + "'";
  command += " /proc/" + std::to_string(getpid()) + "/exe --driver";
  FILE* out = popen(command.c_str(), "r");
  std::string text;
  for (int c = std::fgetc(out); c != EOF; c = std::fgetc(out)) text.push_back(static_cast<char>(c));
  EXPECT_EQ(pclose(out), 0) << command;
  return text;
}

const std::string kWhole = RONDO_PLAYED_LIBCUDA, kPart = RONDO_PART_OF_LIBCUDA;

TEST(CudaDriver, IsFound) {
  EXPECT_EQ(found_with({{"LD_LIBRARY_PATH", kWhole}}), "found");
  EXPECT_EQ(found_with({{"LD_LIBRARY_PATH", kWhole}, {"RONDO_CUDA", "1"}}), "found");
}

TEST(CudaDriver, WhyThereIsNone) {
  EXPECT_EQ(found_with({{"LD_LIBRARY_PATH", kWhole}, {"RONDO_CUDA", "0"}}), "CUDA is turned off (RONDO_CUDA=0)");
  EXPECT_EQ(found_with({{"LD_LIBRARY_PATH", kWhole}, {"RONDO_TEST_CUDA_VERSION", "11080"}}),
            "the NVIDIA driver supports CUDA 11.8, but 12.0 is needed");
  EXPECT_EQ(found_with({{"LD_LIBRARY_PATH", kWhole}, {"RONDO_TEST_CUDA_INIT", "100"}}),
            "cuInit: CUDA_ERROR_NO_DEVICE (100: no CUDA-capable device is detected)");
  EXPECT_EQ(found_with({{"LD_LIBRARY_PATH", kWhole}, {"RONDO_TEST_CUDA_INIT", "34"}}), "cuInit: CUDA error 34");
  EXPECT_EQ(found_with({{"LD_LIBRARY_PATH", kWhole}, {"RONDO_TEST_CUDA_DEVICES", "0"}}),
            "the NVIDIA driver shows no device (CUDA_VISIBLE_DEVICES?)");
}

// Before CUDA reads the variable, and only if the user has not set it.
TEST(CudaDriver, AsksForHardwareQueues) {
  const Environment whole{{"LD_LIBRARY_PATH", kWhole}, {"RONDO_TEST_CUDA_QUEUES", "1"}};
  EXPECT_EQ(found_with(whole), "32 queues, found, 32 queues known");
  Environment set = whole, ready = whole;
  set.emplace_back("CUDA_DEVICE_MAX_CONNECTIONS", "1");
  EXPECT_EQ(found_with(set), "1 queues, found, 1 queues known");
  ready.emplace_back("RONDO_TEST_CUDA_READY", "1");  // by the application
  EXPECT_EQ(found_with(ready), "found, 8 queues known");
}

TEST(CudaDriver, MissingFunctionsAreNamed) {
  const std::string text = found_with({{"LD_LIBRARY_PATH", kPart}});
  EXPECT_TRUE(text.starts_with("libcuda.so.1 lacks cuDeviceGet, cuDeviceGetName, ")) << text;
  EXPECT_TRUE(text.ends_with("cuLaunchHostFunc")) << text;
  EXPECT_EQ(text.find("cuInit"), std::string::npos) << text;
  EXPECT_EQ(found_with({{"LD_LIBRARY_PATH", kPart}, {"RONDO_TEST_CUDA_VERSION", "11040"}}),
            "the NVIDIA driver supports CUDA 11.4, but 12.0 is needed")
      << "an old driver lacks functions: its age must be the reason";
}

TEST(CudaDriver, ThreadsFindTheSame) {
  setenv("RONDO_CUDA", "0", 1);
  std::vector<std::string> found(8);
  std::vector<std::thread> threads;
  for (std::string& text : found) threads.emplace_back([&text] { text = cuda::why_no_driver(); });
  for (std::thread& t : threads) t.join();
  for (const std::string& text : found) EXPECT_EQ(text, "CUDA is turned off (RONDO_CUDA=0)");
  EXPECT_EQ(cuda::driver(), nullptr);
  const Status status = cuda::need_driver().status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), found[0]);
  EXPECT_EQ(cuda::check(2, "cuMemAlloc").code(), StatusCode::kExhausted);
  EXPECT_EQ(cuda::check(2, "cuMemAlloc").message(), "cuMemAlloc: CUDA error 2");
}

}  // namespace
}  // namespace rondo::testing

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--driver") == 0) {
    std::printf("%s", rondo::cuda::driver() != nullptr ? "found" : rondo::cuda::why_no_driver().c_str());
    if (std::getenv("RONDO_TEST_CUDA_QUEUES") != nullptr)
      std::printf(", %u queues known", rondo::cuda::num_hardware_queues());
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

// One thread for torch: TorchProcesses forks ranks from this process.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  ::at::set_num_threads(1);
  return RUN_ALL_TESTS();
}

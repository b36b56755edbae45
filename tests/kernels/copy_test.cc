// The copy kernel of every SIMD level: 1..5 sinks, small and large sizes, misaligned, in place.
// labels: unit
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/levels.h"

namespace rondo {
namespace {

constexpr uint8_t kGuard = 0xa5;

std::vector<uint8_t> random_bytes(uint64_t num_bytes) {
  std::mt19937 bits(7);
  std::vector<uint8_t> x(num_bytes);
  for (uint8_t& b : x) b = static_cast<uint8_t>(bits());
  return x;
}

// Copies num_bytes between misalignments and checks every byte of every sink and around it.
void check_copy(const KernelTable& table, uint64_t num_bytes, uint32_t num_dst, uint64_t shift_bytes) {
  const std::vector<uint8_t> pattern = random_bytes(num_bytes);
  std::vector<uint8_t> source(num_bytes + 128, kGuard);
  uint8_t* from = source.data() + shift_bytes;
  std::copy(pattern.begin(), pattern.end(), from);
  std::vector<std::vector<uint8_t>> sinks(num_dst, std::vector<uint8_t>(num_bytes + 256, kGuard));
  std::vector<void*> dst;
  for (uint32_t d = 0; d < num_dst; ++d) dst.push_back(sinks[d].data() + 64 + (shift_bytes * (d + 1)) % 64);
  const void* src = from;
  KernelArgs args;
  args.src = &src;
  args.dst = dst.data();
  args.num_src = 1;
  args.num_dst = num_dst;
  args.num_elems = num_bytes;
  table.copy(args);
  for (uint32_t d = 0; d < num_dst; ++d) {
    std::vector<uint8_t> expected(num_bytes + 256, kGuard);
    const int64_t first = static_cast<uint8_t*>(dst[d]) - sinks[d].data();
    std::copy(pattern.begin(), pattern.end(), expected.begin() + first);
    ASSERT_EQ(sinks[d], expected) << table.level << " bytes " << num_bytes << " sinks " << num_dst << " sink " << d
                                  << " shift " << shift_bytes;
  }
}

TEST(CopyKernel, CopiesEveryByteAndNoOther) {
  for (SimdLevel level : kLevels) {
    const KernelTable* table = kernel_table(level);
    if (table == nullptr) continue;
    for (uint32_t num_dst = 1; num_dst <= 5; ++num_dst) {
      for (uint64_t num_bytes = 0; num_bytes <= 300; ++num_bytes) {
        for (uint64_t shift : {0, 1, 3, 8, 33}) {
          ASSERT_NO_FATAL_FAILURE(check_copy(*table, num_bytes, num_dst, shift));
        }
      }
      for (uint64_t num_bytes : {4095, 65536, 1000003}) {
        ASSERT_NO_FATAL_FAILURE(check_copy(*table, num_bytes, num_dst, num_bytes % 13));
      }
    }
  }
}

TEST(CopyKernel, SinkMayBeTheSource) {
  const std::vector<uint8_t> pattern = random_bytes(1000);
  for (SimdLevel level : kLevels) {
    const KernelTable* table = kernel_table(level);
    if (table == nullptr) continue;
    for (uint32_t num_dst = 1; num_dst <= 3; ++num_dst) {
      std::vector<uint8_t> own = pattern;
      std::vector<std::vector<uint8_t>> others(2, std::vector<uint8_t>(pattern.size()));
      const void* src = own.data();
      void* dst[3] = {own.data(), others[0].data(), others[1].data()};
      KernelArgs args;
      args.src = &src;
      args.dst = dst;
      args.num_src = 1;
      args.num_dst = num_dst;
      args.num_elems = pattern.size();
      table->copy(args);
      EXPECT_EQ(own, pattern);
      for (uint32_t d = 1; d < num_dst; ++d) EXPECT_EQ(others[d - 1], pattern);
    }
  }
}

}  // namespace
}  // namespace rondo

// Exports a million records without holding the text in memory.
// labels: slow
// timeout: 180
#include <gtest/gtest.h>

#include "trace/export.h"
#include "trace/synthetic_trace.h"

namespace rondo::testing {
namespace {

TEST(ChromeTraceLarge, AMillionRecords) {
  constexpr uint32_t kMessages = 500'000;
  std::vector<TraceFile> files = {exchange_file(0), exchange_file(1)};
  for (uint32_t m = 0; m < kMessages; ++m) {
    files[0].records.push_back(make_step(1 + m / 1000, 0, m, {1'000'000 + m * 10u, 0, 0, 0, 5}));
    files[1].records.push_back(make_step(1 + m / 1000, 1, m, {1'000'000 + m * 10u, 6, 0, 0, 3}));
  }
  for (TraceFile& f : files) f.num_written = f.records.size();
  std::FILE* out = std::fopen("/dev/null", "w");
  auto r = export_chrome(files, out);
  std::fclose(out);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->steps, 2 * uint64_t{kMessages});
  EXPECT_EQ(r->flows, kMessages);
}

}  // namespace
}  // namespace rondo::testing

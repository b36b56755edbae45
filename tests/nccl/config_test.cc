// Configs of callers with each version of NCCL's header, and NCCL_* variables.
// labels: unit tsan
#include "nccl/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "nccl/call_config.h"
#include "nccl/environment.h"
#include "nccl/nccl_ranks.h"
#include "rondo/nccl_ext.h"

namespace rondo::testing {
namespace {

using nccl::CallConfig;
using nccl::CommConfig;
using nccl::read_call_config;
using nccl::read_config;
using nccl::read_environment;

::testing::AssertionResult refused(const Status& s, const std::string& word) {
  if (s.code() != StatusCode::kInvalidArgument && s.code() != StatusCode::kUnsupported)
    return ::testing::AssertionFailure() << "was not refused: " << s.to_string();
  if (s.message().find(word) == std::string::npos)
    return ::testing::AssertionFailure() << "does not name " << word << ": " << s.message();
  return ::testing::AssertionSuccess();
}

struct Release {
  unsigned version;
  size_t size;
  const char* last_field;  // in this version
};
constexpr Release kReleases[] = {
    {21400, 24, "blocking"},      {21700, 40, "netName"},     {21800, 48, "splitShare"},
    {22600, 48, "trafficClass"},  {22700, 72, "nvlsCTAs"},    {22809, 80, "nvlinkCentricSched"},
    {22900, 88, "numRmaCtx"},     {23003, 96, "maxP2pPeers"}, {23007, 96, "graphStreamOrdering"},
    {23203, 120, "nvlsHostMode"},
};

// Every byte after a version's last field has a value that would be refused: it must not be read.
TEST(NcclConfig, EachVersionIsReadUpToItsLastField) {
  for (const Release& release : kReleases) {
    ncclConfig_t given = new_config();
    bool newer = false;
    for (const nccl::ConfigField* f = nccl::kConfigFields; f->name != nullptr; ++f) {
      if (newer) std::memset(reinterpret_cast<char*>(&given) + f->offset, 0xfe, f->bytes);
      if (std::strcmp(f->name, release.last_field) == 0) newer = true;
    }
    given.size = release.size;
    given.version = release.version;
    given.blocking = 0;
    const auto read = read_config(&given);
    ASSERT_TRUE(read.ok()) << release.version << ": " << read.status().to_string();
    EXPECT_FALSE(read->blocking);
    EXPECT_EQ(read->version, release.version);
    EXPECT_EQ(read->name, "");

    // The last field itself counts.
    for (const nccl::ConfigField* f = nccl::kConfigFields; f->name != nullptr; ++f)
      if (std::strcmp(f->name, release.last_field) == 0 && f->bytes == sizeof(int))
        std::memset(reinterpret_cast<char*>(&given) + f->offset, 0xfe, f->bytes);
    if (std::strcmp(release.last_field, "netName") != 0) {
      EXPECT_TRUE(refused(read_config(&given).status(), release.last_field)) << release.version;
    }
  }
}

// A version with more fields than the size: memory after the struct does not belong to the caller.
TEST(NcclConfig, NothingBehindTheSizeIsRead) {
  constexpr size_t kSize = 48;
  std::vector<std::byte> memory(kSize);
  ncclConfig_t given = new_config();
  given.size = kSize;
  given.maxCTAs = 7;
  given.nvlsHostMode = given.shrinkShare = -9;
  std::memcpy(memory.data(), &given, kSize);
  const auto read = read_config(reinterpret_cast<const ncclConfig_t*>(memory.data()));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->max_ctas, 7);
  const auto same = read_config(&given);  // the wrong values are right after it
  EXPECT_TRUE(same.ok()) << same.status().to_string();
}

TEST(NcclConfig, TheTableEndsWhereTheStructDoes) {
  const nccl::ConfigField* last = nccl::kConfigFields;
  while (last[1].name != nullptr) ++last;
  EXPECT_EQ((last->offset + last->bytes + 7) / 8 * 8, sizeof(ncclConfig_t));
  for (const Release& release : kReleases) {  // the sizes computed from the table equal the headers'
    size_t end = 0;
    for (const nccl::ConfigField* f = nccl::kConfigFields; f->name != nullptr; ++f)
      if (f->since <= release.version) end = f->offset + f->bytes;
    EXPECT_EQ((end + 7) / 8 * 8, release.size) << release.version;
  }
}

TEST(NcclConfig, NothingGivenMeansTheDefaults) {
  for (const bool null : {true, false}) {
    const ncclConfig_t unset = new_config();
    const auto read = read_config(null ? nullptr : &unset);
    ASSERT_TRUE(read.ok());
    EXPECT_TRUE(read->blocking);
    EXPECT_EQ(read->min_ctas, 1);
    EXPECT_EQ(read->max_ctas, 64);
    EXPECT_EQ(read->version, null ? 0u : 23203u);
  }
}

TEST(NcclConfig, WhatIsWrongIsNamed) {
  const auto with = [](auto change) {
    ncclConfig_t c = new_config();
    change(c);
    return read_config(&c).status();
  };
  EXPECT_TRUE(refused(with([](auto& c) { c.magic = 1; }), "magic"));
  EXPECT_TRUE(refused(with([](auto& c) { c.size = 8; }), "size"));
  EXPECT_TRUE(refused(with([](auto& c) { c.blocking = 2; }), "blocking is 2"));
  EXPECT_TRUE(refused(with([](auto& c) { c.cgaClusterSize = 9; }), "cgaClusterSize"));
  EXPECT_TRUE(refused(with([](auto& c) { c.minCTAs = 0; }), "minCTAs"));
  EXPECT_TRUE(refused(with([](auto& c) { c.minCTAs = 9, c.maxCTAs = 8; }), "maxCTAs"));
  EXPECT_TRUE(refused(with([](auto& c) { c.splitShare = -1; }), "splitShare"));
  EXPECT_TRUE(refused(with([](auto& c) { c.CTAPolicy = 4; }), "CTAPolicy"));
  EXPECT_TRUE(with([](auto& c) { c.minCTAs = 100; }).ok());  // the upper limit is raised with it
  EXPECT_TRUE(with([](auto& c) { c.commName = "alice", c.netName = "Socket"; }).ok());
}

TEST(NcclCallConfig, FieldsAreChecked) {
  const auto with = [](auto change) {
    ncclCollConfig_t c = new_call_config();
    change(c);
    return read_call_config(c).status();
  };
  EXPECT_TRUE(with([](auto&) {}).ok());
  EXPECT_TRUE(refused(with([](auto& c) { c.magic = 1; }), "magic"));
  EXPECT_TRUE(refused(with([](auto& c) { c.size = 56; }), "size"));
  EXPECT_TRUE(refused(with([](auto& c) { c.forceAlgSelection = 2; }), "forceAlgSelection"));
  EXPECT_TRUE(refused(with([](auto& c) { c.CTAPolicy = 4; }), "CTAPolicy"));
  EXPECT_TRUE(refused(with([](auto& c) { c.minCTAs = 0; }), "minCTAs"));
  EXPECT_TRUE(refused(with([](auto& c) { c.minCTAs = 9, c.maxCTAs = 8; }), "maxCTAs"));
  EXPECT_TRUE(with([](auto& c) { c.minCTAs = 100000; }).ok());
  const auto event = reinterpret_cast<cudaEvent_t>(0x10);
  ncclCollConfig_t c = new_call_config();
  c.launchCompletionEvent = event;
  EXPECT_EQ(read_call_config(c)->launch_event, event);
  // The struct of 2.31 ends before that field: memory after it is not read.
  c.size = 64, c.version = 23102;
  EXPECT_EQ(read_call_config(c)->launch_event, nullptr);
}

TEST(NcclCallConfig, VendorOptionsAreRead) {
  ncclConfigExt_t tag = {
      nullptr, {RONDO_NCCL_VENDOR_ID, RONDO_NCCL_EXT_TRACE_TAG}, {.raw = reinterpret_cast<void*>(77)}};
  ncclConfigExt_t foreign = {&tag, {4711, 1}, {.i = 1}};
  ncclConfigExt_t order = {&foreign, {RONDO_NCCL_VENDOR_ID, RONDO_NCCL_EXT_RANK_ORDER}, {.i = 1}};
  ncclConfigExt_t sums = {&order, {RONDO_NCCL_VENDOR_ID, RONDO_NCCL_EXT_ACCUMULATION}, {.s = "float"}};
  ncclCollConfig_t c = new_call_config();
  c.ext = &sums;
  c.userProfilerTag = 5;
  const auto read = read_call_config(c);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->promises, static_cast<uint32_t>(RONDO_PROMISE_RANK_ORDER));
  EXPECT_EQ(read->accumulator, Dtype::kFloat32);
  EXPECT_EQ(read->tag, 77u);  // overrides the profiler's

  sums.val.s = "quad";
  EXPECT_TRUE(refused(read_call_config(c).status(), "quad"));
  sums.val.s = "float";
  order.val.i = 2;
  EXPECT_TRUE(refused(read_call_config(c).status(), "RONDO_NCCL_EXT_RANK_ORDER"));
  order.val.i = 1;
  order.key.optionId = 99;
  EXPECT_TRUE(refused(read_call_config(c).status(), "option 99"));
  order.key.optionId = RONDO_NCCL_EXT_TRACE_TAG;
  EXPECT_TRUE(refused(read_call_config(c).status(), "twice"));
}

TEST(NcclCallConfig, AListThatGoesRoundEnds) {
  ncclConfigExt_t a = {nullptr, {1, 1}, {.i = 0}};
  a.next = &a;
  ncclCollConfig_t c = new_call_config();
  c.ext = &a;
  EXPECT_TRUE(refused(read_call_config(c).status(), "twice"));
}

TEST(NcclCallConfig, SelectionsNameAlgorithms) {
  using Names = std::vector<std::string>;
  const auto of = [](const char* text, Collective c) { return *nccl::selected_algorithms(text, c); };
  EXPECT_EQ(of("Ring", Collective::kAllReduce), (Names{"ring"}));
  EXPECT_EQ(of("TREE_LL128,ring", Collective::kAllReduce), (Names{"ring", "tree"}));
  EXPECT_EQ(of("circulant", Collective::kAllGather), (Names{"circulant"}));
  EXPECT_EQ(of("tree", Collective::kAllGather), Names());  // has no tree
  EXPECT_EQ(of("NVLS,pat", Collective::kAllReduce), Names());
  const Names others = of("^ring", Collective::kAllReduce);
  EXPECT_FALSE(others.empty());
  EXPECT_EQ(std::count(others.begin(), others.end(), "ring"), 0);
  EXPECT_TRUE(refused(nccl::selected_algorithms("rung", Collective::kAllReduce).status(), "rung"));
}

// As with NCCL, whose callers have a watchdog.
TEST(NcclConfig, CallsOnDevicesHaveNoDeadlineUnlessOneIsSet) {
  const auto deadline_of = [](nccl::CommConfig config, rondo::Memory memory) {
    const auto text = nccl::settings_of(config, memory);
    EXPECT_TRUE(text.ok()) << text.status().to_string();
    const size_t at = text->find("timeout_s");
    return at == std::string::npos ? std::string() : text->substr(at, text->find('\n', at) - at);
  };
  nccl::CommConfig given;
  given.version = 23203;
  for (const nccl::CommConfig& config : {nccl::CommConfig(), given}) {
    EXPECT_EQ(deadline_of(config, rondo::Memory::kCuda), "timeout_s = 1000000000");
    EXPECT_EQ(deadline_of(config, rondo::Memory::kHost), "");
    ::setenv("RONDO_TIMEOUT_S", "7", 1);
    EXPECT_EQ(deadline_of(config, rondo::Memory::kCuda), "");
    ::unsetenv("RONDO_TIMEOUT_S");
  }
}

TEST(NcclEnvironment, VariablesAreObeyedOrReported) {
  const char* const variables[] = {"NCCL_DEBUG=info",
                                   "NCCL_DEBUG_FILE=/tmp/%%x.%p",
                                   "NCCL_COMM_ID=127.0.0.1:4000",
                                   "NCCL_SOCKET_IFNAME=^docker,lo",
                                   "NCCL_ALGO=Ring",
                                   "NCCL_PROTO=LL",
                                   "NCCL_P2P_DISABLE=1",
                                   "PATH=/bin",
                                   "TORCH_NCCL_X=1",
                                   "NCCL_IB_HCA=mlx5",
                                   "NCCL_SHM_DISABLE=1",
                                   "NCCL_MAX_CTAS=4",
                                   "NCCL_NTHREADS=",
                                   nullptr};
  const nccl::Environment env = read_environment(variables);
  EXPECT_EQ(env.level, nccl::LogLevel::kInfo);
  EXPECT_EQ(env.log_file, "/tmp/%x." + std::to_string(::getpid()));
  EXPECT_EQ(env.comm_id, "127.0.0.1:4000");
  EXPECT_EQ(env.settings,
            "socket_ifname = ^docker,lo\nalgo = ring\nproto = inline\ncma = 0\n"
            "device_blocks = -4\n");
  ASSERT_EQ(env.ignored.size(), 2u) << env.ignored_text();
  EXPECT_EQ(env.ignored[0].name, "NCCL_IB_HCA");
  EXPECT_EQ(env.ignored[1].name, "NCCL_SHM_DISABLE");
  EXPECT_NE(env.ignored_text().find("NCCL_IB_HCA: "), std::string::npos);
}

TEST(NcclEnvironment, ValuesWithoutAnEquivalentAreReported) {
  for (const char* entry : {"NCCL_ALGO=NVLS", "NCCL_ALGO=^Ring", "NCCL_PROTO=LL128", "NCCL_DEBUG=loud",
                            "NCCL_P2P_DISABLE=yes", "NCCL_MAX_CTAS=0", "NCCL_MIN_CTAS=4x"}) {
    const char* const variables[] = {entry, nullptr};
    const nccl::Environment env = read_environment(variables);
    EXPECT_EQ(env.ignored.size(), 1u) << entry;
    EXPECT_EQ(env.settings, "") << entry;
  }
}

}  // namespace
}  // namespace rondo::testing

// `rondo fsdp checkpoint` as users run it.
// labels: unit
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include "fsdp/checkpoint_support.h"

namespace rondo::fsdp::testing {
namespace {

std::pair<int, std::string> command(const std::string& arguments) {
  std::FILE* out = ::popen((std::string(RONDO_CLI) + " fsdp checkpoint " + arguments + " 2>&1").c_str(), "r");
  std::string text;
  char piece[512];
  while (out != nullptr && std::fgets(piece, sizeof piece, out) != nullptr) text += piece;
  const int how = out == nullptr ? -1 : ::pclose(out);
  return {WIFEXITED(how) ? WEXITSTATUS(how) : -1, text};
}

TEST(FsdpCheckpointCommand, PrintsVerifiesAndMerges) {
  const TempFolder folder;
  Setting s;
  s.plan.nranks = 2;
  with_engines(World::kThreads, s, [&](Engine& engine, Rank) {
    fill(engine);
    EXPECT_TRUE(save(engine, folder / "c", {.items = R"({"position": 17})"}).ok());
    EXPECT_TRUE(save_full(engine, folder / "full.safetensors").ok());
  });
  auto [status, text] = command(folder / "c" + " --rows --verify --full " + (folder / "merged.safetensors"));
  EXPECT_EQ(status, 0) << text;
  for (const char* words :
       {"saved by 2 ranks", "7 parameters, 700 bytes", "0 steps, momentum_buffer (700 bytes)",
        "items: {\"position\":17}", "layer0.w", "[7, 7]", "rows 0 .. 4", "rows 4 .. 7", "layer2.b.momentum_buffer",
        "all 4 files have the bytes", "merged.safetensors: 7 parameters"})
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  EXPECT_TRUE(bytes_of(folder / "merged.safetensors") == bytes_of(folder / "full.safetensors"));
  const std::string shard = folder / "c/shard-00002-model-00001-of-00001.safetensors";
  std::string bytes = bytes_of(shard);
  bytes.back() ^= 1;
  write_bytes(shard, bytes);
  std::tie(status, text) = command(folder / "c" + " --verify");
  EXPECT_EQ(status, 1);
  EXPECT_NE(text.find("shard-00002"), std::string::npos) << text;
  std::tie(status, text) = command(folder / "full.safetensors");
  EXPECT_EQ(status, 0);
  EXPECT_NE(text.find("not saved by rondo"), std::string::npos) << text;
  std::tie(status, text) = command(folder / "nowhere");
  EXPECT_EQ(status, 1);
  EXPECT_NE(text.find("nowhere"), std::string::npos) << text;
}

}  // namespace
}  // namespace rondo::fsdp::testing

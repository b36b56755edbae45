// Checkpoints of other programs: the shards of PyTorch, and tied tensors under another name.
// labels: unit
// timeout: 120
#include <gtest/gtest.h>

#include "fsdp/checkpoint_support.h"
#include "fsdp/safetensors.h"
#include "rondo/fsdp/checkpoint.h"

namespace rondo::fsdp::testing {
namespace {

// A PyTorch shard: a tensor of two columns with offset `offsets` in the whole.
void write_shard(const std::string& path, const std::string& tensor, uint64_t rows, const std::string& offsets) {
  Safetensors file{{{"DCP_SHARDING_INFO", "{\"" + tensor + "\": {\"saved_offsets\": " + offsets + "}}"}},
                   {{tensor, Dtype::kFloat32, {rows, 2}}}};
  const auto header = encode_safetensors(&file);
  ASSERT_TRUE(header.ok());
  std::string data;
  for (uint64_t i = 0; i < rows * 2; ++i) {
    const auto value = static_cast<float>(i);
    data.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  write_bytes(path, *header + data);
}

TEST(CheckpointShards, ShardsOfPyTorchAreRowsOfATensor) {
  const TempFolder folder;
  const std::string first = folder / "shard-00001-model-00001-of-00001.safetensors";
  const std::string second = folder / "shard-00002-model-00001-of-00001.safetensors";
  write_shard(first, "w", 3, "[0, 0]");
  write_shard(second, "w", 2, "[3, 0]");
  const auto c = inspect(folder.path());
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_EQ(c->parameters.at("w").shape, (std::vector<uint64_t>{5, 2}));
  EXPECT_EQ(verify(*c).code(), StatusCode::kUnsupported);
  for (const auto& [offsets, words] :
       {std::pair{"[4, 0]", "row 3 is in no file"}, std::pair{"[2, 0]", "row 2 occurs twice"},
        std::pair{"[3, 1]", "between rows"}, std::pair{"[3]", "no saved_offsets"}, std::pair{"[-1, 0]", "between rows"},
        std::pair{"[18446744073709551615, 0]", "so many rows"}}) {
    write_shard(second, "w", 2, offsets);
    expect_names(inspect(folder.path()).status(), {"'w'", words});
  }
  write_shard(second, "v", 2, "[0, 0]");
  EXPECT_EQ(inspect(folder.path())->parameters.size(), 2u);
}

// Other programs may have stored the other name of tied tensors.
TEST(CheckpointShards, ATiedTensorIsFoundUnderAnyOfItsNames) {
  const TempFolder folder;
  write_shard(folder / "shard-00001-model-00001-of-00001.safetensors", "head", 3, "[0, 0]");
  Model tied;
  tied.units.push_back({"", {{"embedding", {3, 2}}, {"head", {3, 2}, Dtype::kFloat32, true, 1, "embedding"}}});
  with_odd_engines(
      2,
      [&](Engine& engine, Rank) {
        const auto loaded = load(engine, folder.path());
        ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
        for (const Part& p : engine.parts())
          for (uint64_t i = 0; i < p.num_elems; ++i)
            EXPECT_EQ(static_cast<const float*>(p.master)[i], static_cast<float>(p.first + i));
      },
      tied);
}

}  // namespace
}  // namespace rondo::fsdp::testing

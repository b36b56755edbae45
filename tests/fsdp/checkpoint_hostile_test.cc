// Hostile checkpoints: deeply nested, larger than memory, many names, many files; and saves whose result could not be
// loaded.
// labels: unit
// timeout: 120
#include <dirent.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>

#include "fsdp/checkpoint_support.h"
#include "fsdp/manifest.h"
#include "fsdp/safetensors.h"
#include "support/shared.h"

namespace rondo::fsdp::testing {
namespace {

std::string nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

std::string with_length(const std::string& json) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(json.size() >> (8 * i) & 0xFF);
  return file + json;
}

void expect_refused(const Status& s, const std::string& words) {
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(s.message().find(words), std::string::npos) << words << "\n" << s.to_string();
}

struct FileOf {
  std::string name;
  uint64_t size_bytes;
};
// A manifest of one rank with these files, and `parameters` as JSON.
std::string manifest_of(const std::vector<FileOf>& files, const std::string& parameters,
                        const std::string& items = "{}") {
  std::string list;
  for (const FileOf& f : files)
    list += fmt::format(R"({}{{"name":"{}","bytes":{},"sha256":"{}"}})", list.empty() ? "" : ",", f.name, f.size_bytes,
                        std::string(64, '0'));
  return fmt::format(R"({{"format":"rondo checkpoint","version":1,"ranks":1,"files":[{}],"parameters":{{{}}},)"
                     R"("states":{{}},"ties":{{}},"optimizer":{{"steps":0,"states":[]}},"items":{}}})",
                     list, parameters, items);
}

TEST(HostileCheckpoint, NestingIsBoundedWhereverJsonStands) {
  const TempFolder folder;
  const std::string deep = nested(200'000), file = folder / "model.safetensors";
  write_bytes(file, with_length("{\"w\":" + deep + "}"));
  expect_refused(inspect(file).status(), "deeper than 64");
  write_bytes(file, with_length(R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"w\":)" + deep + "}\"}}"));
  expect_refused(inspect(file).status(), "DCP_SHARDING_INFO");
  write_bytes(folder / "model.safetensors.index.json", R"({"weight_map":{},"metadata":)" + deep + "}");
  expect_refused(inspect(folder.path()).status(), "weight_map");
  write_bytes(folder / "checkpoint.json", manifest_of({}, "", "{\"a\":" + deep + "}"));
  expect_refused(inspect(folder.path()).status(), "at most 64 deep");
  write_bytes(folder / "checkpoint.json", manifest_of({}, "", "{\"a\":" + nested(62) + "}"));
  EXPECT_TRUE(inspect(folder.path()).ok());
  // Brackets in strings do not count.
  write_bytes(folder / "checkpoint.json", manifest_of({}, "", R"({"a":"\"\\\")" + std::string(99, '[') + "\"}"));
  EXPECT_TRUE(inspect(folder.path()).ok()) << inspect(folder.path()).status().to_string();
}

TEST(HostileCheckpoint, ItemsThatALoadWouldRefuseAreNotSaved) {
  const TempFolder folder;
  with_engines(World::kThreads, {}, [&](Engine& engine, Rank) {
    fill(engine);
    const std::string most = "{\"a\":" + nested(62) + "}";
    const Status saved = save(engine, folder / "c", {.items = most});
    EXPECT_TRUE(saved.ok()) << saved.to_string();
    const auto loaded = load(engine, folder / "c");
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    EXPECT_EQ(loaded->items, most);
    expect_refused(save(engine, folder / "c", {.items = "{\"a\":" + nested(63) + "}"}), "at most 63 deep");
    expect_refused(save(engine, folder / "c", {.items = "{\"a\":" + nested(200'000) + "}"}), "at most 63 deep");
    EXPECT_EQ(inspect(folder / "c")->items, most);
  });
}

TEST(HostileCheckpoint, ATensorIsNoLargerThanItsFile) {
  const TempFolder folder;
  const std::string shard = "shard-00001-model-00001-of-00001.safetensors";
  const std::string huge = R"("w":{"dtype":"U8","shape":[1,4611686018427387904],"parts":[[0,0,1]]})";
  const std::string v = R"("v":{"dtype":"F32","shape":[2,5],"parts":[[0,0,2]]})";
  const std::string w = R"("w":{"dtype":"F32","shape":[2,5],"parts":[[0,0,2]]})";
  write_bytes(folder / shard, std::string(79, 'x'));
  for (const std::string& parameters : {huge, v + "," + w}) {
    write_bytes(folder / "checkpoint.json", manifest_of({{shard, 79}}, parameters));
    expect_refused(inspect(folder.path()).status(), "'w': expected no more bytes than");
  }
  // A manifest that is wrong about the file, too: no memory is allocated before the file is checked.
  write_bytes(folder / "checkpoint.json", manifest_of({{shard, uint64_t{1} << 62}}, huge));
  const auto c = inspect(folder.path());
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  expect_refused(consolidate(*c, folder / "full"), "has 79 bytes but was written with");
  EXPECT_FALSE(std::filesystem::exists(folder / "full.saving"));
  EXPECT_FALSE(std::filesystem::exists(folder / "full"));
  // Each fits its file, but both together fit no file.
  const std::string half = R"({{"dtype":"U8","shape":[1,4611686018427387904],"parts":[[{},0,1]]}})";
  write_bytes(folder / "checkpoint.json",
              manifest_of({{shard, uint64_t{1} << 62}, {"b", uint64_t{1} << 62}},
                          fmt::format("\"v\":{},\"w\":{}", fmt::format(fmt::runtime(half), 0),
                                      fmt::format(fmt::runtime(half), 1))));
  const auto both = inspect(folder.path());
  ASSERT_TRUE(both.ok()) << both.status().to_string();
  expect_refused(consolidate(*both, folder / "full"), "more bytes than a file can have");
}

// Rows longer than one copied piece.
TEST(HostileCheckpoint, LongRowsAreCopiedInPieces) {
  const TempFolder folder;
  Model model;
  model.units = {{"u", {{"w", {3, 700'001}}}}};
  spawn(World::kThreads, 2, [&](Communicator& comm) {
    const auto plan = Plan::build(model, {.nranks = 2});
    auto engine = Engine::create(*plan, comm, {});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    fill(**engine);
    EXPECT_TRUE(save(**engine, folder / "c").ok());
    EXPECT_TRUE(save_full(**engine, folder / "full").ok());
  });
  ASSERT_TRUE(consolidate(*inspect(folder / "c"), folder / "merged").ok());
  EXPECT_TRUE(bytes_of(folder / "merged") == bytes_of(folder / "full"));
}

// Many tensors with as many notes. Regression: each note was searched among all tensors, which took minutes for 60,000.
TEST(HostileCheckpoint, ManyNamesTakeNoQuadraticTime) {
  constexpr int kNames = rondo::testing::kSanitized ? 10'000 : 60'000;
  const TempFolder folder;
  Safetensors file;
  for (int i = 0; i < kNames; ++i) {
    file.tensors.push_back({fmt::format("a.long.name.{:06}", i), Dtype::kUint8, {0}});
    file.metadata[fmt::format("note{:06}", i)] = fmt::format("a.long.name.{:06}", 900'000 + i);
  }
  file.metadata["tied"] = "a.long.name.000007";
  const auto header = encode_safetensors(&file);
  ASSERT_TRUE(header.ok());
  write_bytes(folder / "m.safetensors", *header);
  const auto start = std::chrono::steady_clock::now();
  const auto c = inspect(folder / "m.safetensors");
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  // With quadratic time it took more than a minute without sanitizers.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(40));
  EXPECT_EQ(c->parameters.size(), size_t{kNames});
  EXPECT_EQ(c->ties, (std::map<std::string, std::string>{{"tied", "a.long.name.000007"}}));
}

rlim_t open_files() {
  rlim_t highest = 0;
  DIR* list = ::opendir("/proc/self/fd");
  while (const dirent* entry = list == nullptr ? nullptr : ::readdir(list))
    highest = std::max<rlim_t>(highest, static_cast<rlim_t>(std::atoi(entry->d_name)));
  if (list != nullptr) ::closedir(list);
  return highest + 1;
}

// More shards than a process can open, read twice: headers are kept, files are not.
TEST(HostileCheckpoint, MoreFilesThanCanBeOpen) {
  const TempFolder folder;
  constexpr uint64_t kShards = 100;
  std::string expected;
  for (uint64_t i = 0; i < kShards; ++i) {
    const std::string info = fmt::format(R"({{"v":{{"saved_offsets":[{0}]}},"w":{{"saved_offsets":[{0}]}}}})", i);
    Safetensors file{{{"DCP_SHARDING_INFO", info}}, {{"v", Dtype::kUint8, {1}}, {"w", Dtype::kUint8, {1}}}};
    const auto header = encode_safetensors(&file);
    ASSERT_TRUE(header.ok());
    write_bytes(folder / fmt::format("shard-{:05}-model-00001-of-00001.safetensors", i + 1),
                *header + static_cast<char>(i) + static_cast<char>(100 + i));
    expected += static_cast<char>(i);
  }
  for (uint64_t i = 0; i < kShards; ++i) expected += static_cast<char>(100 + i);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit tight{open_files() + 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const auto c = inspect(folder.path());
  const Status merged = c.ok() ? consolidate(*c, folder / "full") : c.status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(merged.ok()) << merged.to_string();
  EXPECT_TRUE(bytes_of(folder / "full").ends_with(expected));
}

// Tensors that the plan does not have, in other programs' files and in rondo's own.
TEST(HostileCheckpoint, SurplusIsPassedOverWhereAsked) {
  const TempFolder folder;
  Setting s;
  with_engines(World::kThreads, s, [&](Engine& engine, Rank) {
    fill(engine);
    EXPECT_TRUE(save(engine, folder / "own").ok());
    EXPECT_TRUE(save_full(engine, folder / "foreign.safetensors").ok());
  });
  Setting fewer = s;
  fewer.net.layers = s.net.layers - 1;
  const Alone start(fewer.net, fewer.optimizer);
  for (const std::string& path : {folder / "own", folder / "foreign.safetensors"})
    with_engines(World::kThreads, fewer, [&](Engine& engine, Rank) {
      expect_refused(load(engine, path).status(), "ignore_surplus = true");
      const auto loaded = load(engine, path, {.ignore_surplus = true});
      ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
      expect_equal(engine, start);
    });
}

// A user with write access to the folder must not redirect a save through a link to files of the saving user.
TEST(HostileCheckpoint, ALinkAtTheTemporaryIsNotFollowed) {
  const TempFolder folder;
  const std::string precious = "untouched";
  write_bytes(folder / "precious", precious);
  for (const char* name : {"merged", "full"})
    std::filesystem::create_symlink(folder / "precious", folder / (std::string(name) + ".saving"));
  std::filesystem::create_symlink(folder / "precious", folder / "c.saving");  // in place of the temporary folder
  std::filesystem::create_symlink(folder / "precious", folder / "full");      // the name itself: replaced
  const Setting s;
  with_engines(World::kThreads, s, [&](Engine& engine, Rank) {
    fill(engine);
    EXPECT_FALSE(save(engine, folder / "c").ok());
    EXPECT_TRUE(save(engine, folder / "d").ok());
    const Status whole = save_full(engine, folder / "full");
    EXPECT_TRUE(whole.ok()) << whole.to_string();
  });
  const Status merged = consolidate(*inspect(folder / "d"), folder / "merged");
  EXPECT_TRUE(merged.ok()) << merged.to_string();
  EXPECT_EQ(bytes_of(folder / "precious"), precious);
  EXPECT_TRUE(bytes_of(folder / "merged") == bytes_of(folder / "full"));
  for (const char* name : {"merged", "full"}) {
    EXPECT_FALSE(std::filesystem::is_symlink(folder / name));
    EXPECT_FALSE(std::filesystem::exists(std::filesystem::symlink_status(folder / (std::string(name) + ".saving"))));
  }
}

// SIGXFSZ would end all ranks silently.
TEST(HostileCheckpoint, TheLimitOnFileSizesIsNamed) {
  const TempFolder folder;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  Setting s;
  with_engines(World::kThreads, s, [&](Engine& engine, Rank rank) {
    fill(engine);
    if (rank == 0) {
      const rlimit small{100, before.rlim_max};
      ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    }
    ASSERT_TRUE(engine.communicator().barrier().ok());
    for (const Status& saved : {save(engine, folder / "c"), save_full(engine, folder / "full")}) {
      EXPECT_EQ(saved.code(), StatusCode::kExhausted) << saved.to_string();
      EXPECT_NE(saved.message().find("ulimit -f, now 100 bytes"), std::string_view::npos) << saved.to_string();
    }
  });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

}  // namespace
}  // namespace rondo::fsdp::testing

// Checkpoints: a different number of ranks continues bit for bit; files of other programs; errors of a damaged
// checkpoint.
// labels: unit
// timeout: 120
#include "rondo/fsdp/checkpoint.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fsdp/checkpoint_support.h"
#include "fsdp/safetensors.h"

namespace rondo::fsdp::testing {
namespace {

constexpr World kThreads = World::kThreads;
constexpr Strategy kTurns[] = {Strategy::kShardAll, Strategy::kReplicate, Strategy::kShardGradients,
                               Strategy::kShardOptimizer};

Setting setting(int nranks, int strategy, Rule rule = Rule::kAdam) {
  Setting s;
  s.plan.nranks = nranks;
  s.plan.strategy = kTurns[strategy % 4];
  s.optimizer = {.rule = rule};
  s.optimizer.lr = 0.1f;
  s.optimizer.momentum = 0.9f;
  return s;
}

void save_trained(const Setting& s, const std::string& folder, int steps = 2) {
  with_engines(kThreads, s, [&](Engine& engine, Rank rank) {
    fill(engine);
    train_steps(engine, s.net, 1, steps, rank);
    const Status saved = save(engine, folder, {.items = R"({"position": 17, "seed": "0x1f"})"});
    EXPECT_TRUE(saved.ok()) << saved.to_string();
  });
}

void go_on(const Setting& s, const std::string& folder, const Alone& there, const Alone& end) {
  with_engines(kThreads, s, [&](Engine& engine, Rank rank) {
    const auto loaded = load(engine, folder);
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    EXPECT_TRUE(loaded->has_optimizer);
    EXPECT_EQ(nlohmann::json::parse(loaded->items)["position"], 17);
    expect_equal(engine, there);
    train_steps(engine, s.net, 3, 2, rank);
    expect_equal(engine, end);
  });
}

TEST(Checkpoint, AnyNumberOfRanksGoesOnWithTheSameBits) {
  const TempFolder folder;
  const int ranks[] = {1, 2, 3, 4, 8};
  int turn = 0;
  for (const Rule rule : {Rule::kSgd, Rule::kAdam})
    for (const int n : ranks) {
      const Setting saved = setting(n, turn, rule);
      save_trained(saved, folder / "c");
      Alone there(saved.net, saved.optimizer);
      there.train(n, 2);
      for (const int m : ranks) {
        Alone end = there;
        end.train(m, 2);
        go_on(setting(m, ++turn, rule), folder / "c", there, end);
      }
    }
}

TEST(Checkpoint, ReplicasShareTheWorkAndHybridLoads) {
  const TempFolder folder;
  Setting hybrid = setting(4, 0);
  hybrid.plan.shard_ranks = 2;
  with_engines(kThreads, hybrid, [&](Engine& engine, Rank) {
    fill(engine);
    EXPECT_TRUE(save(engine, folder / "c").ok());
  });
  const auto c = inspect(folder / "c");
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_EQ(c->files.size(), 8u);
  for (const StoredFile& f : c->files) EXPECT_LT(f.size_bytes, 3000u) << f.path;
  const Alone start(hybrid.net, hybrid.optimizer);
  for (const int m : {3, 4}) {
    Setting s = setting(m, 0);
    s.plan.shard_ranks = m == 4 ? 2 : 0;
    with_engines(kThreads, s, [&](Engine& engine, Rank) {
      EXPECT_TRUE(load(engine, folder / "c").ok());
      expect_equal(engine, start);
    });
  }
}

void fill_bytes(Engine& engine) {
  std::map<const Tensor*, uint64_t> seeds;
  for (const UnitPlan& u : engine.plan().units())
    for (const Tensor& t : u.tensors) seeds[&t] = seed_of(full_name(u, t));
  const Status s = engine.init([&](const Tensor& t, uint64_t first, uint64_t n, void* to) {
    const uint64_t size = dtype_bytes(t.dtype);
    for (uint64_t i = 0; i < n * size; ++i)
      static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>((first * size + i) * 37 + seeds.at(&t));
  });
  EXPECT_TRUE(s.ok()) << s.to_string();
}

std::string bytes_of_tensor(const std::string& name, uint64_t size_bytes) {
  std::string bytes;
  for (uint64_t i = 0; i < size_bytes; ++i) bytes += static_cast<char>(i * 37 + seed_of(name));
  return bytes;
}

// Reads a file without the library's reader.
std::map<std::string, std::pair<nlohmann::json, std::string>> read_plain(const std::string& path) {
  const std::string bytes = bytes_of(path);
  std::map<std::string, std::pair<nlohmann::json, std::string>> tensors;
  if (bytes.size() < 8) return tensors;
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  const std::string data = bytes.substr(8 + length);
  uint64_t used = 0;
  for (const auto& [name, t] : header.items()) {
    std::string value;
    if (name != "__metadata__") {
      const uint64_t begin = t["data_offsets"][0], end = t["data_offsets"][1];
      value = data.substr(begin, end - begin);
      used += end - begin;
    }
    tensors[name] = {t, value};
  }
  EXPECT_EQ(used, data.size()) << "holes";
  return tensors;
}

void expect_odd_model(const std::string& file) {
  auto tensors = read_plain(file);
  EXPECT_EQ(tensors["__metadata__"].first["format"], "pt");
  EXPECT_EQ(tensors["__metadata__"].first["head"], "embedding");
  EXPECT_EQ(tensors["__metadata__"].first["flat"], "embedding");
  EXPECT_FALSE(tensors.contains("head"));
  const std::tuple<const char*, const char*, std::vector<uint64_t>, uint64_t> expected[] = {
      {"embedding", "F32", {11, 3}, 132},  {"empty", "F32", {0, 5}, 0},      {"thin", "F32", {4, 0}, 0},
      {"a.scalar", "F32", {}, 4},          {"a.position", "I64", {13}, 104}, {"a.bits", "U8", {3}, 3},
      {"a.frozen", "BF16", {5, 2, 3}, 60}, {"a.blocks", "F32", {7, 2}, 56}};
  EXPECT_EQ(tensors.size(), 1 + std::size(expected));
  for (const auto& [name, dtype, shape, size_bytes] : expected) {
    ASSERT_TRUE(tensors.contains(name)) << name;
    EXPECT_EQ(tensors[name].first["dtype"], dtype);
    EXPECT_EQ(tensors[name].first["shape"], shape) << name;
    EXPECT_EQ(tensors[name].second, bytes_of_tensor(name, size_bytes)) << name;
  }
}

TEST(Checkpoint, EveryKindOfTensorAndMoreRanksThanRows) {
  const TempFolder folder;
  for (const int n : {1, 3, 8}) {
    const std::string at = folder / ("of" + std::to_string(n));
    with_odd_engines(n, [&](Engine& engine, Rank rank) {
      fill_bytes(engine);
      const Status saved = save(engine, at), full = save_full(engine, folder / "full.safetensors");
      EXPECT_TRUE(saved.ok()) << saved.to_string();
      EXPECT_TRUE(full.ok()) << full.to_string();
    });
    expect_odd_model(folder / "full.safetensors");
    const auto c = inspect(at);
    ASSERT_TRUE(c.ok()) << c.status().to_string();
    EXPECT_EQ(c->ties, (std::map<std::string, std::string>{{"head", "embedding"}, {"flat", "embedding"}}));
    EXPECT_EQ(c->states.size(), 2 * 5u);
    EXPECT_TRUE(verify(*c).ok());
    EXPECT_TRUE(consolidate(*c, folder / "merged.safetensors").ok());
    expect_odd_model(folder / "merged.safetensors");
    for (const int m : {1, 5})
      with_odd_engines(m, [&](Engine& engine, Rank rank) {
        const auto loaded = load(engine, at);
        ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
        EXPECT_TRUE(save_full(engine, folder / "again.safetensors").ok());
        if (rank == 0) expect_odd_model(folder / "again.safetensors");
      });
  }
}

// tests/fsdp/torch_checkpoint.py lets PyTorch read these files, if a folder is named.
TEST(Checkpoint, FilesAreThoseOfOtherReaders) {
  const TempFolder own;
  const char* named = std::getenv("RONDO_TEST_CHECKPOINTS");
  const std::string folder = named != nullptr ? named : own.path();
  for (const int n : {1, 3, 4}) {
    Setting s = setting(n, 0);
    if (n == 4) s.plan.shard_ranks = 2;
    const std::string at = folder + "/of" + std::to_string(n);
    with_engines(kThreads, s, [&](Engine& engine, Rank rank) {
      fill(engine);
      train_steps(engine, s.net, 1, 1, rank);
      EXPECT_TRUE(save(engine, at).ok());
      EXPECT_TRUE(save_full(engine, at + ".safetensors").ok());
    });
    std::map<std::string, uint64_t> rows;  // of each tensor, in all files
    for (int r = 0; r < n; ++r) {
      char name[64];
      std::snprintf(name, sizeof name, "/shard-%05d-model-00001-of-00001.safetensors", r + 1);
      for (const std::string sub : {"", "/optimizer"}) {
        auto tensors = read_plain(at + sub + name);
        const auto& metadata = tensors["__metadata__"].first;
        EXPECT_EQ(metadata["DCP_VERSION"], "1.0");
        EXPECT_EQ(metadata["format"], "pt");
        const auto info = nlohmann::json::parse(metadata["DCP_SHARDING_INFO"].get<std::string>());
        EXPECT_EQ(info.size(), tensors.size() - 1);
        for (const auto& [tensor, t] : tensors) {
          if (tensor == "__metadata__") continue;
          EXPECT_EQ(info[tensor]["saved_offsets"].size(), t.first["shape"].size());
          rows[tensor] += t.first["shape"][0].get<uint64_t>();
        }
      }
    }
    EXPECT_EQ(rows.size(), 3 * 7u);  // parameters and two moments
    for (const auto& [name, n_rows] : rows) EXPECT_EQ(n_rows, 7u) << name;
  }
}

TEST(Checkpoint, IsReplacedAndNothingElseIs) {
  const TempFolder folder;
  const Setting s = setting(2, 0);
  save_trained(s, folder / "c", 1);
  // Leftovers of a crash are removed. A folder with anything else in it is not changed.
  std::filesystem::copy(folder / "c", folder / "c.saving", std::filesystem::copy_options::recursive);
  std::filesystem::remove(folder / "c.saving/checkpoint.json");
  save_trained(s, folder / "c/", 2);
  EXPECT_FALSE(std::filesystem::exists(folder / "c.saving"));
  EXPECT_EQ(inspect(folder / "c")->optimizer_steps, 2);
  auto refused = [&](const char* words) {
    with_engines(kThreads, s, [&](Engine& engine, Rank) {
      fill(engine);
      const Status saved = save(engine, folder / "c");
      EXPECT_EQ(saved.code(), StatusCode::kInvalidArgument);
      expect_names(saved, {"rank 0", words});
    });
  };
  write_bytes(folder / "c/tokenizer.json", "{}");
  refused("tokenizer.json");
  EXPECT_EQ(inspect(folder / "c")->optimizer_steps, 2);
  std::filesystem::remove(folder / "c/tokenizer.json");
  std::filesystem::create_directory(folder / "c.saving");
  write_bytes(folder / "c.saving/diary.txt", "");
  refused("diary.txt");
  EXPECT_TRUE(std::filesystem::exists(folder / "c.saving/diary.txt"));
  std::filesystem::remove_all(folder / "c.saving");
  std::filesystem::remove_all(folder / "c");
  write_bytes(folder / "c", "a file");
  refused("not a folder");
}

TEST(Checkpoint, MistakesOfASaveAreNamedOnAllRanks) {
  const TempFolder folder;
  const Setting s = setting(3, 0);
  with_engines(kThreads, s, [&](Engine& engine, Rank rank) {
    fill(engine);
    expect_names(save(engine, folder / "no/such/c"), {"rank 0", "no/such/c.saving", "No such file"});
    expect_names(save(engine, ""), {"directory"});
    expect_names(save(engine, folder / "c", {.items = rank == 1 ? "[1]" : "{}"}), {"rank 1", "options.items"});
    EXPECT_FALSE(std::filesystem::exists(folder / "c.saving"));
    EXPECT_TRUE(save(engine, folder / "c", {.optimizer = false}).ok());
    const auto loaded = load(engine, folder / "c");
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    EXPECT_FALSE(loaded->has_optimizer);
  });
  Model twice;
  twice.units = {{"a.b", {{"c", {4}}}}, {"a", {{"b.c", {4}}}}};
  with_odd_engines(
      2, [&](Engine& engine, Rank) { expect_names(save(engine, folder / "d"), {"'a.b.c' too"}); }, twice);
  twice.units = {{"\xff", {{"c", {4}}}}};
  with_odd_engines(
      2, [&](Engine& engine, Rank) { expect_names(save(engine, folder / "d"), {"UTF-8"}); }, twice);
}

TEST(Checkpoint, LoadNamesWhatDoesNotFit) {
  const TempFolder folder;
  const Setting saved = setting(2, 0);
  save_trained(saved, folder / "c");
  auto fails = [&](const Model& model, const EngineOptions& options, std::initializer_list<std::string> words) {
    spawn(kThreads, 3, [&](Communicator& comm) {
      const auto plan = Plan::build(model, {.nranks = 3});
      auto engine = Engine::create(*plan, comm, options);
      ASSERT_TRUE(engine.ok()) << engine.status().to_string();
      const auto loaded = load(**engine, folder / "c");
      ASSERT_FALSE(loaded.ok());
      expect_names(loaded.status(), words);
    });
  };
  const Model model = saved.net.model();
  const EngineOptions adam{.optimizer = saved.optimizer};
  Model other = model;
  other.units[1].tensors[0].name = "weight";
  fails(other, adam, {"no tensor 'layer0.weight'"});
  other = model;
  other.units.pop_back();
  fails(other, adam, {"2 tensors are not in the plan", "layer2.b"});
  other = model;
  other.units[1].tensors[0].shape = {49};
  fails(other, adam, {"'layer0.w'", "[7, 7]", "[49]"});
  other = model;
  other.units[1].tensors[0].dtype = Dtype::kBfloat16, other.units[1].tensors[0].trainable = false;
  fails(other, adam, {"'layer0.w'", "float", "bfloat16"});
  fails(model, {.optimizer = {.rule = Rule::kSgd, .momentum = 0.9f}},
        {"exp_avg", "[momentum_buffer]", "optimizer = false"});
}

// A defect and load's error. All ranks get it, whichever rank reads the file.
TEST(Checkpoint, DamageIsNamed) {
  const TempFolder folder;
  save_trained(setting(3, 0), folder / "whole");
  const std::string shard = "/shard-00002-model-00001-of-00001.safetensors", optimizer = "/optimizer" + shard;
  auto cut = [](uint64_t left) { return [left](std::string s) { return s.substr(0, s.size() - left); }; };
  auto flip = [](size_t at) { return [at](std::string s) { return s[s.size() - at] ^= 1, s; }; };
  auto replace = [](const char* from, const char* to) {
    return [from, to](std::string s) {
      const size_t at = s.find(from);
      EXPECT_NE(at, std::string::npos) << from;
      return s.replace(at, std::strlen(from), to);
    };
  };
  struct Defect {
    std::string file;
    std::function<std::string(std::string)> damage;  // empty: removed
    bool verify;
    std::initializer_list<std::string> words;
  };
  const Defect defects[] = {
      {shard, nullptr, false, {shard, "No such file"}},
      {shard, cut(1), false, {shard, "bytes but was written with"}},
      {shard, flip(1), true, {shard, "SHA-256"}},
      {optimizer, flip(5), true, {optimizer, "SHA-256"}},
      {shard, replace("\"F32\"", "\"F64\""), false, {shard, "tensor '", "data_offsets"}},
      {shard, replace("\"layer0.w\":{\"data_", "\"layer9.w\":{\"data_"), false, {shard, "'layer0.w'", "does not hold"}},
      {"/checkpoint.json", nullptr, true, {}},  // then they are PyTorch's files: only parameters
      {"/checkpoint.json", cut(3), true, {"checkpoint.json", "a JSON object"}},
      {"/checkpoint.json", replace("rondo checkpoint", "other checkpoint"), true, {"format"}},
      {"/checkpoint.json", replace("\"version\":1", "\"version\":2"), true, {"version", "newer"}},
      {"/checkpoint.json", replace("[[0,", "[[9,"), true, {"parts", "[file, first row, rows]"}},
      {"/checkpoint.json", replace("[[0,0,", "[[0,1,"), true, {"row 0 is in no file"}},
      {"/checkpoint.json", replace("[[0,0,", "[[0,0,1"), true, {"row"}},
      {"/checkpoint.json", replace("\"shard-00001", "\"../shard-00001"), true, {"files[0].name"}},
  };
  for (const Defect& d : defects) {
    std::filesystem::remove_all(folder / "c");
    std::filesystem::copy(folder / "whole", folder / "c", std::filesystem::copy_options::recursive);
    const std::string path = folder / ("c" + d.file);
    const std::string bytes = bytes_of(path);
    if (d.damage) write_bytes(path, d.damage(bytes));
    else std::filesystem::remove(path);
    with_engines(kThreads, setting(4, 0), [&](Engine& engine, Rank) {
      const auto loaded = load(engine, folder / "c", {.verify = d.verify});
      if (d.words.size() > 0) {
        expect_names(loaded.status(), d.words);
      } else {
        ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
        EXPECT_FALSE(loaded->has_optimizer);
      }
    });
  }
}

// Files that rondo has not written: a single file, a folder with one, a folder with an index.
TEST(Checkpoint, ParametersComeFromPlainFiles) {
  const TempFolder folder;
  const Setting s = setting(3, 0);
  with_engines(kThreads, s, [&](Engine& engine, Rank) {
    fill(engine);
    EXPECT_TRUE(save_full(engine, folder / "model.safetensors").ok());
  });
  const auto tensors = read_plain(folder / "model.safetensors");
  std::filesystem::create_directory(folder / "hf");
  nlohmann::json weight_map;
  std::map<std::string, Safetensors> files;
  std::map<std::string, std::string> data;
  for (const auto& [name, t] : tensors) {
    if (name == "__metadata__") continue;
    const std::string file = name < "layer1" ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
    weight_map[name] = file;
    files[file].tensors.push_back({name, Dtype::kFloat32, t.first["shape"].get<std::vector<uint64_t>>()});
    data[file] += t.second;
  }
  for (auto& [file, header] : files) write_bytes(folder / ("hf/" + file), *encode_safetensors(&header) + data[file]);
  const std::string index = folder / "hf/model.safetensors.index.json";
  write_bytes(index, nlohmann::json{{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}.dump());
  const Alone start(s.net, s.optimizer);
  for (const std::string& path : {folder / "model.safetensors", folder.path(), folder / "hf"})
    with_engines(kThreads, setting(2, 1), [&](Engine& engine, Rank) {
      const auto loaded = load(engine, path);
      ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
      EXPECT_FALSE(loaded->has_optimizer);
      expect_equal(engine, start);
    });
  weight_map["layer0.w"] = "model-00002-of-00002.safetensors";
  write_bytes(index, nlohmann::json{{"weight_map", weight_map}}.dump());
  expect_names(inspect(folder / "hf").status(), {"layer0.w", "model-00002-of-00002", "not in it"});
  write_bytes(index, R"({"weight_map": {"a": "../x"}})");
  expect_names(inspect(folder / "hf").status(), {"weight_map.a"});
  std::filesystem::create_directory(folder / "empty");
  expect_names(inspect(folder / "empty").status(), {"not a complete checkpoint"});
  expect_names(inspect(folder / "nowhere").status(), {"nowhere", "No such file"});
}

TEST(Checkpoint, AnErrorOfTheSinkEndsTheExportOnAllRanks) {
  with_engines(kThreads, setting(3, 0), [&](Engine& engine, Rank rank) {
    fill(engine);
    int calls = 0;
    const Status s = export_full(engine, [&](const std::string& name, const Tensor&, const void*, uint64_t) {
      return ++calls < 3 ? Status() : Status(StatusCode::kSystem, "no room for " + name);
    });
    EXPECT_EQ(s.code(), StatusCode::kSystem);
    expect_names(s, {"rank 0", "no room for layer0.b"});
    EXPECT_EQ(calls, rank == 0 ? 3 : 0);
  });
}

}  // namespace
}  // namespace rondo::fsdp::testing

// Shared by tests of checkpoints: a temporary folder, training in one process that can change its number of ranks, and
// bytes of files.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "fsdp/training.h"
#include "rondo/fsdp/checkpoint.h"

namespace rondo::fsdp::testing {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "checkpoint_test_XXXXXX").string();
    path_ = ::mkdtemp(name.data()) != nullptr ? name : "";
    EXPECT_FALSE(path_.empty());
  }
  ~TempFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// Trains `steps` steps, from step `first` on.
inline void train_steps(Engine& engine, const TinyNet& net, int first, int steps, Rank rank) {
  for (int i = first; i < first + steps; ++i) {
    const Status ran = train_step(engine, net, i, 1, rank);
    ASSERT_TRUE(ran.ok()) << ran.to_string();
  }
}

/// One process that trains like `nranks` ranks for some steps, and then like another number of ranks.
class Alone {
 public:
  Alone(const TinyNet& net, const OptimizerConfig& optimizer) : net_(net), optimizer_(optimizer) {
    make_start(net, &params, &states);
  }

  void train(int nranks, int steps) {
    for (int i = 0; i < steps; ++i) step(nranks);
  }

  Parameters params;
  States states;

 private:
  Parameters gradients_of(int rank) {
    Parameters g;
    for (const auto& [name, p] : params) g[name].assign(p.size(), 0.0f);
    Pass pass(net_, static_cast<uint64_t>(step_ * 100 * 100 + rank));
    auto layer = [](int l) { return "layer" + std::to_string(l); };
    for (int l = 0; l < net_.layers; ++l)
      pass.forward_layer(l, params[key(layer(l), "w")].data(), params[key(layer(l), "b")].data());
    pass.start_backward(net_.root ? params["head.v"].data() : nullptr);
    for (int l = net_.layers - 1; l >= 0; --l)
      pass.backward_layer(l, params[key(layer(l), "w")].data(), g[key(layer(l), "w")].data(),
                          g[key(layer(l), "b")].data());
    if (net_.root) pass.backward_head(g["head.v"].data());
    return g;
  }

  void step(int nranks) {
    ++step_;
    Parameters sum = gradients_of(0);
    for (int r = 1; r < nranks; ++r)
      for (const auto& [name, g] : gradients_of(r))
        for (size_t i = 0; i < g.size(); ++i) sum[name][i] += g[i];
    for (auto& [name, p] : params) {
      for (float& g : sum[name]) g /= static_cast<float>(nranks);
      float* both[2] = {states[name][0].data(), states[name][1].data()};
      optimizer_step(optimizer_, step_, 1, p.size(), p.data(), sum[name].data(), both);
    }
  }

  const TinyNet net_;
  const OptimizerConfig optimizer_;
  int step_ = 0;
};

/// Runs fn(engine, rank) with a separate engine on every rank.
template <class Fn>
void with_engines(World world, const Setting& s, Fn fn, const rondo::testing::SpawnOptions& options = {}) {
  spawn(
      world, s.plan.nranks,
      [&](Communicator& comm) {
        const auto plan = Plan::build(s.net.model(), s.plan);
        ASSERT_TRUE(plan.ok()) << plan.status().to_string();
        auto made = Engine::create(
            *plan, comm,
            {.optimizer = s.optimizer, .deterministic = true, .device = s.device ? s.device(comm) : nullptr});
        ASSERT_TRUE(made.ok()) << made.status().to_string();
        fn(**made, comm.rank());
      },
      options);
}

/// Compares every bit that the engine owns: parameters and optimizer states.
inline void expect_equal(Engine& engine, const Alone& alone) {
  ASSERT_TRUE(engine.device().synchronize(Line::kCompute).ok());  // fake devices' memory is the host's
  const auto num_states = static_cast<size_t>(optimizer_states(engine.optimizer()));
  for (const Part& p : engine.parts()) {
    const UnitPlan& u = engine.plan().units()[static_cast<size_t>(p.unit)];
    const std::string name = key(u.name, u.tensors[p.tensor].name);
    const size_t size = p.num_elems * sizeof(float);
    EXPECT_EQ(std::memcmp(p.master, alone.params.at(name).data() + p.first, size), 0) << name << " from " << p.first;
    ASSERT_EQ(p.states.size(), num_states) << name;
    for (size_t k = 0; k < num_states; ++k)
      EXPECT_EQ(std::memcmp(p.states[k], alone.states.at(name)[k].data() + p.first, size), 0)
          << name << " state " << k << " from " << p.first;
  }
}

inline void expect_names(const Status& s, std::initializer_list<std::string> words) {
  EXPECT_FALSE(s.ok());
  for (const std::string& w : words) EXPECT_NE(s.message().find(w), std::string::npos) << w << "\n" << s.to_string();
}

// Everything that a plan may have: a tensor without rows, one without elements in its rows, a scalar, integers,
// bfloat16, frozen, tied, more ranks than rows, a unit without a name.
inline Model odd_model() {
  Model m;
  m.units.push_back({"",
                     {{"embedding", {11, 3}},
                      {"head", {11, 3}, Dtype::kFloat32, true, 1, "embedding"},
                      {"flat", {33}, Dtype::kFloat32, true, 1, "head"},
                      {"empty", {0, 5}},
                      {"thin", {4, 0}}}});
  m.units.push_back({"a",
                     {{"scalar", {}},
                      {"position", {13}, Dtype::kInt64, false},
                      {"bits", {3}, Dtype::kUint8, false},
                      {"frozen", {5, 2, 3}, Dtype::kBfloat16, false},
                      {"blocks", {7, 2}, Dtype::kFloat32, true, 4}}});
  return m;
}

template <class Fn>
void with_odd_engines(int nranks, Fn fn, const Model& model = odd_model()) {
  spawn(World::kThreads, nranks, [&](Communicator& comm) {
    const auto plan = Plan::build(model, {.nranks = nranks});
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    auto made = Engine::create(*plan, comm, {});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    fn(**made, comm.rank());
  });
}

}  // namespace rondo::fsdp::testing

// Plans: layout, buffers, the order of a step, memory and traffic, and the arithmetic of the documentation.
#include "rondo/fsdp/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace rondo::fsdp {
namespace {

Unit layer(const std::string& name, uint64_t rows, uint64_t columns) {
  return {name, {{"weight", {rows, columns}}, {"bias", {rows}}}};
}
Model layers(int n, bool root = false) {
  Model m;
  m.has_root = root;
  for (int i = 0; i < n; ++i) m.units.push_back(layer("layer" + std::to_string(i), 8, 3));
  return m;
}
Plan built(const Model& m, const Options& o) {
  auto plan = Plan::build(m, o);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return *plan;
}
int count(const std::vector<Action>& actions, Act act) {
  return static_cast<int>(std::count_if(actions.begin(), actions.end(), [&](const Action& a) { return a.act == act; }));
}

TEST(Arithmetic, OfTheExamples) {
  constexpr uint64_t kBlock = 1'600'000'000;  // parameters of a block, fp32, 8 ranks, 10 blocks
  EXPECT_EQ(payload_bytes(kBlock, 4, 8), 800'000'000u);
  EXPECT_EQ(communications_of_step(10), 30);
  EXPECT_EQ(30 * payload_bytes(kBlock, 4, 8), 24'000'000'000u);
  constexpr BufferBytes kTwo = buffer_bytes(kBlock, 4, 8);
  EXPECT_EQ(kTwo.sharded, 1'600'000'000u);
  EXPECT_EQ(kTwo.whole, 12'800'000'000u);
  EXPECT_EQ(kTwo.sharded + kTwo.whole, 14'400'000'000u);
  EXPECT_EQ(uint64_t{64000} * 5120 * 4 / (1 << 20), 1250u);
}

// The same for a plan: 10 blocks of 1.6 G parameters on 8 ranks.
TEST(Arithmetic, OfAPlanOfTheExample) {
  Model m;
  for (int i = 0; i < 10; ++i) m.units.push_back({"block" + std::to_string(i), {{"w", {1'600'000, 1000}}}});
  const Plan plan = built(m, {.nranks = 8});
  uint64_t payload = 0;
  const auto all = plan.communications(3);
  for (const Communication& c : all) {
    EXPECT_EQ(c.payload_bytes, 800'000'000u);
    payload += c.payload_bytes;
  }
  EXPECT_EQ(all.size(), 30u);
  EXPECT_EQ(payload, 24'000'000'000u);
  EXPECT_EQ(plan.num_data_buffers(), 2);
  EXPECT_EQ(plan.num_grad_buffers(), 2);
  EXPECT_EQ(plan.memory(0).data_buffers, 12'800'000'000u);
  EXPECT_EQ(plan.memory(0).grad_buffers, 12'800'000'000u);
  EXPECT_EQ(plan.memory(0).master, 8'000'000'000u);
}

TEST(Layout, PartsAreWholeRowsOneAfterTheOther) {
  Model m;
  m.units = {{"odd", {{"w", {7, 5}}, {"b", {7}}, {"none", {0, 3}}, {"one", {}}, {"v", {3, 11}}}}};
  for (int n : {1, 2, 3, 4, 5, 8, 40}) {
    const Plan plan = built(m, {.nranks = n});
    const UnitPlan& u = plan.units()[0];
    ASSERT_EQ(u.segments.size(), 1u);
    const Segment& s = u.segments[0];
    EXPECT_EQ(s.num_elems, 35u + 7 + 0 + 1 + 33);
    ASSERT_EQ(s.counts.size(), static_cast<size_t>(n));
    uint64_t at = 0;
    for (size_t r = 0; r < s.counts.size(); ++r) {
      EXPECT_EQ(s.offsets[r], at);
      for (const Placed& p : u.placed) {  // a cut within a tensor is between its rows
        const bool within = at > p.offset_elems && at < p.offset_elems + p.num_elems;
        EXPECT_EQ(within ? (at - p.offset_elems) % p.row_elems : 0, 0u);
      }
      at += s.counts[r];
    }
    EXPECT_EQ(at, s.num_elems);
  }
}

TEST(Layout, RowsThatBelongTogetherStayTogether) {
  Model m;
  m.units = {{"blocks", {{.name = "w", .shape = {10, 4}, .rows_together = 4}}}};
  const Plan plan = built(m, {.nranks = 3});
  const Segment& s = plan.units()[0].segments[0];
  for (size_t r = 0; r + 1 < s.offsets.size(); ++r) EXPECT_TRUE(s.offsets[r + 1] % 16 == 0 || s.offsets[r + 1] == 40);
}

TEST(Layout, TypesFrozenTensorsAndTiesHaveTheirPlaces) {
  Model m;
  m.units = {{"mixed",
              {{.name = "w", .shape = {4, 4}},
               {.name = "base", .shape = {6, 2}, .trainable = false},
               {.name = "positions", .shape = {5}, .dtype = Dtype::kInt64, .trainable = false},
               {.name = "v", .shape = {4}},
               {.name = "head", .shape = {4, 4}, .tied_to = "w"}}}};
  const Plan plan = built(m, {.nranks = 2, .param_dtype = Dtype::kBfloat16, .reduce_dtype = Dtype::kFloat32});
  const UnitPlan& u = plan.units()[0];
  ASSERT_EQ(u.segments.size(), 3u);
  EXPECT_EQ(u.segments[0].num_elems, 20u);  // w, v; head is w
  EXPECT_EQ(u.placed[4].offset_elems, u.placed[0].offset_elems);
  EXPECT_EQ(u.segments[0].param, Dtype::kBfloat16);
  EXPECT_EQ(u.segments[0].reduce, Dtype::kFloat32);
  EXPECT_FALSE(u.segments[1].trainable);
  EXPECT_EQ(u.segments[2].param, Dtype::kInt64);  // never cast
  EXPECT_EQ(u.grad_bytes, 64u);                   // 20 of bfloat16, rounded up
  for (const Segment& s : u.segments) EXPECT_EQ(s.data_offset_bytes % 64, 0u);
}

TEST(Layout, MistakesAreNamed) {
  auto fails = [](const Model& m, const Options& o, std::initializer_list<const char*> words) {
    const auto plan = Plan::build(m, o);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
    for (const char* w : words)
      EXPECT_NE(plan.status().message().find(w), std::string::npos) << plan.status().to_string();
  };
  fails({}, {}, {"model.units"});
  fails(layers(1), {.nranks = 0}, {"options.nranks = 0"});
  fails(layers(1), {.nranks = 4, .shard_ranks = 3}, {"options.shard_ranks = 3", "nranks = 4"});
  fails(layers(1), {.nranks = 4, .shard_ranks = 2, .strategy = Strategy::kReplicate}, {"options.shard_ranks = 2"});
  fails(layers(1), {.forward_prefetch = -1}, {"options.forward_prefetch"});
  fails({{{"u", {{"a", {2}}, {"a", {2}}}}}}, {}, {"unit 'u'", "tensor 'a'"});
  fails({{{"u", {{.name = "a", .shape = {2}, .tied_to = "b"}}}}}, {}, {"tied to 'b'"});
  fails({{{"u", {{"a", {2}}, {.name = "b", .shape = {3}, .tied_to = "a"}}}}}, {}, {"another size"});
  fails({{{"u", {{.name = "a", .shape = {2}, .dtype = Dtype::kInt32}}}}}, {}, {"int32", "trainable"});
  fails({{{"u", {{"a", {UINT64_MAX / 2, 3}}}}}}, {}, {"more elements"});
  fails(layers(1), {.param_dtype = Dtype::kInt8}, {"int8"});
}

// Three collectives per unit and step. The root's parameters stay, so it has two.
TEST(Step, HasTheCollectivesThatItShould) {
  for (const int n : {1, 2, 5, 12}) {
    for (const bool root : {false, true}) {
      const Plan plan = built(layers(n, root), {.nranks = 4});
      EXPECT_EQ(plan.communications(0).size(), static_cast<size_t>(3 * n - (root ? 1 : 0)));
    }
    EXPECT_EQ(built(layers(n), {.nranks = 4, .keep_last = true}).communications(0).size(),
              static_cast<size_t>(3 * n - 1));
    EXPECT_EQ(built(layers(n), {.nranks = 4, .strategy = Strategy::kShardGradients}).communications(0).size(),
              static_cast<size_t>(2 * n));
    EXPECT_EQ(built(layers(n), {.nranks = 4, .strategy = Strategy::kShardOptimizer}).communications(0).size(),
              static_cast<size_t>(2 * n));
    EXPECT_EQ(built(layers(n), {.nranks = 4, .strategy = Strategy::kReplicate}).communications(0).size(),
              static_cast<size_t>(n));
    EXPECT_EQ(built(layers(n), {.nranks = 4, .strategy = Strategy::kReplicate}).communications(0, false).size(), 0u);
    EXPECT_EQ(built(layers(n), {.nranks = 4, .shard_ranks = 2}).communications(0).size(), static_cast<size_t>(4 * n));
    EXPECT_EQ(built(layers(n), {.nranks = 1}).communications(0).size(), 0u);
  }
}

TEST(Step, IsSafeWithEveryOption) {
  int plans = 0;
  for (const int n : {1, 2, 3, 4, 7})
    for (const bool root : {false, true})
      for (const Strategy strategy :
           {Strategy::kReplicate, Strategy::kShardOptimizer, Strategy::kShardGradients, Strategy::kShardAll})
        for (const BackwardPrefetch order : {BackwardPrefetch::kPre, BackwardPrefetch::kPost})
          for (const int forward : {0, 1, 2, 9})
            for (const int backward : {0, 1, 3})
              for (const int buffers : {0, 1, 2, 3})
                for (const bool keep : {false, true}) {
                  Options o;
                  o.nranks = 2;
                  o.strategy = strategy;
                  o.backward_order = order;
                  o.forward_prefetch = forward;
                  o.backward_prefetch = backward;
                  o.data_buffers = o.grad_buffers = buffers;
                  o.keep_last = keep;
                  const Plan plan = built(layers(n, root), o);
                  for (const bool reduces : {false, true}) {
                    const auto actions = plan.step(reduces);
                    const Status s = check_actions(plan, actions);
                    ASSERT_TRUE(s.ok()) << s.to_string() << "\n" << plan.describe();
                    ASSERT_EQ(count(actions, Act::kForward), n);
                    ASSERT_EQ(count(actions, Act::kBackward), n);
                    ASSERT_EQ(count(actions, Act::kReduce), count(actions, Act::kWaitReduce));
                    ASSERT_EQ(count(actions, Act::kStep), reduces ? n : 0);
                    ++plans;
                  }
                }
  EXPECT_GT(plans, 7000);
}

// The last unit is kept only if it is first in backward. An order may leave out units and name unknown ones.
TEST(Step, IsSafeInEveryOrder) {
  for (const bool keep : {false, true})
    for (const Order& order : {Order{{0, 1, 2, 3}, {1, 3, 2, 0}}, Order{{3, 1, 2, 0}, {0, 2, 1, 3}}, Order{{2}, {2}},
                               Order{{0, 1, 0, 3, 2}, {2, 3, 1}}, Order{{9, -1, 1}, {1, 1, 7}}})
      for (const int ahead : {0, 1, 3}) {
        const Plan plan =
            built(layers(4), {.nranks = 2, .forward_prefetch = ahead, .backward_prefetch = ahead, .keep_last = keep});
        const auto actions = plan.pass(PassKind::kTrain, order);
        const Status s = check_actions(plan, actions);
        ASSERT_TRUE(s.ok()) << s.to_string();
        ASSERT_EQ(count(actions, Act::kBackward), 4);
      }
}

// If prefetch is on, the next gather is issued before the unit computes, else after it.
TEST(Step, PrefetchIssuesTheNextGatherInTime) {
  auto position = [](const std::vector<Action>& a, Action what, size_t from = 0) {
    return static_cast<size_t>(std::find(a.begin() + static_cast<ptrdiff_t>(from), a.end(), what) - a.begin());
  };
  const auto pre = built(layers(4), {.nranks = 2}).step();
  EXPECT_LT(position(pre, {Act::kGather, 1}), position(pre, {Act::kForward, 0}));
  EXPECT_LT(position(pre, {Act::kGather, 2}), position(pre, {Act::kForward, 1}));
  const size_t backward = position(pre, {Act::kBackward, 3});
  const size_t again = position(pre, {Act::kGather, 2}, position(pre, {Act::kForward, 3}));
  EXPECT_LT(again, backward);
  EXPECT_LT(again, position(pre, {Act::kReduce, 3}));
  const auto post = built(layers(4), {.nranks = 2, .backward_order = BackwardPrefetch::kPost}).step();
  const size_t after = position(post, {Act::kGather, 2}, position(post, {Act::kForward, 3}));
  EXPECT_GT(after, position(post, {Act::kBackward, 3}));
  EXPECT_LT(after, position(post, {Act::kReduce, 3}));
  const auto none = built(layers(4), {.nranks = 2, .forward_prefetch = 0, .backward_prefetch = 0}).step();
  EXPECT_GT(position(none, {Act::kGather, 1}), position(none, {Act::kRelease, 0}));
}

// Lists that break an order required by shared buffers are detected.
TEST(Check, FindsWhatIsUnsafe) {
  const Plan plan = built(layers(4), {.nranks = 2});
  const auto good = plan.step();
  ASSERT_TRUE(check_actions(plan, good).ok());
  auto without = [&](Action what) {
    auto a = good;
    a.erase(std::find(a.begin(), a.end(), what));
    return check_actions(plan, a);
  };
  EXPECT_NE(without({Act::kWaitGather, 1}).message().find("before its gather"), std::string::npos);
  EXPECT_NE(without({Act::kRelease, 0}).message().find("gathered over"), std::string::npos);
  EXPECT_NE(without({Act::kWaitReduce, 3}).message().find("being reduced"), std::string::npos);
  EXPECT_NE(without({Act::kReduce, 3}).message().find("'layer3'"), std::string::npos);
  EXPECT_NE(without({Act::kBackward, 2}).message().find("before its gradients"), std::string::npos);
}

TEST(Memory, ShardsShrinkWithRanksAndBuffersDoNot) {
  Model m;
  for (int i = 0; i < 6; ++i) m.units.push_back({"u" + std::to_string(i), {{"w", {960, 10}}}});
  const Memory one = built(m, {.nranks = 1}).memory(0);
  for (const int n : {2, 3, 4, 8}) {
    const Memory many = built(m, {.nranks = n}).memory(0);
    EXPECT_EQ(many.master * static_cast<uint64_t>(n), one.master);
    EXPECT_EQ(many.optimizer * static_cast<uint64_t>(n), one.optimizer);
    EXPECT_EQ(many.data_buffers, one.data_buffers);
    EXPECT_EQ(many.data_buffers, 2u * 9600 * 4);
  }
  EXPECT_EQ(one.master, 6u * 9600 * 4);
  EXPECT_EQ(one.optimizer, 6u * 9600 * 8);
}

// The ranks' own parts are in host memory. Whole parameters and gradients, and data in transfer, stay on the device.
TEST(Memory, OffloadMovesWhatRanksOwn) {
  for (const Strategy strategy : {Strategy::kReplicate, Strategy::kShardOptimizer, Strategy::kShardAll})
    for (const bool narrow : {false, true}) {
      Options o{.nranks = 4, .strategy = strategy};
      if (narrow) o.param_dtype = Dtype::kBfloat16;
      const Plan here = built(layers(3), o);
      o.offload = true;
      const Plan there = built(layers(3), o);
      const Memory on_device = here.memory(1), m = there.memory(1);
      uint64_t elems = 0, most = 0;
      for (const UnitPlan& u : there.units()) {
        const uint64_t owned = u.segments[0].counts[strategy == Strategy::kReplicate ? 0 : 1];
        elems += owned;
        most = std::max(most, owned);
      }
      EXPECT_EQ(m.master, elems * 4);
      EXPECT_EQ(m.grads, elems * 4);
      EXPECT_EQ(m.optimizer, elems * 8);
      EXPECT_EQ(m.host, elems * 16);
      EXPECT_EQ(m.staging, most * 4);
      EXPECT_EQ(m.device(), m.data_buffers + m.grad_buffers + m.staging);
      EXPECT_EQ(m.data_buffers, on_device.data_buffers);
      EXPECT_EQ(on_device.host + on_device.staging, 0u);
      EXPECT_NE(here.hash(), there.hash());
      EXPECT_NE(there.describe().find("in host memory"), std::string::npos);
      EXPECT_EQ(here.describe().find("in host memory"), std::string::npos);
      ASSERT_TRUE(check_actions(there, there.step()).ok());
      EXPECT_EQ(count(there.step(), Act::kGather), strategy == Strategy::kShardAll ? 6 : 3);
    }
}

TEST(Memory, EveryParameterHasOneOwner) {
  for (const Strategy strategy : {Strategy::kShardOptimizer, Strategy::kShardGradients, Strategy::kShardAll})
    for (const int n : {1, 2, 3, 5, 8}) {
      const Plan plan = built(layers(3), {.nranks = n, .strategy = strategy});
      uint64_t optimizer = 0;
      for (Rank r = 0; r < n; ++r) optimizer += plan.memory(r).optimizer;
      EXPECT_EQ(optimizer, 3u * 32 * 8);
    }
}

TEST(Plan, HashTellsPlansApart) {
  std::set<uint64_t> hashes;
  for (const int n : {1, 2, 3, 4}) hashes.insert(built(layers(3), {.nranks = n}).hash());
  hashes.insert(built(layers(3), {.nranks = 4, .strategy = Strategy::kShardGradients}).hash());
  hashes.insert(built(layers(3), {.nranks = 4, .param_dtype = Dtype::kBfloat16}).hash());
  hashes.insert(built(layers(3), {.nranks = 4, .param_dtype = Dtype::kFloat16}).hash());
  Model renamed = layers(3);
  renamed.units[1].tensors[0].name = "v";
  hashes.insert(built(renamed, {.nranks = 4}).hash());
  EXPECT_EQ(hashes.size(), 8u);
  EXPECT_EQ(built(layers(3), {.nranks = 4}).hash(), built(layers(3), {.nranks = 4}).hash());
}

TEST(Plan, DescriptionSaysWhatHappens) {
  const std::string text = built(layers(2), {.nranks = 2}).describe();
  for (const char* words :
       {"ZeRO-3", "parameters  in buffer    gradients  in buffer", "2 ranks", "layer1", "owned parameters",
        "traffic of a step: 6 collectives", "FORWARD 0;", "reduce 1;", "step 0;"})
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
}

}  // namespace
}  // namespace rondo::fsdp

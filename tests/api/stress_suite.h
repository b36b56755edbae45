// Random operations: collective, count, dtype, op, algorithm, placement, and kind of call (blocking, asynchronous with
// several outstanding, grouped), all from one seed that all ranks share. Every result is verified.
//
// Each rank waits for its asynchronous work in its own order. The seed is printed; --gtest_random_seed=N sets it.
// RONDO_TEST_STRESS_FACTOR=N runs N times as many (scripts/stress.sh).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <future>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "conformance/case_runner.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"
#include "support/stress.h"

namespace rondo::testing {

inline constexpr Dtype kStressDtypes[] = {Dtype::kInt8,     Dtype::kUint64,  Dtype::kFloat16,   Dtype::kFloat32,
                                          Dtype::kBfloat16, Dtype::kFloat64, Dtype::kFloat8E5m2};
inline constexpr Op kStressOps[] = {Op::kSum, Op::kProd, Op::kMax, Op::kMin, Op::kAvg, Op::kPremulSum};
inline constexpr uint64_t kMaxTotalElems = 120000;

/// Random choices that are equal on all ranks.
class StressPlan {
 public:
  enum class Issue { kBlocking, kAsynchronous, kGroup };

  StressPlan(uint64_t seed, int nranks, std::span<const Dtype> dtypes) : random_(seed), nranks_(nranks), dtypes_(dtypes) {
    for (const Algorithm& a : all_algorithms()) algorithms_.push_back(&a);
  }
  uint64_t below(uint64_t n) { return random_() % n; }
  Issue issue() {
    const uint64_t x = below(10);
    return x < 3 ? Issue::kBlocking : x < 8 ? Issue::kAsynchronous : Issue::kGroup;
  }
  Case next() {
    Case c;
    c.algorithm = algorithms_[below(algorithms_.size())];
    c.collective = c.algorithm->collective;
    c.dtype = dtypes_[below(dtypes_.size())];
    c.op = kStressOps[below(std::size(kStressOps))];
    if (below(3) == 0 || !applies(c)) c.algorithm = nullptr;
    c.in_place = below(2) == 0;
    c.variant = static_cast<uint32_t>(below(13));
    c.root = static_cast<Rank>(below(static_cast<uint64_t>(nranks_)));
    const double most = std::log(static_cast<double>(kMaxTotalElems / static_cast<uint64_t>(nranks_)));
    c.count_elems = static_cast<uint64_t>(std::exp(most * static_cast<double>(below(1000)) / 999)) - 1;
    return c;
  }

 private:
  std::mt19937_64 random_;
  int nranks_;
  std::span<const Dtype> dtypes_;
  std::vector<const Algorithm*> algorithms_;
};

/// One rank's side of the stress.
class StressRank {
 public:
  StressRank(Communicator& comm, const DataTables& tables, uint64_t seed, std::span<const Dtype> dtypes = kStressDtypes)
      : comm_(comm),
        tables_(tables),
        plan_(seed, comm.size(), dtypes),
        own_random_(seed + static_cast<uint64_t>(comm.rank())),
        area_bytes_(CallBuffers::area_bytes(kMaxTotalElems * 8)),
        heap_(kNumSlots / 2 * 2 * area_bytes_) {}

  /// Collective. Half of the slots are in memory that all ranks access, half on the heap. A call's slot differs among
  /// ranks, so that direct plans must agree to fall back.
  Status open() {
    RONDO_TRY_ASSIGN(void* shared, comm_.alloc(heap_.size()));
    for (size_t i = 0; i < kNumSlots; ++i) {
      uint8_t* areas = (i % 2 == 0 ? static_cast<uint8_t*>(shared) : heap_.data()) + i / 2 * 2 * area_bytes_;
      slots_[i].buffers = CallBuffers(&tables_, comm_.rank(), areas, areas + area_bytes_);
    }
    return Status();
  }

  uint64_t num_operations() const { return num_operations_; }

  /// Ends at the first wrong result or error.
  Status run(int num_steps) {
    for (int step = 0; step < num_steps; ++step) {
      const Status status = one_step();
      if (!status.ok())
        return Status(status.code(), "step " + std::to_string(step) + ": " + std::string(status.message()));
    }
    while (num_busy_ > 0) RONDO_TRY(finish_one());
    return Status();
  }

 private:
  static constexpr size_t kNumSlots = 8;
  struct Slot {
    CallBuffers buffers;
    Case c;
    Work work;
    bool busy = false;
  };

  Status one_step() {
    switch (plan_.issue()) {
      case StressPlan::Issue::kBlocking: {
        Slot* slot = nullptr;
        RONDO_TRY(start(&slot, false));
        return judge(*slot);
      }
      case StressPlan::Issue::kAsynchronous: {
        Slot* slot = nullptr;
        return start(&slot, true);
      }
      case StressPlan::Issue::kGroup: return group();
    }
    return Status();
  }

  // Takes a free slot (if there is none, finishes an older call) and issues the plan's next case.
  Status start(Slot** taken, bool asynchronous) {
    while (num_busy_ == kNumSlots) RONDO_TRY(finish_one());
    Slot& slot = *std::find_if(std::begin(slots_), std::end(slots_), [](const Slot& s) { return !s.busy; });
    slot.c = plan_.next();
    slot.buffers.begin(slot.c);
    *taken = &slot;
    const Status status = issue(comm_, tables_, slot.c, slot.buffers, asynchronous ? &slot.work : nullptr);
    if (!status.ok()) return Status(status.code(), describe(slot.c) + ": " + std::string(status.message()));
    slot.busy = true;
    ++num_busy_;
    ++num_operations_;
    return Status();
  }

  Status group() {
    const uint64_t num_calls = plan_.below(4) + 1;
    while (num_busy_ + num_calls > kNumSlots) RONDO_TRY(finish_one());  // a group must not wait inside
    std::vector<Slot*> blocking;
    group_start();
    Status status;
    for (uint64_t i = 0; i < num_calls && status.ok(); ++i) {
      Slot* slot = nullptr;
      const bool asynchronous = plan_.below(3) == 0;
      status = start(&slot, asynchronous);
      if (!asynchronous) blocking.push_back(slot);
    }
    const Status end = group_end();
    RONDO_TRY(status);
    RONDO_TRY(end);
    for (Slot* slot : blocking) RONDO_TRY(judge(*slot));
    return Status();
  }

  // Waits for the end in one wait, in short waits, or until the work's function is called.
  Status end_of(Work& work) {
    switch (own_random_() % 3) {
      case 0: return work.wait();
      case 1: {
        Status s;
        while ((s = work.wait_for(0.0001)).code() == StatusCode::kInProgress) {
        }
        return s;
      }
      default: {
        const auto end = std::make_shared<std::promise<Status>>();
        RONDO_TRY(work.on_done([end](const Status& s) { end->set_value(s); }));
        return end->get_future().get();
      }
    }
  }

  // Waits for one outstanding call, chosen by this rank only.
  Status finish_one() {
    size_t k = own_random_() % kNumSlots;
    while (!slots_[k].busy) k = (k + 1) % kNumSlots;
    const Status status = end_of(slots_[k].work);
    if (!status.ok()) return Status(status.code(), describe(slots_[k].c) + ": " + std::string(status.message()));
    return judge(slots_[k]);
  }

  Status judge(Slot& slot) {
    slot.busy = false;
    --num_busy_;
    const std::string wrong = slot.buffers.judge();
    return wrong.empty() ? Status() : Status(StatusCode::kInternal, describe(slot.c) + ": " + wrong);
  }

  Communicator& comm_;
  const DataTables& tables_;
  StressPlan plan_;
  std::mt19937_64 own_random_;
  uint64_t area_bytes_;
  std::vector<uint8_t> heap_;
  Slot slots_[kNumSlots];
  size_t num_busy_ = 0;
  uint64_t num_operations_ = 0;
};

class Stress : public ::testing::TestWithParam<std::tuple<World, int>> {};

TEST_P(Stress, RandomOperations) {
  const auto [world, nranks] = GetParam();
  const uint64_t seed = stress_seed(nranks);
  const int num_steps = stress_factor() * (kSanitized ? 300 : nranks > 4 ? 2000 : 5000);
  Shared<SharedCounter> done;
  const DataTables tables(nranks, seed, kStressDtypes, kStressOps);
  SpawnOptions options;
  options.config.deadline_s = 30;
  options.deadline_s = 110 * stress_factor();
  spawn(
      world, nranks,
      [&](Communicator& comm) -> Status {
        StressRank rank(comm, tables, seed);
        RONDO_TRY(rank.open());
        RONDO_TRY(rank.run(num_steps));
        if (comm.rank() == 0) done->add(static_cast<uint32_t>(rank.num_operations()));
        return Status();
      },
      options);
  std::printf("seed %llu: %u operations, 0 wrong\n", static_cast<unsigned long long>(seed), done->value());
}

/// Communicators that come and go. In each round the world splits at random. Each part is split again into one with the
/// same ranks in another order. Two threads of every rank use both at once. Then all are destroyed, in each rank's own
/// order.
class StressTree {
 public:
  StressTree(Communicator& world, uint64_t seed)
      : world_(world), seed_(seed), own_random_(seed + static_cast<uint64_t>(world.rank()) * 77) {
    for (int n = 1; n <= world.size(); ++n) tables_.emplace_back(n, seed, kTreeDtypes, kTreeOps);
  }
  uint64_t num_operations() const { return num_operations_; }

  Status round(int number, int num_steps) {
    std::mt19937_64 shared(seed_ * 7919 + static_cast<uint64_t>(number));
    const uint64_t num_colours = 1 + shared() % 3;
    int colour = kNoColour, key = 0;
    for (Rank r = 0; r < world_.size(); ++r) {
      const uint64_t c = shared() % (num_colours + 1), k = shared() % 100;
      if (r != world_.rank()) continue;
      colour = c == num_colours ? kNoColour : static_cast<int>(c);
      key = static_cast<int>(k);
    }
    RONDO_TRY_ASSIGN(std::unique_ptr<Communicator> part, world_.split(colour, key));
    if ((part == nullptr) != (colour == kNoColour)) return Status(StatusCode::kInternal, "split gave no part, or one too many");
    if (part == nullptr) return Status();
    RONDO_TRY_ASSIGN(std::unique_ptr<Communicator> twin, part->split(0, -part->rank()));
    Status other;
    const uint64_t twins_seed = seed_ + static_cast<uint64_t>(number * 8 + colour + 4);
    std::thread thread([&] { other = work(*twin, twins_seed, num_steps); });
    const Status mine = work(*part, seed_ + static_cast<uint64_t>(number * 8 + colour), num_steps);
    thread.join();
    if (own_random_() % 2 == 0) part.reset();
    else twin.reset();
    RONDO_TRY(mine);
    return other;
  }

 private:
  static constexpr Dtype kTreeDtypes[] = {Dtype::kInt8, Dtype::kFloat16, Dtype::kFloat32, Dtype::kUint64};
  static constexpr Op kTreeOps[] = {Op::kSum, Op::kProd, Op::kMax, Op::kMin, Op::kAvg, Op::kPremulSum};

  Status work(Communicator& comm, uint64_t seed, int num_steps) {
    StressRank rank(comm, tables_[static_cast<size_t>(comm.size() - 1)], seed, kTreeDtypes);
    RONDO_TRY(rank.open());
    RONDO_TRY(rank.run(num_steps));
    if (comm.rank() == 0) num_operations_ += rank.num_operations();
    return Status();
  }

  Communicator& world_;
  uint64_t seed_;
  std::mt19937_64 own_random_;
  std::vector<DataTables> tables_;  // by size - 1
  std::atomic<uint64_t> num_operations_{0};
};

TEST_P(Stress, CommunicatorsThatComeAndGo) {
  const World world = std::get<0>(GetParam());
  const int nranks = std::get<1>(GetParam());
  const int num_rounds = stress_factor() * (kSanitized ? 2 : 6), num_steps = kSanitized ? 40 : 120;
  Shared<SharedCounter> done;
  SpawnOptions options;
  options.config.deadline_s = 30;
  options.deadline_s = 110 * stress_factor();
  spawn(
      world, nranks,
      [&](Communicator& comm) -> Status {
        StressTree tree(comm, stress_seed(nranks));
        for (int round = 0; round < num_rounds; ++round) {
          const Status s = tree.round(round, num_steps);
          if (!s.ok()) return Status(s.code(), "round " + std::to_string(round) + ": " + std::string(s.message()));
        }
        done->add(static_cast<uint32_t>(tree.num_operations()));
        return Status();
      },
      options);
  std::printf("seed %llu: %u operations, 0 wrong\n", static_cast<unsigned long long>(stress_seed(nranks)), done->value());
}

inline std::vector<int> stress_rank_counts() {
  if (kSanitized) return {2, 3, 5};
  return {1, 2, 3, 4, 7, 8};
}
inline std::string stress_name(const ::testing::TestParamInfo<std::tuple<World, int>>& info) {
  return std::to_string(std::get<1>(info.param)) + "_" + world_name(std::get<0>(info.param));
}

}  // namespace rondo::testing

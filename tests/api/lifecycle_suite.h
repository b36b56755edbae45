// Making and destroying communicators: few and many ranks, no data, own memory, any order of departure, and release of
// all system resources.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "support/process_state.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {

class Lifecycle : public ::testing::TestWithParam<World> {};

TEST_P(Lifecycle, AnyNumberOfRanks) {
  for (const int nranks : {1, 2, 3, 5, 9, 16}) {
    spawn(GetParam(), nranks, [&](Communicator& comm) {
      ASSERT_EQ(comm.size(), nranks);
      ASSERT_GE(comm.rank(), 0);
      ASSERT_LT(comm.rank(), nranks);
      EXPECT_TRUE(is_ok(comm.error()));
      for (int i = 0; i < 20; ++i) EXPECT_TRUE(works(comm, static_cast<uint64_t>(i) * 1000));
    });
  }
}

TEST_P(Lifecycle, ACommunicatorThatWasNeverUsed) {
  spawn_owning(GetParam(), 5, [](std::unique_ptr<Communicator> comm) { EXPECT_TRUE(is_ok(comm->error())); });
}

TEST_P(Lifecycle, NothingToMove) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    float in[3] = {1, 2, 3}, out[3] = {4, 5, 6};
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(is_ok(comm.all_reduce(in, out, 0, Dtype::kFloat32, Op::kSum)));
      EXPECT_TRUE(is_ok(comm.all_reduce(in, in, 0, Dtype::kFloat64, Op::kAvg)));
      EXPECT_TRUE(is_ok(comm.reduce_scatter(in, out, 0, Dtype::kFloat32, Op::kMax)));
      EXPECT_TRUE(is_ok(comm.all_gather(in, out, 0, Dtype::kInt8)));
      EXPECT_TRUE(is_ok(comm.all_gather(nullptr, nullptr, 0, Dtype::kInt8))) << "no elements need no memory";
    }
    EXPECT_EQ(out[0], 4);
    EXPECT_EQ(out[2], 6);
    EXPECT_TRUE(works(comm));
  });
}

TEST_P(Lifecycle, OneRankCopies) {
  spawn(GetParam(), 1, [](Communicator& comm) {
    const float in[3] = {1, 2, 3};
    float out[3] = {};
    ASSERT_TRUE(is_ok(comm.all_reduce(in, out, 3, Dtype::kFloat32, Op::kAvg)));
    EXPECT_TRUE(std::equal(in, in + 3, out));
    std::fill(out, out + 3, 0.f);
    ASSERT_TRUE(is_ok(comm.reduce_scatter(in, out, 3, Dtype::kFloat32, Op::kProd)));
    EXPECT_TRUE(std::equal(in, in + 3, out));
    std::fill(out, out + 3, 0.f);
    ASSERT_TRUE(is_ok(comm.all_gather(in, out, 3, Dtype::kFloat32)));
    EXPECT_TRUE(std::equal(in, in + 3, out));
    const float scale = 4;
    CallOptions options;
    options.premul = &scale;
    ASSERT_TRUE(is_ok(comm.all_reduce(in, out, 3, Dtype::kFloat32, Op::kPremulSum, &options)));
    EXPECT_EQ(out[2], 12);
    ASSERT_TRUE(is_ok(comm.all_reduce(out, out, 3, Dtype::kFloat32, Op::kSum)));
    EXPECT_EQ(out[2], 12);
  });
}

TEST_P(Lifecycle, ThePlanExplainsItself) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    const std::string small = comm.explain_plan(Collective::kAllReduce, 2, Dtype::kFloat32, Op::kSum);
    const std::string large = comm.explain_plan(Collective::kAllReduce, 64 << 20, Dtype::kFloat32, Op::kSum);
    bool known = false;
    for (const char* name : {"ring", "one_shot", "two_shot", "tree", "recursive_doubling", "direct"})
      known = known || small.find(name) != std::string::npos;
    EXPECT_TRUE(known) << small;
    EXPECT_FALSE(large.empty());
    EXPECT_EQ(large.find('\n'), std::string::npos) << "one line";
  });
}

TEST_P(Lifecycle, AllocatedMemoryIsZeroedAlignedAndShared) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    auto first = comm.alloc(100001);
    auto second = comm.alloc(4096);
    ASSERT_TRUE(is_ok(first.status()));
    ASSERT_TRUE(is_ok(second.status()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*first) % 4096, 0u);
    const auto* bytes = static_cast<const uint8_t*>(*first);
    EXPECT_TRUE(std::all_of(bytes, bytes + 100001, [](uint8_t b) { return b == 0; }));
    auto* x = static_cast<float*>(*first);
    for (const char* algorithm : {"direct", "ring", "two_shot"}) {
      for (uint64_t i = 0; i < 25000; ++i) x[i] = simple_value(comm.rank(), i);
      CallOptions options;
      options.algorithm = algorithm;
      ASSERT_TRUE(is_ok(comm.all_reduce(x, x, 25000, Dtype::kFloat32, Op::kSum, &options)));
      for (uint64_t i = 0; i < 25000; ++i) ASSERT_EQ(x[i], simple_sum(3, i)) << algorithm << ", element " << i;
    }
    EXPECT_TRUE(is_ok(comm.free(*second)));
    EXPECT_TRUE(is_ok(comm.free(*first)));
    int local = 0;
    EXPECT_TRUE(fails_with(comm.free(&local), StatusCode::kInvalidArgument, {}));
    EXPECT_TRUE(works(comm));
  });
}

// Existing host memory: threads access it directly, processes cannot map it.
TEST_P(Lifecycle, RegisteredHostMemory) {
  const bool threads = GetParam() == World::kThreads;
  spawn(GetParam(), 2, [threads](Communicator& comm) {
    std::vector<float> heap(100);
    const Status s = comm.register_memory(heap.data(), 400);
    if (threads) {
      EXPECT_TRUE(is_ok(s));
      EXPECT_TRUE(is_ok(comm.deregister_memory(heap.data())));
    } else {
      EXPECT_TRUE(fails_with(s, StatusCode::kUnsupported, {"rondo_alloc"}));
      EXPECT_TRUE(fails_with(comm.deregister_memory(heap.data()), StatusCode::kInvalidArgument, {"not registered"}));
    }
    EXPECT_TRUE(works(comm));
  });
}

TEST_P(Lifecycle, MemoryIsFreedWithTheCommunicator) {
  spawn_owning(GetParam(), 2, [](std::unique_ptr<Communicator> comm) {
    ASSERT_TRUE(is_ok(comm->alloc(1 << 20).status()));
    EXPECT_TRUE(works(*comm));
  });
}

TEST_P(Lifecycle, RanksLeaveInAnyOrder) {
  const std::vector<std::vector<Rank>> orders = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}};
  for (const std::vector<Rank>& order : orders) {
    Shared<SharedCounter> num_left;
    spawn_owning(GetParam(), 4, [&](std::unique_ptr<Communicator> comm) {
      EXPECT_TRUE(works(*comm));
      const auto turn = std::find(order.begin(), order.end(), comm->rank()) - order.begin();
      ASSERT_TRUE(num_left->wait_at_least(static_cast<uint32_t>(turn), 30));
      comm.reset();
      num_left->add();
    });
  }
}

/// A process's resources. Only rank 0 checks them. The others wait, so that nothing changes meanwhile.
struct Held {
  std::set<std::string> descriptors;
  size_t threads = 0;
  Mappings mappings;
};
inline Held held_now() { return {open_descriptors(), num_threads(), shared_mappings()}; }

inline void expect_same(const Held& before, const Held& after) {
  EXPECT_EQ(before.descriptors.size(), after.descriptors.size());
  for (const std::string& d : after.descriptors)
    if (before.descriptors.size() != after.descriptors.size() && before.descriptors.count(d) == 0)
      ADD_FAILURE() << "descriptor left open: " << d;
  EXPECT_EQ(before.threads, after.threads);
  EXPECT_LE(after.mappings.count, before.mappings.count) << "shared mappings left";
  EXPECT_LE(after.mappings.bytes, before.mappings.bytes) << "bytes of shared mappings left";
}

TEST_P(Lifecycle, TwoHundredCommunicatorsLeaveNothingBehind) {
  constexpr int kWarmUp = 5, kTotal = kSanitized ? 40 : 205;
  struct Meeting {
    Barrier before, looked, after, done;
  };
  Shared<Meeting> meeting;
  SpawnOptions options;
  options.deadline_s = 90;
  spawn(
      GetParam(), 3,
      [&](Communicator& comm) {
        Held before;
        for (int i = 0; i < kTotal; ++i) {
          if (i == kWarmUp) {
            ASSERT_TRUE(meeting->before.arrive_and_wait(3, 30));
            if (comm.rank() == 0) before = held_now();
            ASSERT_TRUE(meeting->looked.arrive_and_wait(3, 30));
          }
          auto made = second_communicator(comm);
          ASSERT_TRUE(is_ok(made.status())) << "communicator " << i;
          ASSERT_TRUE(works(**made, static_cast<uint64_t>(i % 7) * 3000)) << "communicator " << i;
        }
        ASSERT_TRUE(meeting->after.arrive_and_wait(3, 60));
        if (comm.rank() == 0) expect_same(before, held_now());
        ASSERT_TRUE(meeting->done.arrive_and_wait(3, 30));
      },
      options);
}

}  // namespace rondo::testing

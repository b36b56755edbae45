// Errors are reported quickly on every rank concerned: bad arguments, ranks that disagree, missing ranks, abort.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {

class Errors : public WorldTest {};

inline std::string rank_text(Rank r) { return "rank " + std::to_string(r); }

// ---- bad arguments: refused on the calling rank, without harm to the communicator

TEST_P(Errors, NullBuffersAreNamed) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    float x[16] = {};
    const std::string me = rank_text(comm.rank());
    const auto refuse = [&](const Status& s, const char* argument) {
      EXPECT_TRUE(fails_with(s, StatusCode::kInvalidArgument, {me, argument, "null"}));
    };
    refuse(comm.all_reduce(nullptr, x, 4, Dtype::kFloat32, Op::kSum), "in");
    refuse(comm.all_reduce(x, nullptr, 4, Dtype::kFloat32, Op::kSum), "out");
    refuse(comm.reduce_scatter(nullptr, x, 4, Dtype::kFloat32, Op::kSum), "in");
    refuse(comm.reduce_scatter(x, nullptr, 4, Dtype::kFloat32, Op::kSum), "out");
    refuse(comm.all_gather(nullptr, x, 4, Dtype::kFloat32), "in");
    refuse(comm.all_gather(x, nullptr, 4, Dtype::kFloat32), "out");
    EXPECT_TRUE(works(comm));
  });
}

TEST_P(Errors, UnknownDtypesOpsAndAlgorithmsAreNamed) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    float x[16] = {};
    const std::string me = rank_text(comm.rank());
    EXPECT_TRUE(fails_with(comm.all_reduce(x, x, 4, static_cast<Dtype>(77), Op::kSum), StatusCode::kInvalidArgument,
                           {me, "dtype", "77"}));
    EXPECT_TRUE(fails_with(comm.all_reduce(x, x, 4, Dtype::kFloat32, static_cast<Op>(66)), StatusCode::kInvalidArgument,
                           {me, "op", "66"}));
    EXPECT_TRUE(fails_with(comm.all_reduce(x, x, 4, Dtype::kFloat16, Op::kBitAnd), StatusCode::kUnsupported,
                           {me, "band", "half", "integer"}));
    CallOptions options;
    options.algorithm = "carrier_pigeon";
    EXPECT_TRUE(fails_with(comm.all_reduce(x, x, 4, Dtype::kFloat32, Op::kSum, &options), StatusCode::kInvalidArgument,
                           {me, "algorithm", "carrier_pigeon"}));
    options.algorithm = "tree";  // it exists, but not for this collective
    EXPECT_TRUE(fails_with(comm.all_gather(x, x + 8, 4, Dtype::kFloat32, &options), StatusCode::kInvalidArgument,
                           {me, "algorithm", "tree", "all_gather"}));
    EXPECT_TRUE(works(comm));
  });
}

TEST_P(Errors, UnsupportedTypeRowsAndPromisesAreNamed) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    float x[16] = {};
    const std::string me = rank_text(comm.rank());
    TypeRow row{Dtype::kFloat32, Dtype::kInt8, Dtype::kFloat32, Dtype::kFloat32};
    CallOptions options;
    options.row = &row;
    EXPECT_TRUE(fails_with(comm.all_reduce(x, x, 4, Dtype::kFloat32, Op::kSum, &options), StatusCode::kUnsupported,
                           {me, "int8"}));
    options = {};
    options.promises = 1u << 20;
    EXPECT_TRUE(fails_with(comm.all_reduce(x, x, 4, Dtype::kFloat32, Op::kSum, &options), StatusCode::kUnsupported,
                           {me, "promise", "0x100000"}));
    EXPECT_TRUE(works(comm));
  });
}

TEST_P(Errors, PremulSumNeedsItsScale) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    float x[4] = {1, 2, 3, 4};
    EXPECT_TRUE(fails_with(comm.all_reduce(x, x, 4, Dtype::kFloat32, Op::kPremulSum), StatusCode::kInvalidArgument,
                           {rank_text(comm.rank()), "premul"}));
    EXPECT_TRUE(works(comm));
  });
}

// A direct sum reads its peers' raw inputs and does not have their scales.
TEST_P(Errors, DirectRefusesPremulSum) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    auto memory = comm.alloc(4096);
    ASSERT_TRUE(is_ok(memory.status()));
    const float scale = 2;
    CallOptions options;
    options.algorithm = "direct";
    options.premul = &scale;
    const char* why = GetParam() == World::kHosts ? "several hosts" : "premul_sum";
    EXPECT_TRUE(fails_with(comm.all_reduce(*memory, *memory, 4, Dtype::kFloat32, Op::kPremulSum, &options),
                           StatusCode::kUnsupported, {rank_text(comm.rank()), "direct", why}));
    EXPECT_TRUE(works(comm));
  });
}

TEST_P(Errors, ScalesMayDifferByRank) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    const auto scale = static_cast<float>(comm.rank() + 2);
    CallOptions options;
    options.premul = &scale;
    float x[2] = {1, 10};
    ASSERT_TRUE(is_ok(comm.all_reduce(x, x, 2, Dtype::kFloat32, Op::kPremulSum, &options)));
    EXPECT_EQ(x[0], 2 + 3 + 4);
    EXPECT_EQ(x[1], 20 + 30 + 40);
  });
}

TEST_P(Errors, PartialOverlapsAreRefused) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    const Rank rank = comm.rank();
    const std::string me = rank_text(rank);
    std::vector<float> x(64);
    const auto refuse = [&](const Status& s) {
      EXPECT_TRUE(fails_with(s, StatusCode::kInvalidArgument, {me, "overlap"}));
    };
    refuse(comm.all_reduce(x.data(), x.data() + 1, 8, Dtype::kFloat32, Op::kSum));
    refuse(comm.all_reduce(x.data() + 7, x.data(), 8, Dtype::kFloat32, Op::kSum));
    refuse(comm.reduce_scatter(x.data(), x.data() + (rank + 1) % 3 * 8, 8, Dtype::kFloat32, Op::kSum));
    refuse(comm.reduce_scatter(x.data() + 4, x.data(), 8, Dtype::kFloat32, Op::kSum));
    refuse(comm.all_gather(x.data() + (rank + 1) % 3 * 8, x.data(), 8, Dtype::kFloat32));
    refuse(comm.all_gather(x.data() + 23, x.data(), 8, Dtype::kFloat32));
    EXPECT_TRUE(works(comm));
    // Adjacent buffers do not overlap.
    EXPECT_TRUE(is_ok(comm.all_reduce(x.data(), x.data() + 8, 8, Dtype::kFloat32, Op::kSum)));
    EXPECT_TRUE(is_ok(comm.reduce_scatter(x.data(), x.data() + 24, 8, Dtype::kFloat32, Op::kSum)));
    EXPECT_TRUE(is_ok(comm.all_gather(x.data() + 24, x.data(), 8, Dtype::kFloat32)));
  });
}

TEST_P(Errors, ACountThatOverflowsIsRefused) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    float x[4] = {};
    EXPECT_TRUE(fails_with(comm.all_gather(x, x, UINT64_MAX / 4, Dtype::kFloat32), StatusCode::kInvalidArgument,
                           {rank_text(comm.rank()), "count"}));
    EXPECT_TRUE(works(comm));
  });
}

TEST_P(Errors, ABadCallInAGroupIsRefusedAtOnceAndTheRestRuns) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    SimpleAllReduce good(comm, 500);
    float x[4] = {};
    group_start();
    EXPECT_TRUE(
        fails_with(comm.all_reduce(nullptr, x, 4, Dtype::kFloat32, Op::kSum), StatusCode::kInvalidArgument, {"in"}));
    EXPECT_TRUE(is_ok(good.start(comm, nullptr)));
    EXPECT_TRUE(is_ok(group_end()));
    EXPECT_EQ(good.judge(), "");
    EXPECT_TRUE(works(comm));
  });
}

// ---- ranks that disagree

/// One side of a disagreement.
struct OneSide {
  Collective collective = Collective::kAllReduce;
  uint64_t count_elems = 1000;
  Dtype dtype = Dtype::kFloat32;
  Op op = Op::kSum;
  const char* algorithm = nullptr;
  Rank root = 0;
};
inline Status make(Communicator& comm, const OneSide& call, Work* work = nullptr) {
  static thread_local std::vector<double> in, out;
  const uint64_t room = (call.count_elems + 1) * static_cast<uint64_t>(comm.size());
  in.assign(room, 0);
  out.assign(room, 0);
  CallOptions options;
  options.algorithm = call.algorithm;
  const void* from = in.data();
  void* to = out.data();
  switch (call.collective) {
    case Collective::kAllReduce:
      return comm.all_reduce(from, to, call.count_elems, call.dtype, call.op, &options, work);
    case Collective::kReduceScatter:
      return comm.reduce_scatter(from, to, call.count_elems, call.dtype, call.op, &options, work);
    case Collective::kAllGather: return comm.all_gather(from, to, call.count_elems, call.dtype, &options, work);
    case Collective::kBroadcast:
      return comm.broadcast(from, to, call.count_elems, call.dtype, call.root, &options, work);
    case Collective::kReduce:
      return comm.reduce(from, to, call.count_elems, call.dtype, call.op, call.root, &options, work);
    case Collective::kAllToAll: return comm.all_to_all(from, to, call.count_elems, call.dtype, &options, work);
    case Collective::kGather: return comm.gather(from, to, call.count_elems, call.dtype, call.root, &options, work);
    case Collective::kScatter: return comm.scatter(from, to, call.count_elems, call.dtype, call.root, &options, work);
    case Collective::kBarrier: return comm.barrier(&options, work);
    case Collective::kSend:
    case Collective::kRecv: break;
  }
  return Status(StatusCode::kInternal, "not a collective of all ranks");
}

struct Disagreement {
  const char* name;
  OneSide most, odd;
  std::initializer_list<std::string> words;  // in every rank's text
};
inline const Disagreement kDisagreements[] = {
    {"count", {.count_elems = 1000}, {.count_elems = 1001}, {"1000", "1001"}},
    {"count_many_and_none", {.count_elems = 500000}, {.count_elems = 0}, {"500000", "0"}},
    {"count_few_and_many", {.count_elems = 1}, {.count_elems = 400000}, {"400000"}},
    {"dtype", {.dtype = Dtype::kFloat32}, {.dtype = Dtype::kInt32}, {"float", "int32"}},
    {"op", {.op = Op::kSum}, {.op = Op::kMax}, {"sum", "max"}},
    {"collective", {}, {.collective = Collective::kAllGather}, {"all_reduce", "all_gather"}},
    {"halves",
     {.collective = Collective::kReduceScatter},
     {.collective = Collective::kAllGather},
     {"reduce_scatter", "all_gather"}},
    {"algorithm", {.algorithm = "ring"}, {.algorithm = "two_shot"}, {"ring", "two_shot"}},
};

inline void check_disagreement(World world, int nranks, Rank odd, const Disagreement& d, bool asynchronous) {
  Shared<Barrier> all_up, all_checked;
  spawn(world, nranks, [&](Communicator& comm) {
    EXPECT_TRUE(works(comm));
    ASSERT_TRUE(all_up->arrive_and_wait(nranks, 20));
    const Stopwatch watch;
    Work work;
    const OneSide& mine = comm.rank() == odd ? d.odd : d.most;
    Status status = make(comm, mine, asynchronous ? &work : nullptr);
    if (asynchronous && status.ok()) status = work.wait();
    // Without data there is no message: such a rank may get the error only in its next call.
    if (mine.count_elems == 0 && status.ok()) status = make(comm, {});
    EXPECT_LT(watch.seconds(), kSanitized ? 10 : 2) << d.name;
    EXPECT_TRUE(fails_with(status, StatusCode::kMismatch, d.words)) << d.name << " on rank " << comm.rank();
    EXPECT_NE(status.to_string().find("rank "), std::string::npos) << status.to_string();
    EXPECT_EQ(comm.error().code(), StatusCode::kMismatch) << d.name << " on rank " << comm.rank();
    EXPECT_FALSE(make(comm, {}).ok()) << "the communicator refuses work after " << d.name;
    ASSERT_TRUE(all_checked->arrive_and_wait(nranks, 20));
  });
}

TEST_P(Errors, DisagreementIsNamedOnEveryRank) {
  for (const Disagreement& d : kDisagreements) check_disagreement(GetParam(), 3, 1, d, false);
}

TEST_P(Errors, DisagreementIsNamedByAsynchronousWork) {
  for (const Disagreement& d : kDisagreements) check_disagreement(GetParam(), 2, 0, d, true);
}

TEST_P(Errors, DisagreementAmongManyRanks) { check_disagreement(GetParam(), 9, 8, kDisagreements[0], false); }

TEST_P(Errors, DisagreementOfEveryAlgorithm) {
  for (const char* algorithm : {"one_shot", "two_shot", "ring", "tree", "recursive_doubling"}) {
    const OneSide most{.count_elems = 3000, .algorithm = algorithm}, odd{.count_elems = 2999, .algorithm = algorithm};
    check_disagreement(GetParam(), 4, 2, {algorithm, most, odd, {"3000", "2999"}}, false);
  }
}

// ---- missing ranks

TEST_P(Errors, AnAbsentRankIsNamedAtTheDeadline) {
  constexpr Rank kAbsent = 1;
  Shared<SharedCounter> num_ended;
  SpawnOptions options;
  options.config.deadline_s = 1;
  spawn(
      GetParam(), 3,
      [&](Communicator& comm) {
        EXPECT_TRUE(works(comm));
        if (comm.rank() == kAbsent) {
          EXPECT_TRUE(num_ended->wait_at_least(2, 20));
          return;
        }
        const Stopwatch watch;
        const Status status = make(comm, {});
        EXPECT_TRUE(fails_with(status, StatusCode::kTimeout, {rank_text(kAbsent), "all_reduce"}));
        EXPECT_GE(watch.seconds(), 0.5);
        EXPECT_LT(watch.seconds(), kSanitized ? 10 : 2.5);
        num_ended->add();  // stays until both have seen it, because leaving is a different error
        EXPECT_TRUE(num_ended->wait_at_least(2, 20));
      },
      options);
}

TEST_P(Errors, ACallMayHaveItsOwnDeadline) {
  Shared<SharedCounter> num_ended;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    EXPECT_TRUE(works(comm));
    if (comm.rank() == 1) {
      EXPECT_TRUE(num_ended->wait_at_least(1, 20));
      return;
    }
    CallOptions options;
    options.deadline_s = 0.3;
    float x = 0;
    const Stopwatch watch;
    const Status status = comm.all_reduce(&x, &x, 1, Dtype::kFloat32, Op::kSum, &options);
    EXPECT_TRUE(fails_with(status, StatusCode::kTimeout, {rank_text(1)}));
    EXPECT_LT(watch.seconds(), kSanitized ? 10 : 2);
    num_ended->add();
  });
}

TEST_P(Errors, ADeadlineHoldsForAsynchronousWorkToo) {
  Shared<SharedCounter> num_ended;
  SpawnOptions options;
  options.config.deadline_s = 0.5;
  spawn(
      GetParam(), 2,
      [&](Communicator& comm) {
        if (comm.rank() == 1) {
          EXPECT_TRUE(num_ended->wait_at_least(1, 20));
          return;
        }
        Work work;
        ASSERT_TRUE(is_ok(make(comm, {}, &work)));
        const Stopwatch watch;  // no thread waits, but it ends anyway
        while (work.test().code() == StatusCode::kInProgress && watch.seconds() < 10) std::this_thread::yield();
        EXPECT_TRUE(fails_with(work.test(), StatusCode::kTimeout, {rank_text(1)}));
        num_ended->add();
      },
      options);
}

TEST_P(Errors, ARankThatLeftIsNamedSoon) {
  constexpr Rank kLeaver = 2;
  Shared<SharedCounter> num_ended;
  spawn_owning(GetParam(), 3, [&](std::unique_ptr<Communicator> comm) {
    EXPECT_TRUE(works(*comm));
    if (comm->rank() == kLeaver) {
      comm.reset();
      return;
    }
    const Stopwatch watch;
    EXPECT_TRUE(fails_with(make(*comm, {}), StatusCode::kPeerLost, {rank_text(kLeaver)}));
    EXPECT_LT(watch.seconds(), kSanitized ? 10 : 2);
    num_ended->add();
    EXPECT_TRUE(num_ended->wait_at_least(2, 20));  // otherwise the other may first see this one leave
  });
}

// The first rank to reach its deadline names the late rank and leaves. The others report the same rank.
TEST_P(Errors, ALeaverSaysForWhichFailureItLeaves) {
  Shared<SharedCounter> told;
  spawn_owning(GetParam(), 4, [&](std::unique_ptr<Communicator> comm) {
    const Rank r = comm->rank();
    EXPECT_TRUE(works(*comm));
    if (r == 2) {  // makes no call
      EXPECT_TRUE(told->wait_at_least(3, 50));
      return;
    }
    CallOptions options;
    options.deadline_s = r == 1 ? 0.3 : 40;
    SimpleAllReduce call(*comm, 1000);
    const Status s = r == 0 ? comm->split(0, 0).status() : call.start(*comm, nullptr, &options);
    // In a grid a rank requests status pages only from its neighbours, and rank 2 is not a neighbour of rank 1.
    const bool grid = GetParam() == World::kHosts && std::getenv("RONDO_TEST_FULL_MESH") != nullptr;
    EXPECT_TRUE(fails_with(s, r == 0 ? StatusCode::kPeerLost : StatusCode::kTimeout,
                           {"rank 1", grid ? "no response from rank 2" : "rank 2 has not called it"}));
    if (r == 1) comm.reset();
    told->add();
    EXPECT_TRUE(told->wait_at_least(3, 50));
  });
}

// ---- abort

TEST_P(Errors, AbortEndsACallThatIsUnderWay) {
  Shared<SharedCounter> num_calling, num_ended;
  spawn(GetParam(), 3, [&](Communicator& comm) {
    EXPECT_TRUE(works(comm));
    if (comm.rank() == 2) {  // makes no call
      EXPECT_TRUE(num_ended->wait_at_least(2, 20));
      // With shared memory an abort arrives at once. Over a network it takes time, and a call may still succeed.
      const bool at_once = GetParam() == World::kThreads || GetParam() == World::kProcesses;
      const Stopwatch watch;
      Status s = make(comm, {});
      while (!at_once && s.ok() && watch.seconds() < 1) s = make(comm, {});
      EXPECT_TRUE(fails_with(s, StatusCode::kAborted, {rank_text(0)}));
      return;
    }
    std::thread aborter;
    if (comm.rank() == 0) {
      aborter = std::thread([&] {
        EXPECT_TRUE(num_calling->wait_at_least(2, 20));
        comm.abort();
      });
    }
    num_calling->add();
    const Stopwatch watch;
    EXPECT_TRUE(fails_with(make(comm, {}), StatusCode::kAborted, {rank_text(0)})) << "on rank " << comm.rank();
    EXPECT_LT(watch.seconds(), kSanitized ? 10 : 2);
    EXPECT_EQ(comm.error().code(), StatusCode::kAborted);
    if (aborter.joinable()) aborter.join();
    num_ended->add();
  });
}

TEST_P(Errors, AbortBeforeACallRefusesIt) {
  Shared<Barrier> aborted;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    if (comm.rank() == 1) comm.abort();
    ASSERT_TRUE(aborted->arrive_and_wait(2, 20));
    EXPECT_TRUE(fails_with(make(comm, {}), StatusCode::kAborted, {rank_text(1)}));
  });
}

TEST_P(Errors, AbortEndsAsynchronousWork) {
  Shared<SharedCounter> num_ended;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      EXPECT_TRUE(num_ended->wait_at_least(1, 20));
      return;
    }
    Work work;
    ASSERT_TRUE(is_ok(make(comm, {}, &work)));
    comm.abort();
    EXPECT_TRUE(fails_with(work.wait(), StatusCode::kAborted, {rank_text(0)}));
    num_ended->add();
  });
}

}  // namespace rondo::testing

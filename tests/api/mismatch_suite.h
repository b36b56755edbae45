// Ranks that make different calls: a rank that can see it reports it, at the latest in the next call on that
// connection, and no later call succeeds with the data of an earlier one.
//
// Every rank has a list of calls. One rank's list is altered in one place. A call's data depends on the rank and the
// call's place in the list, so every successful call can be checked: its result must be as if all ranks had made it at
// that place. stress.h sets the seed and the number of cases.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"
#include "support/stress.h"

namespace rondo::testing {

struct ListedCall {
  Collective collective = Collective::kBarrier;
  uint64_t count_elems = 0;
  Dtype dtype = Dtype::kInt32;
  Op op = Op::kSum;
  Rank root = 0;
  bool operator==(const ListedCall&) const = default;

  bool barrier() const { return collective == Collective::kBarrier; }
  uint64_t in_elems(int nranks) const {
    const bool many = collective == Collective::kReduceScatter || collective == Collective::kScatter ||
                      collective == Collective::kAllToAll;
    return count_elems * static_cast<uint64_t>(many ? nranks : 1);
  }
  uint64_t out_elems(int nranks) const {
    const bool many = collective == Collective::kAllGather || collective == Collective::kGather ||
                      collective == Collective::kAllToAll;
    return count_elems * static_cast<uint64_t>(many ? nranks : 1);
  }
  bool has_result(Rank rank) const {
    return !barrier() && ((collective != Collective::kReduce && collective != Collective::kGather) || rank == root);
  }
  std::string text() const {
    return std::string(collective_name(collective)) + " of " + std::to_string(count_elems) + " " +
           std::string(dtype_name(dtype)) + " " + std::string(op_name(op)) + " root " + std::to_string(root);
  }
};

/// Element `elem` of `rank`'s data for the call at `place`. Sums over ranks are exact in every type used.
inline double listed_value(Rank rank, size_t place, uint64_t elem) {
  return static_cast<double>((rank + 1) * 40 + static_cast<int>(place) * 7 + static_cast<int>(elem % 5));
}

inline double listed_result(const ListedCall& c, int nranks, Rank rank, size_t place, uint64_t elem) {
  const auto mine = static_cast<uint64_t>(rank) * c.count_elems;
  auto joined = [&](uint64_t e) {
    double all = listed_value(0, place, e);
    for (Rank r = 1; r < nranks; ++r) {
      const double x = listed_value(r, place, e);
      all = c.op == Op::kMax ? std::max(all, x) : all + x;
    }
    return all;
  };
  switch (c.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce: return joined(elem);
    case Collective::kReduceScatter: return joined(mine + elem);
    case Collective::kBroadcast: return listed_value(c.root, place, elem);
    case Collective::kScatter: return listed_value(c.root, place, mine + elem);
    case Collective::kAllToAll:
      return listed_value(static_cast<Rank>(elem / c.count_elems), place, mine + elem % c.count_elems);
    default: return listed_value(static_cast<Rank>(elem / c.count_elems), place, elem % c.count_elems);
  }
}

/// The calls of a rank. `wrong`: errors in results of successful calls.
class ListedCalls {
 public:
  explicit ListedCalls(Communicator& comm) : comm_(comm) {}

  Status make(const ListedCall& c, size_t place, std::string* wrong) {
    switch (c.dtype) {
      case Dtype::kFloat32: return make_of<float>(c, place, wrong);
      case Dtype::kInt64: return make_of<int64_t>(c, place, wrong);
      default: return make_of<int32_t>(c, place, wrong);
    }
  }

 private:
  template <class T>
  Status make_of(const ListedCall& c, size_t place, std::string* wrong) {
    const int n = comm_.size();
    std::vector<T> in(c.in_elems(n)), out(c.out_elems(n), T(-1));
    for (uint64_t i = 0; i < in.size(); ++i) in[i] = static_cast<T>(listed_value(comm_.rank(), place, i));
    RONDO_TRY(issue(c, in.data(), out.data()));
    for (uint64_t i = 0; i < out.size() && c.has_result(comm_.rank()); ++i)
      if (const double right = listed_result(c, n, comm_.rank(), place, i); static_cast<double>(out[i]) != right) {
        *wrong = "rank " + std::to_string(comm_.rank()) + ", call " + std::to_string(place) + " (" + c.text() +
                 "): element " + std::to_string(i) + " is " + std::to_string(out[i]) + " instead of " +
                 std::to_string(right);
        break;
      }
    return Status();
  }
  Status issue(const ListedCall& c, const void* in, void* out) {
    switch (c.collective) {
      case Collective::kAllReduce: return comm_.all_reduce(in, out, c.count_elems, c.dtype, c.op);
      case Collective::kReduce: return comm_.reduce(in, out, c.count_elems, c.dtype, c.op, c.root);
      case Collective::kReduceScatter: return comm_.reduce_scatter(in, out, c.count_elems, c.dtype, c.op);
      case Collective::kAllGather: return comm_.all_gather(in, out, c.count_elems, c.dtype);
      case Collective::kBroadcast: return comm_.broadcast(in, out, c.count_elems, c.dtype, c.root);
      case Collective::kGather: return comm_.gather(in, out, c.count_elems, c.dtype, c.root);
      case Collective::kScatter: return comm_.scatter(in, out, c.count_elems, c.dtype, c.root);
      case Collective::kAllToAll: return comm_.all_to_all(in, out, c.count_elems, c.dtype);
      default: return comm_.barrier();
    }
  }
  Communicator& comm_;
};

/// Runs lists of which one is altered. Each rank's result is in memory that processes share.
class MismatchRun {
 public:
  static constexpr int kMaxRanks = 6;
  using Lists = std::vector<std::vector<ListedCall>>;

  MismatchRun(World world, Lists lists) : world_(world), lists_(std::move(lists)) {}

  /// Adds a failure for a wrong result, for an error that names neither a mismatch nor its consequence, and for a
  /// mismatch that no rank reported.
  void check(const std::string& what) {
    SpawnOptions options;
    options.config.deadline_s = kSanitized ? 40 : 15;
    options.deadline_s = kSanitized ? 100 : 40;
    const int nranks = static_cast<int>(lists_.size());
    spawn_owning(
        world_, nranks,
        [&](std::unique_ptr<Communicator> comm) {
          const Rank rank = comm->rank();
          const Status status = run_list(*comm, what);
          if (status.ok()) return;
          EXPECT_TRUE(status.code() == StatusCode::kMismatch || status.code() == StatusCode::kPeerLost)
              << what << ", rank " << rank << ": " << status.to_string();
          if (status.code() == StatusCode::kMismatch) detected_->add();
        },
        options);
    EXPECT_GE(detected_->value(), 1u) << what << ": no rank has detected it";
  }

 private:
  Status run_list(Communicator& comm, const std::string& what) {
    const std::vector<ListedCall>& list = lists_[static_cast<size_t>(comm.rank())];
    ListedCalls calls(comm);
    Status status;
    for (size_t i = 0; i < list.size() && status.ok(); ++i) {
      std::string wrong;
      status = calls.make(list[i], i, &wrong);
      EXPECT_EQ(wrong, "") << what;
    }
    ended_->add();
    if (!status.ok()) return status;
    EXPECT_TRUE(ended_->wait_at_least(static_cast<uint32_t>(comm.size()), 60)) << what;
    return comm.finalize();
  }

  World world_;
  Lists lists_;
  Shared<SharedCounter> ended_, detected_;
};

class Mismatch : public WorldTest {
 protected:
  void check(const std::string& what, int nranks, Rank odd, const std::vector<ListedCall>& most,
             const std::vector<ListedCall>& odd_list) {
    MismatchRun::Lists lists(static_cast<size_t>(nranks), most);
    lists[static_cast<size_t>(odd)] = odd_list;
    MismatchRun(GetParam(), lists).check(what);
  }
};

// Unexpected messages stay on their connections. The next call of the same shape must not take them.
TEST_P(Mismatch, AnotherRootOnceLeavesNoOldData) {
  for (const Collective collective : {Collective::kBroadcast, Collective::kScatter}) {
    const ListedCall c{.collective = collective, .count_elems = 10};
    ListedCall odd = c;
    odd.root = 1;
    check(std::string(collective_name(collective)), 3, 1, {c, c, c, {}, c}, {c, odd, c, {}, c});
  }
}

TEST_P(Mismatch, AnotherRootOnceIsNamedInTheNextCall) {
  Shared<SharedCounter> ended;
  spawn(GetParam(), 3, [&](Communicator& comm) {
    int x[10] = {};
    const Rank odd = comm.rank() == 1 ? 1 : 0;
    for (int call = 1; call <= 3; ++call)
      EXPECT_TRUE(is_ok(comm.broadcast(x, x, 10, Dtype::kInt32, call == 3 ? odd : 0)));
    const Status next = comm.broadcast(x, x, 10, Dtype::kInt32, 0);
    if (comm.rank() == 1)
      EXPECT_TRUE(fails_with(next, StatusCode::kMismatch,
                             {"operation #3", "root", "rank 1 calls broadcast of 10 int32 from rank 1",
                              "broadcast of 10 int32 from rank 0"}));
    ended->add();
    EXPECT_TRUE(ended->wait_at_least(3, 20));
  });
}

TEST_P(Mismatch, ASkippedCallDoesNotPassABarrier) {
  const ListedCall c{.collective = Collective::kBroadcast, .count_elems = 10};
  check("skipped by a receiver", 3, 1, {c, c, c, {}, c}, {c, c, {}, c});
  check("skipped by the root", 3, 0, {c, c, c, {}, c}, {c, c, {}, c});
}

TEST_P(Mismatch, ADoubledCallDoesNotPassABarrier) {
  const ListedCall c{.collective = Collective::kScatter, .count_elems = 10};
  check("doubled by a receiver", 3, 2, {c, c, {}, c}, {c, c, c, {}, c});
  check("doubled by the root", 3, 0, {c, c, {}, c}, {c, c, c, {}, c});
}

// If all calls are equal, the difference shows only at the end.
TEST_P(Mismatch, ASkippedLastCallIsNamedByFinalize) {
  if (GetParam() == World::kTcp) GTEST_SKIP() << "the status pages of other hosts exist only on request";
  const ListedCall c{.collective = Collective::kBroadcast, .count_elems = 10};
  check("skipped at the end", 3, 1, {c, c, c}, {c, c});
}

/// A list of calls, and the same list with one alteration, from a seed.
class MismatchPlan {
 public:
  explicit MismatchPlan(uint64_t seed) : random_(seed) {
    nranks_ = 2 + static_cast<int>(below(4));
    do {
      odd_rank_ = static_cast<Rank>(below(static_cast<uint64_t>(nranks_)));
      draw();
      alter();
    } while (odd_ == most_);
  }
  MismatchRun::Lists lists() const {
    MismatchRun::Lists all(static_cast<size_t>(nranks_), most_);
    all[static_cast<size_t>(odd_rank_)] = odd_;
    return all;
  }
  std::string text() const {
    return std::to_string(nranks_) + " ranks, rank " + std::to_string(odd_rank_) + ": " + kind_;
  }

 private:
  uint64_t below(uint64_t n) { return random_() % n; }
  ListedCall any_call() {
    constexpr Collective kAll[] = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                                   Collective::kBroadcast, Collective::kReduce,        Collective::kGather,
                                   Collective::kScatter,   Collective::kAllToAll,      Collective::kBarrier};
    constexpr uint64_t kCounts[] = {1, 2, 10, 17, 1000, 40000};
    constexpr Dtype kDtypes[] = {Dtype::kInt32, Dtype::kFloat32, Dtype::kInt64};
    ListedCall c{.collective = kAll[below(std::size(kAll))]};
    if (c.barrier()) return c;
    c.count_elems = kCounts[below(std::size(kCounts))];
    c.dtype = kDtypes[below(std::size(kDtypes))];
    if (collective_reduces(c.collective) && below(2) == 0) c.op = Op::kMax;
    if (collective_is_rooted(c.collective)) c.root = static_cast<Rank>(below(static_cast<uint64_t>(nranks_)));
    return c;
  }
  void draw() {
    most_.clear();
    const uint64_t num_calls = 3 + below(6);
    const bool one_shape = below(2) == 0;
    const ListedCall same = any_call();
    for (uint64_t i = 0; i < num_calls; ++i) most_.push_back(one_shape ? same : any_call());
  }
  // The tail uses every connection of the altered call again. Its last two calls differ, to reveal an extra or missing
  // call.
  void alter() {
    const size_t at = below(most_.size());
    const ListedCall c = most_[at];
    ListedCall other = c;
    const bool rooted = collective_is_rooted(c.collective), reduces = collective_reduces(c.collective);
    odd_ = most_;
    const auto here = odd_.begin() + static_cast<ptrdiff_t>(at);
    switch (below(7)) {
      case 0:
        kind_ = "root";
        if (rooted) other.root = (c.root + 1 + static_cast<Rank>(below(static_cast<uint64_t>(nranks_ - 1)))) % nranks_;
        *here = other;
        break;
      case 1:
        kind_ = "count";
        if (!c.barrier()) other.count_elems = c.count_elems + 1 + below(100);
        *here = other;
        break;
      case 2:
        kind_ = "type";
        if (!c.barrier()) other.dtype = c.dtype == Dtype::kInt32 ? Dtype::kFloat32 : Dtype::kInt32;
        *here = other;
        break;
      case 3:
        kind_ = "operator";
        if (reduces) other.op = c.op == Op::kSum ? Op::kMax : Op::kSum;
        *here = other;
        break;
      case 4:
        kind_ = "order";
        if (at + 1 < odd_.size()) std::swap(*here, *(here + 1));
        break;
      case 5:
        kind_ = "skipped";
        odd_.erase(here);
        break;
      default:
        kind_ = "doubled";
        odd_.insert(here, c);
        break;
    }
    kind_ += " at call " + std::to_string(at) + " (" + c.text() + ")";
    if (odd_ == most_) return;
    for (std::vector<ListedCall>* list : {&most_, &odd_}) {
      if (at + 1 < list->size()) list->push_back((*list)[at + 1]);
      list->insert(list->end(), {c, other, {.collective = Collective::kAllGather, .count_elems = 3}, ListedCall{}});
    }
  }

  std::mt19937_64 random_;
  int nranks_ = 0;
  Rank odd_rank_ = 0;
  std::vector<ListedCall> most_, odd_;
  std::string kind_;
};

TEST_P(Mismatch, OfAnyKind) {
  const uint64_t seed = stress_seed(0);
  const int num_cases = stress_factor() * (kSanitized ? 15 : 60);
  for (int i = 0; i < num_cases && !HasFailure(); ++i) {
    const MismatchPlan plan(seed * 100'003 + static_cast<uint64_t>(i));
    MismatchRun(GetParam(), plan.lists()).check("case " + std::to_string(i) + ", " + plan.text());
  }
  if (!HasFailure())
    std::printf("seed %llu: %d mismatches, 0 undetected, 0 wrong\n", static_cast<unsigned long long>(seed), num_cases);
}

}  // namespace rondo::testing

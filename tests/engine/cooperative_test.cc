// The cooperative engine: all lanes of all ranks in one thread, in a seeded order, to try and repeat thousands of
// interleavings.
// labels: unit
// timeout: 120
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "api/communicator_impl.h"
#include "engine/host_backend.h"

namespace rondo {

// Steps one lane, chosen by a random number, of the operations that have started. Returns true if a message moved.
struct LaneByLane {
  static bool step(OperationQueue& q, uint64_t random) {
    size_t started = 0;
    while (started < q.active_.size() && (q.active_[started]->started || q.start(started))) ++started;
    if (started == 0) return false;
    const size_t i = random % started;
    Operation& op = *q.active_[i];
    op.waits_for_turn = i != 0;
    const size_t lanes = op.program->lanes.size();
    const auto lane = static_cast<uint32_t>(random / started % lanes);
    const bool moved = op.lanes_left != 0 && !op.program->lanes[lane].empty() &&
                       op.lanes[lane].loop < op.program->num_loops && q.executor_.step(op, lane);
    const bool carried = q.needs_progress_ && q.transport_.progress();
    return q.retire_if_done(i) || moved || carried;
  }
};

namespace {

// Two all-reduces in flight on every rank: a rank may run ahead from the first to the second.
class Flight {
 public:
  Flight(const Algorithm& algorithm, int nranks, uint64_t count) : algorithm_(algorithm), count_(count) {
    auto made = Communicator::init_all(nranks);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    comms_ = std::move(*made);
    for (int op = 0; op < 2; ++op)
      for (int r = 0; r < nranks; ++r) {
        in_.emplace_back(count);
        out_.emplace_back(count, -1);
        for (uint64_t i = 0; i < count; ++i) in_.back()[i] = value(op, r, i);
      }
  }

  Status admit(int op, size_t rank) {
    const size_t k = static_cast<size_t>(op) * comms_.size() + rank;
    Call call{{Collective::kAllReduce, count_, 0, Dtype::kInt64}, in_[k].data(), out_[k].data()};
    call.shape.algorithm = &algorithm_;
    call.in_bytes = call.out_bytes = count_ * 8;
    call.deadline_ns = 600'000'000'000;
    RONDO_TRY_ASSIGN(auto admitted, impl_of(*comms_[rank]).host().admit(call));
    batch_.push_back(std::move(admitted));
    return {};
  }

  // Steps randomly chosen lanes (seeded) until all are done. kTimeout if no lane can move: a deadlock.
  Status run(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto done = [](const auto& op) { return op->done.load(std::memory_order_acquire); };
    for (uint64_t stuck = 0; !std::ranges::all_of(batch_, done);) {
      OperationQueue& q = impl_of(*comms_[random() % comms_.size()]).queue();
      if (!q.drive()) continue;
      const bool moved = LaneByLane::step(q, random());
      q.leave();
      stuck = moved ? 0 : stuck + 1;
      if (stuck > 10000 * (comms_.size() + batch_.size()))
        return Status(StatusCode::kTimeout, "no lane can move, seed " + std::to_string(seed));
    }
    const auto failed = std::ranges::find_if(batch_, [](const auto& op) { return !op->status.ok(); });
    return failed != batch_.end() ? (*failed)->status : Status();
  }

  int wrong() const {
    int wrong = 0;
    for (size_t k = 0; k < out_.size(); ++k)
      for (uint64_t i = 0; i < count_; ++i) {
        int64_t sum = 0;
        for (size_t r = 0; r < comms_.size(); ++r) sum += value(static_cast<int>(k / comms_.size()), static_cast<int>(r), i);
        wrong += out_[k][i] != sum;
      }
    return wrong;
  }

 private:
  static int64_t value(int op, int rank, uint64_t i) { return static_cast<int64_t>(i) * 7 + rank * 1001 + op * 31; }
  const Algorithm& algorithm_;
  const uint64_t count_;
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::vector<std::vector<int64_t>> in_, out_;
  std::vector<std::shared_ptr<Operation>> batch_;
};

TEST(Cooperative, EveryAllReduceInManyOrders) {
  for (const Algorithm& a : all_algorithms()) {
    if (a.collective != Collective::kAllReduce) continue;
    for (int nranks : {1, 2, 3, 5, 8})
      for (uint64_t seed = 1; seed <= 5; ++seed) {
        Flight flight(a, nranks, 977 * seed);  // inline and simple, ragged
        for (int op = 0; op < 2; ++op)
          for (size_t r = 0; r < static_cast<size_t>(nranks); ++r) ASSERT_TRUE(flight.admit(op, r).ok());
        const Status s = flight.run(seed);
        ASSERT_TRUE(s.ok()) << a.name << ", " << nranks << " ranks, seed " << seed << ": " << s.to_string();
        ASSERT_EQ(flight.wrong(), 0) << a.name << ", " << nranks << " ranks, seed " << seed;
      }
  }
}

TEST(Cooperative, ManyRanksInOneThread) {
  Flight flight(*find_algorithm(Collective::kAllReduce, "ring"), 40, 100);
  for (int op = 0; op < 2; ++op)
    for (size_t r = 0; r < 40; ++r) ASSERT_TRUE(flight.admit(op, r).ok());
  const Status s = flight.run(7);
  ASSERT_TRUE(s.ok()) << s.to_string();
  EXPECT_EQ(flight.wrong(), 0);
}

TEST(Cooperative, RankThatIsMissingIsADeadlockAndNoHang) {
  auto flight = std::make_unique<Flight>(*find_algorithm(Collective::kAllReduce, "ring"), 3, 100);
  ASSERT_TRUE(flight->admit(0, 0).ok());
  ASSERT_TRUE(flight->admit(0, 1).ok());
  const Status s = flight->run(1);
  EXPECT_EQ(s.code(), StatusCode::kTimeout) << s.to_string();
  EXPECT_NE(s.message().find("seed 1"), std::string_view::npos) << s.to_string();
  ASSERT_TRUE(flight->admit(0, 2).ok());  // it comes late, and all succeed
  EXPECT_TRUE(flight->run(2).ok());
}

}  // namespace
}  // namespace rondo

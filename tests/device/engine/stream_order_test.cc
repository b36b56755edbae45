// The order of instructions in streams: each rank runs sequentially, with kStreamSlots messages per connection, and
// none waits forever.
// timeout: 120
#include "device/engine/stream_order.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

#include "algorithms/registry.h"
#include "kernels/kernels.h"
#include "support/shared.h"

namespace rondo {
namespace {

// A transport whose connections have no memory.
class NoMemory final : public Transport {
 public:
  std::string_view name() const override { return "none"; }
  Expected<FifoView> open_writer(const ConnectionKey&) override { return FifoView(); }
  std::optional<FifoView> open_reader(const ConnectionKey&) override { return std::nullopt; }
  uint32_t counter_index(const ConnectionKey& key, Rank reader) const override {
    return key.group == kUnicast ? 0 : static_cast<uint32_t>(reader);
  }
  StatusPage* page(Rank) override { return nullptr; }
  PairPage* pair_page(Rank) override { return nullptr; }
  Doorbell* bell(Rank) override { return nullptr; }
  void raise_abort(Rank) override {}
  std::optional<Rank> aborted_by() override { return std::nullopt; }
  bool departed(Rank) override { return false; }
  std::optional<PeerLoss> find_lost() override { return std::nullopt; }
  Expected<void*> alloc(uint64_t) override { return Status(StatusCode::kInternal, "no memory here"); }
  Status free(void*) override { return Status(StatusCode::kInternal, "no memory here"); }
  void keep(std::shared_ptr<void>) override {}
};

Transport& nowhere() {
  static NoMemory transport;
  return transport;
}
const KernelTable& kernels() { return *kernel_table(SimdLevel::kBaseline); }

using Name = std::tuple<Rank, Rank, uint16_t, uint16_t, bool>;
Name name_of(const ConnectionKey& k) { return {k.writer, k.reader, k.tag, k.group, k.inline_only}; }

// Executes every rank's row strictly in order: a blocked step blocks its rank. Counts the messages separately, by the
// readers of each port. Returns the number of steps left when nothing can move.
size_t left_over(const std::vector<const Program*>& programs, const std::vector<std::vector<StreamStep>>& orders,
                 uint32_t slots) {
  std::map<Name, uint64_t> posted;
  std::map<std::pair<Name, Rank>, uint64_t> read;
  std::vector<size_t> at(programs.size());
  auto readers = [&](const WritePort& w) {
    std::vector<Rank> all;
    if (w.key.group == kUnicast) all.push_back(w.key.reader);
    else all.assign(w.counters.begin(), w.counters.end());
    return all;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < programs.size(); ++r)
      while (at[r] < orders[r].size()) {
        const StreamStep& step = orders[r][at[r]];
        const ProgramStep& s = programs[r]->lanes[step.lane][step.pc];
        bool ready = true;
        for (const ReadPort* p : s.recv)
          ready = ready && read[{name_of(p->key), static_cast<Rank>(r)}] < posted[name_of(p->key)];
        for (const WritePort* w : s.send)
          for (const Rank reader : readers(*w))
            ready = ready && posted[name_of(w->key)] - read[{name_of(w->key), reader}] < slots;
        if (!ready) break;
        for (const ReadPort* p : s.recv) ++read[{name_of(p->key), static_cast<Rank>(r)}];
        for (const WritePort* w : s.send) ++posted[name_of(w->key)];
        ++at[r];
        moved = true;
      }
  }
  size_t left = 0;
  for (size_t r = 0; r < programs.size(); ++r) left += orders[r].size() - at[r];
  return left;
}

std::vector<const Program*> pointers(const AllPrograms& all) {
  std::vector<const Program*> p;
  for (const auto& program : all.programs) p.push_back(program.get());
  return p;
}

ProgramShape shape_of(const Algorithm& a, uint64_t count) {
  ProgramShape shape;
  shape.operation = {a.collective, Dtype::kFloat32, Op::kSum, algorithm_index(a), count, 0, 0, false};
  shape.message_bytes = 4096;
  return shape;
}

TEST(StreamOrderTest, EveryAlgorithmEndsInItsOrder) {
  size_t fake = 0;
  for (const Algorithm& a : all_algorithms()) {
    if (a.direct) continue;
    for (const int nranks : testing::kSanitized ? std::vector{1, 2, 3, 5} : std::vector{1, 2, 3, 4, 5, 7, 8, 13})
      for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{17}, uint64_t{100'003}}) {
        const AllPrograms all =
            std::move(*compile_all(a, nranks, nranks - 1, shape_of(a, count), nowhere(), kernels()));
        auto orders = play_through(all.programs);
        ASSERT_TRUE(orders.ok()) << a.name << " " << orders.status().to_string();
        ASSERT_EQ(left_over(pointers(all), *orders, kStreamSlots), 0u)
            << a.name << " of " << collective_name(a.collective) << ", " << nranks << " ranks, " << count
            << " elements";
        // Nothing is left out: the program's number of messages.
        for (size_t r = 0; r < all.programs.size(); ++r) {
          uint64_t reads = 0, expected = 0;
          for (const StreamStep& s : (*orders)[r]) reads += all.programs[r]->lanes[s.lane][s.pc].recv.size();
          for (const auto& [port, steps] : all.programs[r]->reads) expected += steps;
          ASSERT_EQ(reads, expected) << a.name << ", rank " << r << " of " << nranks;
        }
        ++fake;
      }
  }
  EXPECT_GT(fake, 300u);
}

// The order matters: lanes in their recorded order, one after the other, would wait forever.
TEST(StreamOrderTest, LanesOneAfterTheOtherWouldHang) {
  const Algorithm* ring = find_algorithm(Collective::kAllReduce, "ring");
  ASSERT_NE(ring, nullptr);
  const AllPrograms all = std::move(*compile_all(*ring, 4, 0, shape_of(*ring, 100'003), nowhere(), kernels()));
  std::vector<std::vector<StreamStep>> naive;
  for (const auto& p : all.programs) {
    naive.emplace_back();
    for (size_t lane = 0; lane < p->lanes.size(); ++lane)
      for (uint64_t loop = 0; loop < p->num_loops; ++loop)
        for (size_t pc = 0; pc < p->lanes[lane].size(); ++pc)
          if (loop * p->loop_elems < p->lanes[lane][pc].src.num_elems)
            naive.back().push_back({static_cast<uint16_t>(lane), static_cast<uint16_t>(pc), loop});
  }
  EXPECT_GT(left_over(pointers(all), naive, kStreamSlots), 0u);
  EXPECT_EQ(left_over(pointers(all), *play_through(all.programs), kStreamSlots), 0u);
}

// Streams that wait for one another after every message are slow where processes take turns on a device.
TEST(StreamOrderTest, InstructionsRunForSeveralLoopsInARow) {
  for (const char* name : {"ring", "two_shot", "halving_doubling"})
    for (const int nranks : {2, 4}) {
      const Algorithm* a = find_algorithm(Collective::kAllReduce, name);
      const AllPrograms all = std::move(*compile_all(*a, nranks, 0, shape_of(*a, 300'000), nowhere(), kernels()));
      auto orders = play_through(all.programs);
      ASSERT_TRUE(orders.ok());
      for (size_t r = 0; r < orders->size(); ++r) {
        size_t changes = 0;
        const auto& order = (*orders)[r];
        for (size_t i = 1; i < order.size(); ++i)
          changes += order[i].pc != order[i - 1].pc || order[i].lane != order[i - 1].lane;
        EXPECT_LE(changes, order.size() / 3) << name << ", rank " << r << " of " << nranks;
      }
    }
}

TEST(StreamOrderTest, GatheringAndScatteringPartsOfTheirOwnLengths) {
  VariableCounts counts;
  uint64_t end = 0;
  for (const uint64_t n : {uint64_t{0}, uint64_t{9000}, uint64_t{1}, uint64_t{30'001}, uint64_t{0}}) {
    counts.out.counts.push_back(n);
    counts.out.offsets.push_back(end);
    end += n;
  }
  counts.in = {{counts.out.counts[2]}, {0}};
  size_t fake = 0;
  for (const Algorithm& a : all_algorithms()) {
    if (a.direct || a.collective != Collective::kAllGather) continue;
    const RankSchedule s = record_rank(a, 0, 5, 0);
    if (s.in_chunks != 1 || s.out_chunks != 5) continue;
    ProgramShape shape = shape_of(a, 39'002);
    shape.operation.variable = true;
    shape.counts = &counts;
    const AllPrograms all = std::move(*compile_all(a, 5, 0, shape, nowhere(), kernels()));
    auto orders = play_through(all.programs);
    ASSERT_TRUE(orders.ok()) << a.name;
    EXPECT_EQ(left_over(pointers(all), *orders, kStreamSlots), 0u) << a.name;
    ++fake;
  }
  EXPECT_GT(fake, 0u);
}

// all_to_all_v: a rank has only its own row and column, so each orders its messages itself.
TEST(StreamOrderTest, MessagesOfUnknownLengthsGoByDistance) {
  std::mt19937_64 random(20261121);
  for (const Algorithm& a : all_algorithms()) {
    if (a.direct || a.collective != Collective::kAllToAll) continue;
    const RankSchedule s = record_rank(a, 0, 4, 0);
    if (s.in_chunks != 4 || s.out_chunks != 4 || s.scratch_chunks != 0) continue;
    for (int run = 0; run < 20; ++run) {
      const int n = 2 + static_cast<int>(random() % 6);
      std::vector<std::vector<uint64_t>> matrix(static_cast<size_t>(n), std::vector<uint64_t>(static_cast<size_t>(n)));
      for (auto& row : matrix)
        for (uint64_t& c : row) c = random() % 3 == 0 ? 0 : random() % 40'000;
      std::vector<VariableCounts> counts(static_cast<size_t>(n));
      std::vector<std::unique_ptr<PortTable>> ports;
      std::vector<std::unique_ptr<Program>> programs;
      std::vector<std::vector<StreamStep>> orders;
      for (Rank r = 0; r < n; ++r) {
        VariableCounts& c = counts[static_cast<size_t>(r)];
        c.pairwise = true;
        uint64_t in = 0, out = 0;
        for (size_t p = 0; p < static_cast<size_t>(n); ++p) {
          const uint64_t to = matrix[static_cast<size_t>(r)][p], from = matrix[p][static_cast<size_t>(r)];
          c.in.counts.push_back(to), c.in.offsets.push_back(in), in += to;
          c.out.counts.push_back(from), c.out.offsets.push_back(out), out += from;
        }
        ProgramShape shape = shape_of(a, 0);
        shape.counts = &c;
        ports.push_back(std::make_unique<PortTable>(r, nowhere()));
        programs.push_back(std::move(*compile(record_rank(a, r, n, 0), shape, *ports.back(), kernels())));
        orders.push_back(order_by_distance(*programs.back()));
      }
      std::vector<const Program*> all;
      for (const auto& p : programs) all.push_back(p.get());
      ASSERT_EQ(left_over(all, orders, kStreamSlots), 0u) << a.name << ", " << n << " ranks, run " << run;
      ASSERT_EQ(left_over(all, orders, 1), 0u) << "with one slot: " << a.name;
    }
  }
}

}  // namespace
}  // namespace rondo

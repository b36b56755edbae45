// Calls with counts that never repeat: few programs in device memory, the right results, bounded memory. Emulated
// devices; ranks are threads.
// labels: unit tsan
// timeout: 240
// links: host_kernels
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "conformance/case_runner.h"
#include "device/engine/device_floats.h"
#include "support/emulated_cuda.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

DeviceEngine& engine_of(Communicator& comm) { return *impl_of(comm).device(); }

template <class Fn>
void with_devices(EmulatedCuda& cuda, int nranks, const std::string& settings, Fn fn) {
  SpawnOptions options;
  options.config = device_config(settings);
  options.config.deadline_s = 60;
  spawn_threads(
      nranks,
      [&](Communicator& comm) -> Status {
        use_device(comm);
        RONDO_TRY(fn(comm));
        return comm.error();
      },
      options);
  EXPECT_EQ(cuda.fake().leaks(), "");
}

void do_nothing(const void*, uint32_t, uint32_t) {}

// Only the host's work: kernels do nothing.
TEST(DeviceCountsTest, AnyNumberOfShapesNeedsAHandfulOfPrograms) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  for (const char* kernel : {"rondo_interpret_float_sum", "rondo_interpret_copy"})
    cuda.fake().add_kernel(kernel, {do_nothing, sizeof(LaunchArgs), true});
  with_devices(cuda, 2, "device_engine = interpreter\ndevice_blocks = -6", [&](Communicator& comm) -> Status {
    const uint64_t num_shapes = kSanitized ? 3000 : 60'000;
    Floats a(comm, 4 * num_shapes + 16);
    Stream stream;
    const CallOptions options = stream.options();
    const uint64_t me = static_cast<uint64_t>(comm.rank());
    uint64_t bytes = 0, uploads = 0;
    const auto call = [&](uint64_t i) -> Status {
      RONDO_TRY(comm.all_reduce(a.data(), a.data(), 4 * num_shapes - i, Dtype::kFloat32, Op::kSum, &options));
      const uint64_t give[] = {i + me, i + me + 2}, take[] = {i + 2 * me, i + 1 + 2 * me};  // i + from + 2 * to
      return comm.all_to_all_v(a.data(), give, nullptr, a.data() + 2 * num_shapes + 8, take, nullptr, Dtype::kFloat32,
                               &options);
    };
    for (uint64_t i = 0; i < num_shapes; ++i) {
      RONDO_TRY(call(i));
      if (i % 1000 == 0) stream.wait();
      if (i == 2500) bytes = comm.device_bytes(), uploads = engine_of(comm).num_program_uploads();
    }
    stream.wait();
    EXPECT_EQ(comm.device_bytes(), bytes);
    EXPECT_LT(engine_of(comm).num_program_uploads(), 10u);
    EXPECT_GT(uploads, 0u);
    return {};
  });
}

// A full cache drops the program that was not used for the longest time. Its memory is used again when nobody holds it.
TEST(DeviceCountsTest, AFullCacheOfProgramsStaysBounded) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  with_devices(cuda, 2, "device_engine = interpreter", [&](Communicator& comm) -> Status {
    constexpr uint64_t kMost = ProgramCache::kMostPrograms;
    ProgramCache cache(engine_of(comm).transport());
    const auto find = [&](uint64_t number) {
      const std::vector<uint64_t> words(40, number);
      auto found = cache.find_or_upload(std::as_bytes(std::span(words)));
      EXPECT_TRUE(found.ok());
      return *found;
    };
    for (uint64_t i = 0; i < kMost; ++i) (void)find(i);
    const ProgramCache::Shared first = find(0), second = find(1);
    EXPECT_EQ(cache.num_uploads(), kMost);
    (void)find(0);
    (void)find(kMost);  // drops 2
    EXPECT_EQ(cache.num_uploads(), kMost + 1);
    EXPECT_EQ(find(0), first);
    EXPECT_EQ(cache.num_uploads(), kMost + 1);
    (void)find(2);
    EXPECT_EQ(cache.num_uploads(), kMost + 2);
    const uint64_t bytes = comm.device_bytes();
    for (uint64_t i = kMost + 1; i < 4 * kMost; ++i) {
      const ProgramCache::Shared made = find(i);
      EXPECT_TRUE(made != first && made != second);
    }
    EXPECT_LE(comm.device_bytes(), bytes + (uint64_t{2} << 20));  // one slab: two more programs are held
    return {};
  });
}

// Counts that all ranks draw alike.
class RandomCounts {
 public:
  explicit RandomCounts(uint64_t seed) : random_(seed) {}
  uint64_t below(uint64_t end) { return random_() % end; }
  /// Zero, small, prime and large ones.
  uint64_t elems() {
    constexpr uint64_t kPrimes[] = {1, 2, 7, 127, 509, 1021, 4099};
    const uint64_t kind = below(8);
    return kind == 0 ? 0 : kind < 4 ? kPrimes[below(std::size(kPrimes))] : kind < 7 ? below(3000) : below(20'000);
  }

 private:
  std::mt19937_64 random_;
};

// Every collective by the planner's choice against the oracle.
void run_random_cases(const std::string& settings, int devices, int nranks) {
  SCOPED_TRACE(settings);
  constexpr Dtype kTypes[] = {Dtype::kFloat32, Dtype::kBfloat16};
  constexpr Op kOps[] = {Op::kSum, Op::kAvg, Op::kPremulSum};
  const DataTables tables(nranks, 11, kTypes, kOps);
  EmulatedCuda cuda(FakeMachine::uniform(devices));
  const int num_calls = kSanitized ? 60 : 700;
  with_devices(cuda, nranks, "device_engine = interpreter\n" + settings, [&](Communicator& comm) -> Status {
    CaseRunner runner(comm, tables);
    RONDO_TRY(runner.open(Memory::kDevice, 20'000 * sizeof(float) * static_cast<uint64_t>(nranks)));
    RandomCounts draw(static_cast<uint64_t>(nranks));
    for (int i = 0; i < num_calls; ++i) {
      Case c;
      c.collective = static_cast<Collective>(draw.below(static_cast<uint64_t>(Collective::kSend)));
      c.dtype = kTypes[draw.below(2)];
      c.op = kOps[draw.below(3)];
      c.count_elems = draw.elems();
      c.in_place = draw.below(2) == 1;
      c.root = static_cast<Rank>(draw.below(static_cast<uint64_t>(nranks)));
      c.variant = static_cast<uint32_t>(draw.below(5));
      RONDO_TRY(runner.run(c));
    }
    EXPECT_EQ(runner.num_refused(), 0);
    if (!kSanitized) {
      EXPECT_LT(engine_of(comm).num_program_uploads(), static_cast<uint64_t>(num_calls) / 4);
    }
    return {};
  });
}

TEST(DeviceCountsTest, RandomCountsOfEveryCollective) {
  for (const int nranks : {2, 3}) run_random_cases("device_blocks = -9", nranks, nranks);
}
TEST(DeviceCountsTest, RandomCountsOnOneDevice) { run_random_cases("device_blocks = -6", 1, 3); }
TEST(DeviceCountsTest, RandomCountsWithoutDirectAccess) {
  run_random_cases("device_blocks = -6\ndevice_direct = off", 1, 2);
}

// A matrix of counts, and the places of one rank's parts.
struct Parts {
  std::vector<uint64_t> counts, offsets;
  uint64_t end = 0;
  void add(uint64_t count, uint64_t gap) {
    offsets.push_back(end + gap);
    counts.push_back(count);
    end = offsets.back() + count;
  }
  const uint64_t* places(uint64_t gap) const { return gap == 0 ? nullptr : offsets.data(); }
};

float token_of(Rank from, Rank to, uint64_t i) {
  return static_cast<float>((from * 8 + to) * 1000 + static_cast<int>(i % 997));
}

// One call of every kind with a count for each rank, with counts that no call had before.
class VariableCalls {
 public:
  explicit VariableCalls(Communicator& comm)
      : comm_(comm), n_(comm.size()), me_(comm.rank()), in_(comm, kMost), out_(comm, kMost) {}
  static constexpr uint64_t kMost = 40'000;

  Status all_to_all(RandomCounts& draw, const CallOptions& options) {
    draw_all_to_all(draw);
    return all_to_all(options);
  }
  void draw_all_to_all(RandomCounts& draw) {
    gap_ = draw.below(2) * 5;
    give_ = take_ = {};
    for (Rank from = 0; from < n_; ++from)
      for (Rank to = 0; to < n_; ++to) {
        const uint64_t count = draw.below(3) == 0 ? 0 : draw.below(3000);
        if (from == me_) give_.add(count, gap_);
        if (to == me_) take_.add(count, gap_);
      }
    std::vector<float> in(kMost);
    wanted_.assign(kMost, -1);
    for (Rank p = 0; p < n_; ++p) {
      const auto at = static_cast<size_t>(p);
      for (uint64_t i = 0; i < give_.counts[at]; ++i) in[give_.offsets[at] + i] = token_of(me_, p, i);
      for (uint64_t i = 0; i < take_.counts[at]; ++i) wanted_[take_.offsets[at] + i] = token_of(p, me_, i);
    }
    set(in);
  }
  Status all_to_all(const CallOptions& options) {
    return comm_.all_to_all_v(in_.data(), give_.counts.data(), give_.places(gap_), out_.data(), take_.counts.data(),
                              take_.places(gap_), Dtype::kFloat32, &options);
  }
  Status all_gather(RandomCounts& draw, const CallOptions& options) {
    const Parts parts = drawn(draw);
    std::vector<float> in(kMost);
    wanted_.assign(kMost, -1);
    for (uint64_t i = 0; i < parts.counts[static_cast<size_t>(me_)]; ++i) in[i] = token_of(me_, 0, i);
    for (Rank p = 0; p < n_; ++p)
      for (uint64_t i = 0; i < parts.counts[static_cast<size_t>(p)]; ++i)
        wanted_[parts.offsets[static_cast<size_t>(p)] + i] = token_of(p, 0, i);
    set(in);
    return comm_.all_gather_v(in_.data(), out_.data(), parts.counts.data(), parts.places(gap_), Dtype::kFloat32,
                              &options);
  }
  Status reduce_scatter(RandomCounts& draw, const CallOptions& options) {
    const Parts parts = drawn(draw);
    std::vector<float> in(kMost);
    wanted_.assign(kMost, -1);
    for (uint64_t i = 0; i < parts.end; ++i) in[i] = simple_value(me_, i);
    for (uint64_t i = 0; i < parts.counts[static_cast<size_t>(me_)]; ++i)
      wanted_[i] = simple_sum(n_, parts.offsets[static_cast<size_t>(me_)] + i);
    set(in);
    return comm_.reduce_scatter_v(in_.data(), out_.data(), parts.counts.data(), parts.places(gap_), Dtype::kFloat32,
                                  Op::kSum, &options);
  }
  void expect() const { EXPECT_TRUE(out_.get() == wanted_) << "rank " << me_; }
  void clear() const { out_.set(std::vector<float>(kMost, -1)); }

 private:
  Parts drawn(RandomCounts& draw) {
    gap_ = draw.below(2) * 7;
    Parts parts;
    for (Rank p = 0; p < n_; ++p) parts.add(draw.below(4) == 0 ? 0 : draw.below(4000), gap_);
    return parts;
  }
  void set(const std::vector<float>& in) const {
    in_.set(in);
    clear();
  }
  Communicator& comm_;
  const int n_;
  const Rank me_;
  Floats in_, out_;
  uint64_t gap_ = 0;
  Parts give_, take_;
  std::vector<float> wanted_;
};

void run_variable_calls(const std::string& engine, int nranks) {
  SCOPED_TRACE(fmt::format("{}, {} ranks", engine, nranks));
  EmulatedCuda cuda(FakeMachine::uniform(1));
  with_devices(cuda, nranks, "device_blocks = -8\ndevice_engine = " + engine, [&](Communicator& comm) -> Status {
    Stream stream;
    const CallOptions options = stream.options();
    VariableCalls calls(comm);
    RandomCounts draw(5);
    const int rounds = kSanitized ? 6 : 100;
    for (int i = 0; i < rounds; ++i) {
      RONDO_TRY(calls.all_to_all(draw, options));
      stream.wait();
      calls.expect();
      RONDO_TRY(calls.all_gather(draw, options));
      stream.wait();
      calls.expect();
      RONDO_TRY(calls.reduce_scatter(draw, options));
      stream.wait();
      calls.expect();
    }
    if (!kSanitized) {
      EXPECT_LT(engine_of(comm).num_program_uploads(), 20u);
    }
    return {};
  });
}

TEST(DeviceCountsTest, RandomCountsForEachRank) {
  for (const int nranks : {2, 3, 5}) run_variable_calls("interpreter", nranks);
}
TEST(DeviceCountsTest, RandomCountsForEachRankByStreams) { run_variable_calls("stream", 3); }

// The other ranks' messages carry the number of the call, so a rank without any data takes part in it.
TEST(DeviceCountsTest, ARankWithoutDataCountsTheCall) {
  for (const char* engine : {"interpreter", "stream"}) {
    SCOPED_TRACE(engine);
    EmulatedCuda cuda(FakeMachine::uniform(1));
    with_devices(cuda, 2, std::string("device_engine = ") + engine, [&](Communicator& comm) -> Status {
      Stream stream;
      const CallOptions options = stream.options();
      Floats a(comm, 100), in(comm, 10), out(comm, 10);
      const uint64_t own = comm.rank() == 0 ? 10 : 0, counts[] = {own, 0};
      for (int round = 0; round < 3; ++round) {
        RONDO_TRY(
            comm.all_to_all_v(in.data(), counts, nullptr, out.data(), counts, nullptr, Dtype::kFloat32, &options));
        a.set_simple(comm.rank());
        RONDO_TRY(comm.all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &options));
        stream.wait();
        EXPECT_TRUE(a.holds_simple_sum(2));
      }
      return {};
    });
  }
}

// Each captured call replays with its own counts, although calls of other counts use the same program.
TEST(DeviceCountsTest, CapturedCallsKeepTheirCounts) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  with_devices(cuda, 2, "device_engine = interpreter\ndevice_blocks = -6\nalgo = ring\nproto = simple",
               [&](Communicator& comm) -> Status {
                 Stream stream;
                 const CallOptions options = stream.options();
                 std::vector<std::unique_ptr<Floats>> data;
                 for (const size_t size : {3, 500, 3001}) data.push_back(std::make_unique<Floats>(comm, size));
                 const auto sum = [&](const Floats& f) {
                   return comm.all_reduce(f.data(), f.data(), f.size(), Dtype::kFloat32, Op::kSum, &options);
                 };
                 RONDO_TRY(sum(*data[0]));
                 stream.wait();
                 const uint64_t uploads = engine_of(comm).num_program_uploads();
                 std::vector<cuda::Graph> graphs(data.size());
                 for (size_t i = 0; i < data.size(); ++i) {
                   EXPECT_EQ(cuda.fake().begin_capture(stream.get(), cuda::kCaptureModeThreadLocal), 0);
                   const Status s = sum(*data[i]);
                   EXPECT_EQ(cuda.fake().end_capture(stream.get(), &graphs[i]), 0);
                   RONDO_TRY(s);
                 }
                 VariableCalls others(comm);
                 RandomCounts draw(1);
                 others.draw_all_to_all(draw);
                 EXPECT_EQ(cuda.fake().begin_capture(stream.get(), cuda::kCaptureModeThreadLocal), 0);
                 const Status s = others.all_to_all(options);
                 graphs.emplace_back();
                 EXPECT_EQ(cuda.fake().end_capture(stream.get(), &graphs.back()), 0);
                 RONDO_TRY(s);
                 for (int round = 0; round < 6; ++round)
                   for (size_t i = 0; i < graphs.size(); ++i) {
                     if (i < data.size()) data[i]->set_simple(comm.rank());
                     else others.clear();
                     EXPECT_EQ(cuda.fake().launch_graph(graphs[i], stream.get()), 0);
                     stream.wait();
                     if (i < data.size()) {
                       EXPECT_TRUE(data[i]->holds_simple_sum(2)) << data[i]->size();
                     } else {
                       others.expect();
                     }
                     Floats between(comm, 100 + 7 * i + static_cast<size_t>(round));
                     between.set_simple(comm.rank());
                     RONDO_TRY(sum(between));
                     stream.wait();
                     EXPECT_TRUE(between.holds_simple_sum(2));
                   }
                 EXPECT_EQ(engine_of(comm).num_program_uploads(), uploads + 1);  // all_to_all_v
                 for (const cuda::Graph graph : graphs) EXPECT_EQ(cuda.fake().destroy_graph(graph), 0);
                 return {};
               });
}

// Tables that do not fit a kernel's argument are in pinned memory, which later launches use again.
TEST(DeviceCountsTest, LargeGroupsUseTheirTablesAgain) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  constexpr size_t kCalls = 40;
  static_assert(kCalls * sizeof(DeviceCall) > LaunchArgs::kOwnBytes);
  with_devices(cuda, 2, "device_engine = interpreter\ndevice_blocks = -6\nalgo = ring\nproto = simple",
               [&](Communicator& comm) -> Status {
                 Stream stream;
                 const CallOptions options = stream.options();
                 Floats all(comm, kCalls * 1000);
                 uint64_t allocations = 0;
                 for (size_t round = 0; round < 5; ++round) {
                   all.set_simple(comm.rank());
                   group_start();
                   for (size_t i = 0; i < kCalls; ++i)
                     RONDO_TRY(comm.all_reduce(all.data() + 1000 * i, all.data() + 1000 * i, 1000 - i - 40 * round,
                                               Dtype::kFloat32, Op::kMax, &options));
                   RONDO_TRY(group_end());
                   stream.wait();
                   RONDO_TRY(engine_of(comm).drain());  // the watcher has seen the end
                   const std::vector<float> got = all.get();
                   for (size_t i = 0; i < got.size(); ++i) {
                     const size_t count = 1000 - i / 1000 - 40 * round;
                     if (got[i] != simple_value(i % 1000 < count ? 1 : comm.rank(), i)) {
                       ADD_FAILURE() << "round " << round << ", element " << i << " is " << got[i];
                       break;
                     }
                   }
                   if (round == 1) allocations = cuda.fake().calls("cuMemHostAlloc");
                 }
                 if (comm.rank() == 0) {
                   EXPECT_EQ(cuda.fake().calls("cuMemHostAlloc"), allocations);
                 }
                 return {};
               });
}

}  // namespace
}  // namespace rondo::testing

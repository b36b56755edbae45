#include "api/machine_probe.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "api/communicator_impl.h"
#include "api/thread_control.h"
#include "base/error.h"
#include "base/forks.h"
#include "base/read_file.h"
#include "base/round_up.h"
#include "base/thread.h"
#include "plan/fit_constants.h"
#include "plan/machine_file.h"
#include "protocol/spin.h"
#include "topology/handover.h"

namespace rondo {
namespace {

constexpr uint64_t kBurstNs = 200'000, kMostNs = 40'000'000, kMostBytes = 4 << 20;
// Few timings cannot separate terms that occur together. Therefore the fit's pull towards the built-in constants is
// stronger than in `rondo calibrate`.
constexpr double kPriorWeight = 0.001;
constexpr size_t kLeastPoints = 14;
constexpr double kMostShareOfOthers = 0.1, kMostChange = 1.5;

constexpr uint64_t kShort = 16 << 10, kLong = 64 << 10;  // messages
struct Point {
  Collective collective;
  const char* algorithm;
  Protocol protocol;
  uint64_t bytes;
  uint64_t message_bytes = kLong;
  bool whole_ring = false;
};
using enum Collective;
constexpr Protocol kInline = Protocol::kInline, kSimple = Protocol::kSimple;
// The most important points come first. When the time is over, the remaining points are left out. The measurement fails
// if fewer than kLeastPoints points were timed.
constexpr Point kPoints[] = {
    {kAllReduce, "one_shot", kInline, 64, kMaxInlineBytes},
    {kAllReduce, "one_shot", kInline, 384, kMaxInlineBytes},
    {kAllReduce, "ring", kInline, 256, kMaxInlineBytes},
    {kAllGather, "ring", kInline, 512, kMaxInlineBytes},
    {kAllReduce, "one_shot", kSimple, 256},
    {kAllReduce, "one_shot", kSimple, 1024},
    {kAllReduce, "ring", kSimple, 16 << 10},
    {kAllReduce, "pull", kSimple, 64 << 10},
    {kAllGather, "pull", kSimple, 64 << 10},
    {kAllReduce, "ring", kSimple, 64 << 10, kShort},
    {kAllGather, "ring", kSimple, 64 << 10, kLong, true},
    {kAllReduce, "ring", kSimple, kMostBytes, kShort},
    {kAllReduce, "pull", kSimple, kMostBytes},
    {kReduceScatter, "pull", kSimple, 256 << 10},
    {kReduceScatter, "ring", kSimple, 256 << 10},
    {kAllReduce, "ring", kSimple, 1 << 20, kShort},
    {kAllReduce, "ring", kSimple, 1 << 20},
    {kAllReduce, "ring", kSimple, 1 << 20, kLong, true},
    {kAllReduce, "pull", kSimple, 1 << 20},
    {kAllGather, "pull", kSimple, kMostBytes},
    {kAllGather, "ring", kSimple, kMostBytes, kShort},
    {kAllReduce, "one_shot", kSimple, 64 << 10},
    {kAllReduce, "ring", kSimple, 256 << 10},
    {kAllReduce, "ring", kSimple, 256 << 10, kShort},
    {kAllReduce, "ring", kSimple, 16 << 10, kLong, true},
    {kAllGather, "pull", kSimple, 1 << 20},
    {kAllReduce, "one_shot", kSimple, 4096, kLong, true},
    {kAllReduce, "pull", kSimple, 4096},
    {kAllGather, "ring", kSimple, 4096},
    {kAllReduce, "one_shot", kSimple, 4096},
};

/// Returns the time that this thread has waited for a CPU; infinity if it is not known.
double waited_ns() {
  double running_ns = 0, waiting_ns = 0;
  const std::string line = first_line_of("/proc/thread-self/schedstat");
  return std::sscanf(line.c_str(), "%lf %lf", &running_ns, &waiting_ns) == 2 ? waiting_ns : INFINITY;
}

double median(std::vector<double> v) {
  std::ranges::nth_element(v, v.begin() + static_cast<ptrdiff_t>(v.size() / 2));
  return v[v.size() / 2];
}

/// Two ranks as threads, and what they have measured.
class World {
 public:
  World() = default;
  ~World() {
    if (mapped_ != MAP_FAILED) ::munmap(mapped_, kMappedBytes);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Call it on a thread that may use only `cpus`.
  Status run(const CostModel& model, std::array<int, 2> cpus) {
    SettingValues values;
    values.set("timeout_s", "1", "machine probe");
    RONDO_TRY_ASSIGN(Settings settings, settings_from(std::move(values)));
    settings.costs = std::make_shared<const CostsInForce>(CostsInForce{model, {}});
    RONDO_TRY(map_memory());
    // The threads copy through the kernel, as processes do. The copies then cost the same.
    const auto like_processes = [this](Rank, int, std::unique_ptr<Transport> t) {
      if (pulls_) static_cast<InprocTransport&>(*t).pull_by_kernel();
      return t;
    };
    RONDO_TRY_ASSIGN(auto made, make_thread_communicators(kNumRanks, {settings, {}, like_processes}));
    for (auto& impl : made) comms_.push_back(CommunicatorImpl::handle(std::move(impl)));
    return run_concurrently("a thread that measures this machine", kNumRanks, [&](size_t r) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(cpus[r], &set);
      ::sched_setaffinity(0, sizeof set, &set);
      const uint64_t start = monotonic_ns();
      const double before_ns = waited_ns();
      const Status s = measure(static_cast<Rank>(r));
      waited_[r] = (waited_ns() - before_ns) / static_cast<double>(monotonic_ns() - start);
      if (!s.ok()) comms_[r]->abort();
      return s;
    });
  }
  /// Valid while this object exists.
  const std::vector<TimedCall>& calls() const { return timed_; }
  /// Returns true if the first point took another time at the end. The CPUs of a virtual machine may move.
  bool moved() const { return moved_; }
  /// Returns the share of the time that a rank waited for its CPU: the larger of both ranks' shares.
  double share_of_others() const { return std::max(waited_[0], waited_[1]); }

 private:
  // Maps a buffer for each rank, in huge pages if available, and writes to its pages. Checks whether the kernel may
  // copy between the buffers (pulls_).
  Status map_memory() {
    mapped_ = ::mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) return make_error(StatusCode::kExhausted, "no memory for {} bytes", kMappedBytes);
    ::madvise(mapped_, kMappedBytes, MADV_HUGEPAGE);
    memory_ = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(mapped_), kHugePageBytes));
    std::memset(memory_, 0, kNumRanks * kMostBytes);
    const iovec own{memory_, 1}, other{buffer(1), 1};
    pulls_ = ::process_vm_readv(::getpid(), &own, 1, &other, 1, 0) == 1;
    return {};
  }
  std::byte* buffer(Rank rank) const { return memory_ + static_cast<uint64_t>(rank) * kMostBytes; }

  Status call(Rank r, const CallShape& shape) {
    Communicator& c = *comms_[static_cast<size_t>(r)];
    std::byte* b = buffer(r);
    std::byte* part = b + static_cast<uint64_t>(r) * shape.count_elems * 4;
    if (shape.collective == kAllReduce) return c.all_reduce(b, b, shape.count_elems, Dtype::kFloat32, Op::kSum);
    if (shape.collective == kAllGather) return c.all_gather(part, b, shape.count_elems, Dtype::kFloat32);
    return c.reduce_scatter(b, part, shape.count_elems, Dtype::kFloat32, Op::kSum);
  }
  /// Returns the mean time of `calls` calls, in nanoseconds.
  Expected<double> time(Rank r, const CallShape& shape, uint64_t calls) {
    RONDO_TRY(comms_[static_cast<size_t>(r)]->barrier());
    const uint64_t start = monotonic_ns();
    for (uint64_t k = 0; k < calls; ++k) RONDO_TRY(call(r, shape));
    return static_cast<double>(monotonic_ns() - start) / static_cast<double>(calls);
  }

  Status measure(Rank r) {
    double first_ns = 0;
    for (const Point& p : kPoints) {
      RONDO_TRY_ASSIGN(const double ns, time(r, p));
      if (calls_.load() == 0) break;
      if (first_ns == 0) first_ns = ns;
    }
    if (first_ns == 0) return {};
    RONDO_TRY_ASSIGN(const double ns, time(r, kPoints[0], true));
    if (r == 0) moved_ = std::max(first_ns / ns, ns / first_ns) > kMostChange;
    return {};
  }
  // Returns the time of a call, and adds it to timed_, unless it was timed before (`again`). Returns 0 if no candidate
  // fits, or if the time is over and this is the first time.
  Expected<double> time(Rank r, const Point& p, bool again = false) {
    Communicator& comm = *comms_[static_cast<size_t>(r)];
    CommunicatorImpl& impl = impl_of(comm);
    if (!pulls_ && std::string_view(p.algorithm) == "pull") return 0.0;
    CallShape shape;
    shape.collective = p.collective;
    shape.dtype = Dtype::kFloat32;
    if (collective_reduces(p.collective)) shape.op = Op::kSum;
    shape.count_elems = p.bytes / 4 / (p.collective == kAllReduce ? 1 : kNumRanks);
    impl.lock();
    impl.planner().force(nullptr);
    Expected<std::vector<Candidate>> found = impl.planner().candidates(shape);
    const Candidate* chosen = nullptr;
    if (found.ok())
      for (const Candidate& c : *found)
        if (c.algorithm->name == p.algorithm && c.protocol == p.protocol && c.message_bytes == p.message_bytes &&
            c.whole_ring == p.whole_ring) {
          chosen = &c;
          break;
        }
    impl.planner().force(chosen);
    impl.unlock();
    RONDO_TRY(found.status());
    if (chosen == nullptr) return 0.0;
    RONDO_TRY(call(r, shape));  // makes the plan and its connections
    RONDO_TRY_ASSIGN(const double first_ns, time(r, shape, 1));
    if (r == 0)
      calls_.store(
          monotonic_ns() > end_ns_ && !again ? 0 : static_cast<uint64_t>(std::clamp(kBurstNs / first_ns, 1.0, 1000.0)));
    RONDO_TRY(comm.barrier());
    const uint64_t calls = calls_.load();
    if (calls == 0) return 0.0;
    std::vector<double> bursts;
    if (calls == 1) bursts.push_back(first_ns);
    while (bursts.size() < 3) {
      RONDO_TRY_ASSIGN(const double ns, time(r, shape, calls));
      bursts.push_back(ns);
    }
    const double ns = median(std::move(bursts));
    if (r == 0 && !again) timed_.push_back({chosen->cost, ns});
    return ns;
  }

  const uint64_t end_ns_ = monotonic_ns() + kMostNs;
  static constexpr int kNumRanks = 2;
  static constexpr uint64_t kHugePageBytes = 2 << 20, kMappedBytes = kNumRanks * kMostBytes + kHugePageBytes;
  void* mapped_ = MAP_FAILED;
  std::byte* memory_ = nullptr;  // a buffer for each rank
  bool pulls_ = false;           // the kernel may copy
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::atomic<uint64_t> calls_{0};
  std::vector<TimedCall> timed_;
  bool moved_ = false;
  double waited_[kNumRanks] = {};  // share of the time that a rank waited for its CPU
};

auto& at(auto& v, CostTerm t) { return v[static_cast<size_t>(t)]; }

// Mapped buffers and huge copies are not measured: their constants are scaled by the same factor as those of similar
// data. Ranks that share cores are not measured: a world of them takes far longer than 50 ms to give steady times.
void scale_rest(const CostVector& prior, CostVector& now) {
  const auto change = [&](CostTerm a, CostTerm b) { return (at(now, a) + at(now, b)) / (at(prior, a) + at(prior, b)); };
  at(now, CostTerm::kPeerByte) *= change(CostTerm::kRingByte, CostTerm::kUserByte);
  at(now, CostTerm::kFarPeerByte) *= change(CostTerm::kFarRingByte, CostTerm::kFarUserByte);
  at(now, CostTerm::kHugePullByte) *= change(CostTerm::kFarPullByte, CostTerm::kFarFreshPullByte);
}

}  // namespace

Expected<CostModel> measure_machine() {
  const OwnCpus own;
  if (!own) return unsupported("the CPUs of this thread are not known");
  const std::array<int, 2> cpus = two_cpus();
  if (cpus[1] < 0) return built_in_costs();  // ranks that share a core are not measured
  cpu_set_t both;
  CPU_ZERO(&both);
  for (const int c : cpus) CPU_SET(c, &both);
  if (::sched_setaffinity(0, sizeof both, &both) != 0)
    return unsupported("CPU {} or {} cannot be used", cpus[0], cpus[1]);
  CostModel model = built_in_costs();
  if (const long l2 = ::sysconf(_SC_LEVEL2_CACHE_SIZE); l2 > 0) model.near_bytes = static_cast<uint64_t>(l2) / 2;
  World world;
  const NoSignals inherited;
  if (const Status s = world.run(model, cpus); !s.ok()) return unsupported("{}", s.message());
  const double share = world.share_of_others();
  if (std::isnan(share))
    return unsupported("/proc/thread-self/schedstat does not tell how long a thread waits for its CPU");
  if (share > kMostShareOfOthers)
    return unsupported("other work took {:.0f} % of the time of CPU {} or {}", 100 * share, cpus[0], cpus[1]);
  const std::vector<TimedCall>& all = world.calls();
  if (all.size() < kLeastPoints)
    return unsupported("only {} of {} timings were made in {} ms", all.size(), std::size(kPoints), kMostNs / 1'000'000);
  if (world.moved()) return unsupported("a call took another time at the end than at the beginning");
  // near_bytes: half of the second-level cache, or more if the timings say so.
  CostModel fitted = fit_model(all, model, kMostBytes / 2, kPriorWeight);
  if (const double error = median_error(all, fitted); error > kMostMedianError)
    return unsupported("the constants miss half of their own timings by {:.0f} % or more", 100 * error);
  scale_rest(model.spread, fitted.spread);
  return fitted;
}

CostsInForce measure_and_keep(const std::string& path, const std::function<Expected<CostModel>()>& measure) {
  CostsInForce costs;
  const Expected<CostModel> measured = measure();
  if (!measured.ok()) {
    report_once(fmt::format("the planner uses its built-in constants, because this machine could not be measured: {}",
                            measured.status().message()));
    return costs;
  }
  costs.costs = *measured;
  const Status kept =
      path.empty() ? unsupported("neither XDG_CACHE_HOME nor HOME is set") : write_machine_file(path, *measured);
  if (!kept.ok()) report_once(fmt::format("each process measures this machine again: {}", kept.message()));
  return costs;
}

std::shared_ptr<const CostsInForce> costs_of_this_machine() {
  struct Known {
    std::mutex mutex;
    std::shared_ptr<const CostsInForce> costs;
  };
  auto& known = of_this_process<Known>();
  const std::lock_guard lock(known.mutex);
  if (known.costs != nullptr) return known.costs;
  const std::string path = machine_file_path();
  const auto kept = read_machine_file(path);
  if (!kept.ok()) report_once(fmt::format("the planner does not use the machine file: {}", kept.status().message()));
  known.costs = std::make_shared<const CostsInForce>(kept.ok() && *kept ? CostsInForce{**kept, {}}
                                                                        : measure_and_keep(path, measure_machine));
  return known.costs;
}

}  // namespace rondo

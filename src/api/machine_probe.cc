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
#include "topology/host.h"

namespace rondo {
namespace {

constexpr uint64_t kBurstNs = 200'000, kMostNs = 40'000'000, kMostBytes = 4 << 20;
// Few timings cannot separate terms that occur together. Therefore the fit's pull towards the built-in constants is
// stronger than in `rondo calibrate`.
constexpr double kPriorWeight = 0.001;
constexpr size_t kLeastPoints = 14;
constexpr double kMostShareOfOthers = 0.1;

struct Point {
  Collective collective;
  const char* algorithm;
  Protocol protocol;
  bool whole_ring;
  uint64_t bytes;
};
using enum Collective;
// The most important points come first. When the time is over, the remaining points are left out. The measurement fails
// if fewer than kLeastPoints points were timed.
constexpr Point kPoints[] = {
    {kAllReduce, "one_shot", Protocol::kInline, false, 64},
    {kAllReduce, "one_shot", Protocol::kInline, false, 1024},
    {kAllReduce, "ring", Protocol::kInline, false, 256},
    {kAllGather, "ring", Protocol::kInline, false, 512},
    {kAllReduce, "one_shot", Protocol::kSimple, false, 1024},
    {kAllReduce, "ring", Protocol::kSimple, false, 16 << 10},
    {kAllReduce, "pull", Protocol::kSimple, false, 64 << 10},
    {kAllGather, "pull", Protocol::kSimple, false, 64 << 10},
    {kAllGather, "ring", Protocol::kSimple, false, 64 << 10},
    {kAllReduce, "ring", Protocol::kSimple, false, kMostBytes},
    {kAllReduce, "pull", Protocol::kSimple, false, kMostBytes},
    {kAllGather, "pull", Protocol::kSimple, false, kMostBytes},
    {kAllGather, "ring", Protocol::kSimple, false, kMostBytes},
    {kAllReduce, "ring", Protocol::kSimple, true, 16 << 10},
    {kAllReduce, "one_shot", Protocol::kSimple, false, 64 << 10},
    {kAllReduce, "ring", Protocol::kSimple, true, 256 << 10},
    {kAllReduce, "ring", Protocol::kSimple, false, 256 << 10},
    {kAllReduce, "pull", Protocol::kSimple, false, 1 << 20},
    {kAllReduce, "one_shot", Protocol::kSimple, true, 4096},
    {kAllGather, "ring", Protocol::kSimple, true, 64 << 10},
    {kAllReduce, "one_shot", Protocol::kSimple, false, 1 << 20},
    {kAllGather, "pull", Protocol::kSimple, false, 1 << 20},
    {kAllReduce, "pull", Protocol::kSimple, false, 4096},
    {kAllGather, "ring", Protocol::kSimple, false, 4096},
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
  const std::vector<Observation>& observations() const { return observations_; }
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
    if (shape.collective == kAllReduce) return c.all_reduce(b, b, shape.count_elems, Dtype::kFloat32, Op::kSum);
    return c.all_gather(b + static_cast<uint64_t>(r) * shape.count_elems * 4, b, shape.count_elems, Dtype::kFloat32);
  }
  /// Returns the mean time of `calls` calls, in nanoseconds.
  Expected<double> time(Rank r, const CallShape& shape, uint64_t calls) {
    RONDO_TRY(comms_[static_cast<size_t>(r)]->barrier());
    const uint64_t start = monotonic_ns();
    for (uint64_t k = 0; k < calls; ++k) RONDO_TRY(call(r, shape));
    return static_cast<double>(monotonic_ns() - start) / static_cast<double>(calls);
  }

  Status measure(Rank r) {
    Communicator& comm = *comms_[static_cast<size_t>(r)];
    CommunicatorImpl& impl = impl_of(comm);
    for (const Point& p : kPoints) {
      if (!pulls_ && std::string_view(p.algorithm) == "pull") continue;
      CallShape shape;
      shape.collective = p.collective;
      shape.dtype = Dtype::kFloat32;
      if (collective_reduces(p.collective)) shape.op = Op::kSum;
      shape.count_elems = p.bytes / 4 / (p.collective == kAllGather ? kNumRanks : 1);
      impl.lock();
      impl.planner().force(nullptr);
      Expected<std::vector<Candidate>> found = impl.planner().candidates(shape);
      const Candidate* chosen = nullptr;
      if (found.ok())
        for (const Candidate& c : *found)
          if (c.algorithm->name == p.algorithm && c.protocol == p.protocol && c.whole_ring == p.whole_ring) {
            chosen = &c;
            break;
          }
      impl.planner().force(chosen);
      impl.unlock();
      RONDO_TRY(found.status());
      if (chosen == nullptr) continue;
      RONDO_TRY(call(r, shape));  // makes the plan and its connections
      RONDO_TRY_ASSIGN(const double first_ns, time(r, shape, 1));
      if (r == 0)
        calls_.store(monotonic_ns() > end_ns_ ? 0
                                              : static_cast<uint64_t>(std::clamp(kBurstNs / first_ns, 1.0, 1000.0)));
      RONDO_TRY(comm.barrier());
      const uint64_t calls = calls_.load();
      if (calls == 0) break;
      std::vector<double> bursts;
      for (int b = 0; b < (calls > 1 ? 3 : 2); ++b) {
        RONDO_TRY_ASSIGN(const double ns, time(r, shape, calls));
        bursts.push_back(ns);
      }
      if (r == 0) observations_.push_back({chosen->counts, median(std::move(bursts))});
    }
    return {};
  }

  const uint64_t end_ns_ = monotonic_ns() + kMostNs;
  static constexpr int kNumRanks = 2;
  static constexpr uint64_t kHugePageBytes = 2 << 20, kMappedBytes = kNumRanks * kMostBytes + kHugePageBytes;
  void* mapped_ = MAP_FAILED;
  std::byte* memory_ = nullptr;  // a buffer for each rank
  bool pulls_ = false;           // the kernel may copy
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::atomic<uint64_t> calls_{0};
  std::vector<Observation> observations_;
  double waited_[kNumRanks] = {};  // share of the time that a rank waited for its CPU
};

// Returns two CPUs of different cores that the calling thread may use. If there are none, sets the thread's CPUs to all
// CPUs of its cgroup, and looks among these. Returns {-1, -1} if they are all of one core.
std::array<int, 2> two_cpus() {
  const auto of_mask = []() -> std::array<int, 2> {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return {-1, -1};
    int first = -1;
    std::string core;
    for (int c = 0; c < CPU_SETSIZE; ++c) {
      if (!CPU_ISSET(c, &mask)) continue;
      const std::string here =
          first_line_of(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", c));
      if (first >= 0 && here != core) return {first, c};
      if (first < 0) first = c, core = here;
    }
    return {-1, -1};
  };
  if (const std::array<int, 2> found = of_mask(); found[1] >= 0) return found;
  cpu_set_t all;
  std::memset(&all, 0xFF, sizeof all);
  (void)::sched_setaffinity(0, sizeof all, &all);  // the kernel leaves those of the cgroup
  return of_mask();
}

/// Restores the calling thread's CPUs.
class OwnCpus {
 public:
  OwnCpus() { known_ = ::sched_getaffinity(0, sizeof mask_, &mask_) == 0; }
  ~OwnCpus() {
    if (known_) ::sched_setaffinity(0, sizeof mask_, &mask_);
  }
  explicit operator bool() const { return known_; }
  OwnCpus(const OwnCpus&) = delete;
  OwnCpus& operator=(const OwnCpus&) = delete;

 private:
  cpu_set_t mask_{};
  bool known_;
};

auto& at(auto& v, CostTerm t) { return v[static_cast<size_t>(t)]; }

// Mapped buffers and huge copies are not measured: their constants are scaled by the same factor as those of similar
// data. Ranks that share cores are not measured: a world of them takes far longer than 50 ms to give steady times.
void fit(std::span<const Observation> all, CostModel& model) {
  const CostVector prior = model.spread;
  CostVector& now = model.spread;
  now = fit_constants(all, prior, CostTerm{0}, kPriorWeight);
  const auto change = [&](CostTerm a, CostTerm b) { return (at(now, a) + at(now, b)) / (at(prior, a) + at(prior, b)); };
  at(now, CostTerm::kPeerByte) *= change(CostTerm::kRingByte, CostTerm::kUserByte);
  at(now, CostTerm::kFarPeerByte) *= change(CostTerm::kFarRingByte, CostTerm::kFarUserByte);
  at(now, CostTerm::kHugePullByte) *= change(CostTerm::kFarPullByte, CostTerm::kFarPullByte);
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
  const std::vector<Observation>& all = world.observations();
  if (all.size() < kLeastPoints)
    return unsupported("only {} of {} timings were made in {} ms", all.size(), std::size(kPoints), kMostNs / 1'000'000);
  fit(all, model);
  if (const double error = median_error(all, model.spread); error > kMostMedianError)
    return unsupported("the constants miss half of their own timings by {:.0f} % or more", 100 * error);
  return model;
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

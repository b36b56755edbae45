#include "perf_candidates.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "api/communicator_impl.h"
#include "perf_bench.h"

namespace rondo::tools {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRoot = 0;
constexpr double kSlowNs = 2e6;

double median(std::vector<double> v) {
  const auto middle = v.begin() + static_cast<ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), middle, v.end());
  return *middle;
}

/// Index of the candidate with the least median of the bursts first, first + every, ...
size_t least_of(const MeasuredPoint& point, size_t first, size_t every) {
  std::vector<double> medians;
  for (const MeasuredCandidate& c : point.candidates) {
    std::vector<double> some;
    for (size_t b = first; b < c.bursts_ns.size(); b += every) some.push_back(c.bursts_ns[b]);
    medians.push_back(median(std::move(some)));
  }
  return static_cast<size_t>(std::min_element(medians.begin(), medians.end()) - medians.begin());
}

/// Maps private memory, in huge pages if available, and touches every page.
std::byte* map_memory(uint64_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw PerfError(fmt::format("no memory for a buffer of {} bytes", bytes));
  madvise(p, bytes, MADV_HUGEPAGE);
  std::memset(p, 0, bytes);
  return static_cast<std::byte*>(p);
}

uint64_t buffer_bytes(uint64_t bytes) { return (std::max<uint64_t>(bytes, 1) + 4095) / 4096 * 4096; }

}  // namespace

double MeasuredCandidate::median_ns() const { return median(bursts_ns); }
double MeasuredCandidate::least_ns() const { return *std::min_element(bursts_ns.begin(), bursts_ns.end()); }

size_t MeasuredPoint::best() const { return least_of(*this, 0, 1); }

double MeasuredPoint::regret() const {
  double sum = 0;
  for (const size_t half : {0u, 1u}) {
    const std::vector<double>&choice = candidates[0].bursts_ns, &best = candidates[least_of(*this, half, 2)].bursts_ns;
    std::vector<double> ratios;
    for (size_t b = 1 - half; b < choice.size(); b += 2) ratios.push_back(choice[b] / best[b]);
    sum += median(ratios);
  }
  return std::max(0.0, sum / 2 - 1);
}

std::string candidate_name(const Candidate& c) {
  if (c.algorithm->direct) return std::string(c.algorithm->name);
  if (c.protocol == Protocol::kInline) return fmt::format("{} inline", c.algorithm->name);
  return fmt::format("{} simple {}{}", c.algorithm->name, c.message_bytes, c.whole_ring ? " whole" : "");
}

CandidateBench::CandidateBench(Communicator& comm, uint64_t max_bytes, const CandidateBenchOptions& options)
    : comm_(comm), options_(options), rank_(comm.rank()), nranks_(comm.size()), max_bytes_(buffer_bytes(max_bytes)) {
  if (!options.registered) {
    in_ = map_memory(max_bytes_);
    out_ = map_memory(max_bytes_);
    return;
  }
  for (std::byte** buffer : {&in_, &out_}) {
    Expected<void*> memory = comm.alloc(max_bytes_);
    check(memory.status());
    *buffer = static_cast<std::byte*>(*memory);
  }
}

CandidateBench::~CandidateBench() {
  for (std::byte* buffer : {in_, out_}) {
    if (options_.registered) (void)comm_.free(buffer);
    else munmap(buffer, max_bytes_);
  }
}

void CandidateBench::check(const Status& status) const {
  if (!status.ok()) throw PerfError(std::string(status.message()));
}

void CandidateBench::force(const Candidate* candidate) {
  CommunicatorImpl& impl = impl_of(comm_);
  impl.lock();
  impl.planner().force(candidate);
  impl.unlock();
}

double CandidateBench::over_ranks(double value, Op op) {
  CallOptions ring;
  ring.algorithm = "ring";
  double result = 0;
  check(comm_.all_reduce(&value, &result, 1, Dtype::kFloat64, op, &ring));
  return result;
}

void CandidateBench::call() {
  const uint64_t own_bytes = static_cast<uint64_t>(rank_) * count_elems_ * dtype_bytes(options_.dtype),
                 n = count_elems_;
  const Dtype t = options_.dtype;
  switch (collective_) {
    case Collective::kAllReduce: return check(comm_.all_reduce(out_, out_, n, t, options_.op));
    case Collective::kReduceScatter: return check(comm_.reduce_scatter(in_, in_ + own_bytes, n, t, options_.op));
    case Collective::kAllGather: return check(comm_.all_gather(out_ + own_bytes, out_, n, t));
    case Collective::kBroadcast: return check(comm_.broadcast(out_, out_, n, t, kRoot));
    case Collective::kReduce: return check(comm_.reduce(in_, out_, n, t, options_.op, kRoot));
    case Collective::kAllToAll: return check(comm_.all_to_all(in_, out_, n, t));
    case Collective::kGather: return check(comm_.gather(in_, out_, n, t, kRoot));
    case Collective::kScatter: return check(comm_.scatter(in_, out_, n, t, kRoot));
    case Collective::kBarrier: return check(comm_.barrier());
    default: throw PerfError(fmt::format("{} has no candidates to choose from", collective_name(collective_)));
  }
}

double CandidateBench::burst_ns(uint64_t calls) {
  (void)over_ranks(0, Op::kSum);  // barrier
  const Clock::time_point start = Clock::now();
  for (uint64_t i = 0; i < calls; ++i) call();
  const double mine = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  return over_ranks(mine, Op::kMax) / static_cast<double>(calls);
}

MeasuredPoint CandidateBench::measure(Collective collective, uint64_t bytes) {
  collective_ = collective;
  const uint64_t elem_bytes = dtype_bytes(options_.dtype);
  const uint64_t parts = whole_elems(collective, 1, nranks_);
  count_elems_ = std::max<uint64_t>(1, std::min(bytes, max_bytes_) / elem_bytes / parts);
  rondo::CallShape request;
  request.collective = collective;
  request.dtype = options_.dtype;
  if (collective_reduces(collective)) request.op = options_.op;
  request.count_elems = collective == Collective::kBarrier ? 0 : count_elems_;
  CommunicatorImpl& impl = impl_of(comm_);
  impl.lock();
  Expected<std::vector<Candidate>> found = impl.planner().candidates(request);
  MeasuredPoint point{collective,
                      nranks_,
                      impl.planner().settings().ranks_per_core,
                      whole_elems(collective, request.count_elems, nranks_) * elem_bytes,
                      {}};
  impl.unlock();
  check(found.status());

  std::vector<uint64_t> calls;  // calls per burst, by candidate
  double round_ns = 0;
  for (const Candidate& c : *found) {
    force(&c);
    point.candidates.push_back({c, impl.planner().form_of(c), {}});
    const bool slow = burst_ns(1) > kSlowNs;  // also makes connections and pages
    const double ns = burst_ns(slow ? 1 : 3);
    calls.push_back(static_cast<uint64_t>(std::clamp(options_.burst_us * 1000 / ns, 1.0, 4000.0)));
    round_ns += ns * static_cast<double>(calls.back());
  }
  const int bursts = std::clamp(static_cast<int>(options_.point_s * 1e9 / round_ns), 3, std::max(3, options_.bursts));
  for (int b = 0; b < bursts; ++b)
    for (size_t k = 0; k < calls.size(); ++k) {
      const size_t i = b % 2 == 0 ? k : calls.size() - 1 - k;  // so that no candidate always follows the same one
      force(&point.candidates[i].candidate);
      if (calls[i] > 1) (void)burst_ns(1);  // makes the plan, which costs little compared with a long call
      point.candidates[i].bursts_ns.push_back(burst_ns(calls[i]));
    }
  force(nullptr);
  return point;
}

}  // namespace rondo::tools

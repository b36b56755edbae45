#include "perf_bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>

#include "perf_buffers.h"
#include "perf_data.h"
#include "perf_report.h"

namespace rondo::tools {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr size_t kMaxQueued = 64;  // operations under way with -z 0

/// A line on stderr that says how far the run is: at once on a terminal, else after two seconds.
class Progress {
 public:
  void say(const std::string& what) {
    if (seconds_since(last_) < (terminal_ ? 0.2 : 2.0)) return;
    last_ = Clock::now();
    const std::string line = fmt::format("rondo perf: {:.0f} s, {}", seconds_since(start_), what);
    std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "%s\n", line.c_str());
    shown_ = terminal_;
  }
  void clear() {
    if (shown_) std::fputs("\r\033[K", stderr);
    shown_ = false;
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  Clock::time_point start_ = Clock::now(), last_ = start_;
  bool shown_ = false;
};

uint64_t available_memory_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  uint64_t kib = 0;
  while (meminfo >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    meminfo.ignore(256, '\n');
  }
  return UINT64_MAX;
}

/// Not this rank's own trouble: the one that has it reports it.
class PeerFailed : public PerfError {
 public:
  using PerfError::PerfError;
};

class RankBench {
 public:
  RankBench(const PerfOptions& options, rondo_comm* comm, const PerfRun& run) : options_(options), comm_(comm) {
    check(rondo_comm_rank(comm, &rank_), "rondo_comm_rank");
    check(rondo_comm_size(comm, &nranks_), "rondo_comm_size");
    std::vector<RankInfo> ranks = gather_rank_infos();
    refuse_too_much_memory(ranks);
    buffers_ = std::make_unique<PerfBuffers>(options, comm, nranks_);
    if (rank_ != 0) return;
    RunInfo info{nranks_,
                 run.ranks_are,
                 run.args,
                 std::move(ranks),
                 PerfBuffers::arena_bytes(options, nranks_),
                 static_cast<uint64_t>(std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE)))};
    report_.emplace(options, std::move(info), stdout);
  }

  bool run() {
    if (report_) report_->header();
    std::string error;
    try {
      for (int cycle = 0; options_.run_cycles == 0 || cycle < options_.run_cycles; ++cycle) sweep();
    } catch (const PerfError& e) {
      if (!report_) throw;
      error = e.what();
    }
    progress_.clear();
    if (report_) {
      report_->footer(error);
      write_json();
    }
    if (!error.empty()) throw PerfError(error);
    return total_wrong_ == 0;
  }

 private:
  void check(rondo_status status, const char* what) {
    if (status == RONDO_OK) return;
    if (status == RONDO_ABORTED && rank_ != 0) throw PeerFailed("another rank has failed and says why");
    const std::string text = rondo_last_error(comm_);
    throw PerfError(fmt::format("{} on rank {}: {}", what, rank_, text.empty() ? rondo_status_string(status) : text));
  }

  // ---- among the ranks; by the ring, whatever is measured ----

  void combine(double* values, uint64_t num, rondo_op op) {
    rondo_call call = RONDO_CALL_INIT;
    call.algorithm = "ring";
    check(rondo_all_reduce(comm_, values, values, num, RONDO_FLOAT64, op, &call, nullptr), "combining results");
  }
  void barrier() {
    double nothing = 0;
    combine(&nothing, 1, RONDO_SUM);
  }
  std::vector<RankInfo> gather_rank_infos() {
    const RankInfo mine = describe_this_rank();
    std::vector<RankInfo> all(static_cast<size_t>(nranks_));
    rondo_call call = RONDO_CALL_INIT;
    call.algorithm = "ring";
    check(rondo_all_gather(comm_, &mine, all.data(), sizeof mine, RONDO_UINT8, &call, nullptr), "meeting the ranks");
    return all;
  }
  void refuse_too_much_memory(const std::vector<RankInfo>& ranks) {
    const auto here = std::count_if(ranks.begin(), ranks.end(), [&](const RankInfo& r) {
      return std::strcmp(r.host, ranks[static_cast<size_t>(rank_)].host) == 0;
    });
    const double need = static_cast<double>(PerfBuffers::arena_bytes(options_, nranks_)) * static_cast<double>(here);
    double most_over = need / static_cast<double>(available_memory_bytes());
    combine(&most_over, 1, RONDO_MAX);  // all ranks or none
    if (most_over > 0.9)
      throw PerfError(
          fmt::format("the buffers need {:.1f} GiB on this host, more than 90 % of its free memory: lower "
                      "-e, --rotate or -m",
                      need / (1u << 30)));
  }

  // ---- one operation ----

  struct Ends {
    const void* in;
    void* out;
  };
  Ends ends(const Place& place) const {
    const uint64_t own_bytes = static_cast<uint64_t>(rank_) * shape_.count_elems * dtype_bytes(dtype_);
    if (!in_place_) return {place.in, place.out};
    if (options_.collective == Collective::kReduceScatter) return {place.in, place.in + own_bytes};
    if (options_.collective == Collective::kAllGather) return {place.out + own_bytes, place.out};
    return {place.out, place.out};
  }

  void issue(const Place& place, rondo_work** work) {
    const auto [in, out] = ends(place);
    const auto dtype = static_cast<rondo_dtype>(dtype_);
    const auto op = static_cast<rondo_op>(op_);
    rondo_call with_scale = RONDO_CALL_INIT;
    with_scale.premul = &premul_;
    const rondo_call* call = op_ == Op::kPremulSum ? &with_scale : nullptr;
    switch (options_.collective) {
      case Collective::kAllReduce:
        return check(rondo_all_reduce(comm_, in, out, shape_.count_elems, dtype, op, call, work), "all_reduce");
      case Collective::kReduceScatter:
        return check(rondo_reduce_scatter(comm_, in, out, shape_.count_elems, dtype, op, call, work), "reduce_scatter");
      case Collective::kAllGather:
        return check(rondo_all_gather(comm_, in, out, shape_.count_elems, dtype, call, work), "all_gather");
      default: return check(RONDO_UNSUPPORTED, "a collective that perf does not measure");
    }
  }

  /// One iteration: a blocking call, or a group of them.
  void iterate() {
    if (options_.aggregate == 1) {
      issue(buffers_->place(0), nullptr);
    } else {
      check(rondo_group_start(), "rondo_group_start");
      for (int m = 0; m < options_.aggregate; ++m) issue(buffers_->place(static_cast<uint64_t>(m)), nullptr);
      check(rondo_group_end(), "rondo_group_end");
    }
    buffers_->advance(static_cast<uint64_t>(options_.aggregate));
  }

  void iterate_queued(int iters) {
    std::deque<rondo_work*> under_way;
    for (int i = 0; i < iters * options_.aggregate; ++i) {
      rondo_work* work = nullptr;
      issue(buffers_->place(0), &work);
      buffers_->advance(1);
      under_way.push_back(work);
      if (under_way.size() < kMaxQueued) continue;
      check(rondo_work_wait(under_way.front()), "rondo_work_wait");
      under_way.pop_front();
    }
    for (rondo_work* work : under_way) check(rondo_work_wait(work), "rondo_work_wait");
  }

  // ---- one size ----

  void prepare(const Place& place) {
    const auto [in, out] = ends(place);
    const uint64_t elem_bytes = dtype_bytes(dtype_);
    if (!in_place_ || options_.collective == Collective::kAllGather)
      std::memset(out, 0x5a, shape_.out_elems * elem_bytes);
    data_->fill(rank_, shape_.in_elems, const_cast<void*>(in));
  }
  uint64_t count_wrong(const Place& place) {
    const void* out = ends(place).out;
    if (options_.collective == Collective::kAllGather) return data_->count_wrong_gathered(shape_.count_elems, out);
    const bool part = options_.collective == Collective::kReduceScatter;
    return data_->count_wrong_reduced(part ? static_cast<uint64_t>(rank_) * shape_.count_elems : 0, shape_.out_elems,
                                      out);
  }
  uint64_t verify() {
    uint64_t wrong = 0;
    for (int c = 0; c < options_.check; ++c) {
      const Place place = buffers_->place(0);
      prepare(place);
      issue(place, nullptr);
      wrong += count_wrong(place);
      buffers_->advance(1);
    }
    return wrong;
  }

  double measure() {
    for (int i = 0; i < options_.warmup_iters; ++i) iterate();
    barrier();
    const Clock::time_point start = Clock::now();
    if (static_cast<Blocking>(options_.blocking) == Blocking::kQueue) {
      iterate_queued(options_.iters);
    } else {
      for (int i = 0; i < options_.iters; ++i) {
        iterate();
        if (static_cast<Blocking>(options_.blocking) == Blocking::kBarrier) barrier();
      }
    }
    return seconds_since(start) / options_.iters / options_.aggregate;
  }

  /// This rank's time becomes the one that is reported, and the wrong values of all ranks are added up.
  Measurement over_ranks(double seconds, uint64_t wrong) {
    const auto averaging = static_cast<Averaging>(options_.average);
    double sums[2] = {averaging == Averaging::kRank0 && rank_ != 0 ? 0 : seconds, static_cast<double>(wrong)};
    double extreme = seconds;
    combine(sums, 2, RONDO_SUM);
    if (averaging == Averaging::kMin || averaging == Averaging::kMax)
      combine(&extreme, 1, averaging == Averaging::kMin ? RONDO_MIN : RONDO_MAX);
    total_wrong_ += static_cast<uint64_t>(sums[1]);
    Measurement m;
    m.seconds = averaging == Averaging::kRank0 ? sums[0] : averaging == Averaging::kMean ? sums[0] / nranks_ : extreme;
    if (options_.check > 0) m.num_wrong = static_cast<uint64_t>(sums[1]);
    return m;
  }

  Measurement measure_placement(bool in_place) {
    in_place_ = in_place;
    uint64_t wrong = verify();
    if (report_) progress_.say(fmt::format("{} bytes of {}: measuring", shape_.bytes, dtype_name(dtype_)));
    const double seconds = measure();
    wrong += verify();
    return over_ranks(seconds, wrong);
  }

  std::string plan_text() {
    if (!options_.explain || !report_) return "";
    char text[1024] = {};
    check(rondo_explain_plan(comm_, std::string(collective_name(options_.collective)).c_str(), shape_.count_elems,
                             static_cast<rondo_dtype>(dtype_), static_cast<rondo_op>(op_), text, sizeof text),
          "rondo_explain_plan");
    return text;
  }

  void measure_size(uint64_t bytes, size_t index, size_t num_sizes) {
    shape_ = call_shape(options_.collective, dtype_, nranks_, bytes);
    buffers_->use(shape_, dtype_);
    if (report_)
      progress_.say(fmt::format("size {} of {}: {} bytes of {}", index + 1, num_sizes, bytes, dtype_name(dtype_)));
    ResultRow row;
    row.shape = shape_;
    row.dtype = dtype_;
    if (collective_reduces(options_.collective)) row.op = op_;
    row.plan = plan_text();
    row.out_of_place = measure_placement(false);
    row.in_place = measure_placement(true);
    progress_.clear();
    if (report_) report_->row(row);
  }

  void sweep() {
    const std::vector<uint64_t> sizes = sweep_bytes(options_).value();
    const bool reduces = collective_reduces(options_.collective);
    for (Dtype dtype : options_.dtypes)
      for (Op op : reduces ? options_.ops : std::vector<Op>{Op::kSum}) {
        dtype_ = dtype;
        op_ = op;
        data_ = std::make_unique<PerfData>(DataSpec{options_.collective, dtype, op, nranks_, kSeed});
        premul_ = data_->premul(rank_);
        for (size_t i = 0; i < sizes.size(); ++i) measure_size(sizes[i], i, sizes.size());
      }
  }

  void write_json() {
    if (options_.json_path.empty()) return;
    const auto name = write_new_file(options_.json_path, report_->json());
    fmt::print("# JSON: {}\n", name ? *name : "cannot write " + options_.json_path);
    if (!name) throw PerfError("cannot write " + options_.json_path);
  }

  static constexpr uint64_t kSeed = 20260101;
  const PerfOptions& options_;
  rondo_comm* comm_;
  int rank_ = 0, nranks_ = 1;
  std::unique_ptr<PerfBuffers> buffers_;
  std::optional<Report> report_;  // rank 0's
  Progress progress_;
  uint64_t total_wrong_ = 0;
  // of the current row
  std::unique_ptr<PerfData> data_;
  Dtype dtype_ = Dtype::kFloat32;
  Op op_ = Op::kSum;
  uint64_t premul_ = 0;
  CallShape shape_;
  bool in_place_ = false;
};

rondo_config config_of(const PerfOptions& options) {
  rondo_config config = RONDO_CONFIG_INIT;
  config.deadline_s = options.timeout_s;
  return config;
}

/// The exit status of one rank; tells the other ranks when it gives up.
int bench_and_destroy(const PerfOptions& options, rondo_comm* comm, const PerfRun& run) {
  bool correct = false, failed = false;
  try {
    correct = bench(options, comm, run);
  } catch (const PeerFailed&) {
    failed = true;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rondo perf: %s\n", e.what());
    failed = true;
    rondo_comm_abort(comm);
  }
  rondo_comm_destroy(comm);
  return correct && !failed ? 0 : 1;
}

}  // namespace

bool bench(const PerfOptions& options, rondo_comm* comm, const PerfRun& run) {
  return RankBench(options, comm, run).run();
}

int bench_threads(const PerfOptions& options, int nranks, const PerfRun& run) {
  const rondo_config config = config_of(options);
  std::vector<rondo_comm*> comms(static_cast<size_t>(nranks));
  if (rondo_comm_init_all(comms.data(), nranks, &config) != RONDO_OK) {
    std::fprintf(stderr, "rondo perf: %s\n", rondo_last_error(nullptr));
    return 1;
  }
  std::vector<int> exits(comms.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < comms.size(); ++r)
    threads.emplace_back([&, r] { exits[r] = bench_and_destroy(options, comms[r], run); });
  for (std::thread& t : threads) t.join();
  return *std::max_element(exits.begin(), exits.end());
}

int bench_env(const PerfOptions& options, const PerfRun& run) {
  const rondo_config config = config_of(options);
  rondo_comm* comm = nullptr;
  if (rondo_comm_init_env(&comm, &config) != RONDO_OK) {
    std::fprintf(stderr, "rondo perf: %s\n", rondo_last_error(nullptr));
    return 1;
  }
  return bench_and_destroy(options, comm, run);
}

}  // namespace rondo::tools

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
#include <numeric>
#include <optional>
#include <string_view>
#include <thread>

#include "perf_buffers.h"
#include "perf_data.h"
#include "perf_progress.h"
#include "perf_report.h"
#include "perf_times.h"
#include "topology/caches.h"

namespace rondo::tools {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr size_t kMaxQueued = 64;  // limit of concurrent operations with -z 0

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

/// Another rank failed, and reports the error itself.
class PeerFailed : public PerfError {
 public:
  using PerfError::PerfError;
};

class RankBench {
 public:
  RankBench(const PerfOptions& options, rondo_comm* comm, const PerfRun& run)
      : options_(options), comm_(comm), control_(comm) {
    check(rondo_comm_rank(comm, &rank_), "rondo_comm_rank");
    check(rondo_comm_size(comm, &nranks_), "rondo_comm_size");
    std::vector<RankInfo> ranks = gather_rank_infos();
    if (options.on_device) take_device();
    else refuse_too_much_memory(ranks);
    buffers_ = std::make_unique<PerfBuffers>(options, comm_, nranks_, device_.get());
    if (rank_ != 0) return;
    RunInfo info{nranks_,
                 run.ranks_are,
                 run.args,
                 std::move(ranks),
                 PerfBuffers::arena_bytes(options, nranks_),
                 last_level_cache_bytes()};
    report_.emplace(options, std::move(info), options.json_path == "-" ? stderr : stdout);
  }

  ~RankBench() {
    if (comm_ != control_) rondo_comm_destroy(comm_);
  }
  RankBench(const RankBench&) = delete;
  RankBench& operator=(const RankBench&) = delete;

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
  const PerfOperation& op() const { return *options_.operation; }
  void check(rondo_status status, std::string_view what) {
    if (status == RONDO_OK) return;
    if (status != RONDO_OK && comm_ != control_) rondo_comm_abort(control_);
    if (status == RONDO_ABORTED && rank_ != 0) throw PeerFailed("another rank failed and printed the reason");
    const std::string text = rondo_last_error(comm_);
    throw PerfError(fmt::format("{} on rank {}: {}", what, rank_, text.empty() ? rondo_status_string(status) : text));
  }

  /// Makes a communicator of the same ranks with device buffers. Results are still exchanged in host memory.
  void take_device() {
    const int ordinal = rank_ % std::max(1, PerfDevice::count());
    device_ = std::make_unique<PerfDevice>(ordinal);
    rondo_config config = RONDO_CONFIG_INIT;
    config.memory = RONDO_MEMORY_CUDA;
    config.device = ordinal;
    rondo_comm* on_device = nullptr;
    check(rondo_comm_split(control_, 0, rank_, &on_device, &config), "a communicator of device memory");
    comm_ = on_device;
  }

  // ---- results between ranks; always by the ring ----

  void combine(double* values, uint64_t num, rondo_op op) {
    rondo_call call = RONDO_CALL_INIT;
    call.algorithm = "ring";
    check(rondo_all_reduce(control_, values, values, num, RONDO_FLOAT64, op, &call, nullptr), "combining results");
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
    check(rondo_all_gather(control_, &mine, all.data(), sizeof mine, RONDO_UINT8, &call, nullptr),
          "gathering the ranks' descriptions");
    return all;
  }
  void refuse_too_much_memory(const std::vector<RankInfo>& ranks) {
    const auto here = std::count_if(ranks.begin(), ranks.end(), [&](const RankInfo& r) {
      return std::strcmp(r.host, ranks[static_cast<size_t>(rank_)].host) == 0;
    });
    const double need = static_cast<double>(PerfBuffers::arena_bytes(options_, nranks_)) * static_cast<double>(here);
    double most_over = need / static_cast<double>(available_memory_bytes());
    combine(&most_over, 1, RONDO_MAX);  // all ranks must agree
    if (most_over > 0.9)
      throw PerfError(
          fmt::format("the buffers need {:.1f} GiB on this host, more than 90 % of its free memory: lower "
                      "-e, --rotate or -m",
                      need / (1u << 30)));
  }

  // ---- one operation ----

  struct Ends {
    std::byte* in;
    std::byte* out;
  };
  /// nullptr for a buffer that this rank does not have.
  Ends ends(const Place& place) const {
    Ends e{place.in, place.out};
    const uint64_t elem_bytes = dtype_bytes(types_.input);
    if (in_place_ && op().cuts_in()) e.out = e.in + layout_.in_own * elem_bytes;
    else if (in_place_) e.in = e.out + layout_.out_own * elem_bytes;
    if (layout_.in_elems == 0) e.in = nullptr;
    if (layout_.out_elems == 0) e.out = nullptr;
    return e;
  }

  void issue(const Place& place, rondo_work** works) {
    const auto [in, out] = ends(place);
    const PerfCall call{comm_,
                        rank_,
                        nranks_,
                        in,
                        out,
                        shape_.count_elems,
                        layout_.in_counts.data(),
                        layout_.out_counts.data(),
                        static_cast<rondo_dtype>(types_.input),
                        static_cast<rondo_op>(reduce_op_),
                        root_,
                        call_options_ ? &*call_options_ : nullptr,
                        works};
    check(op().issue(call), op().name);
  }

  /// Sets the options that a plain call does not have.
  void prepare_call() {
    const bool scales = op().traits.reduces && reduce_op_ == Op::kPremulSum;
    premul_ = data_->premul(rank_);
    call_options_.reset();
    if (!scales && types_ == uniform_row(types_.input) && device_ == nullptr) return;
    call_options_ = RONDO_CALL_INIT;
    if (device_ != nullptr) call_options_->stream = device_->stream();
    call_options_->wire = static_cast<rondo_dtype>(types_.wire);
    call_options_->accumulator = static_cast<rondo_dtype>(types_.accumulator);
    call_options_->output = static_cast<rondo_dtype>(types_.output);
    if (scales) call_options_->premul = &premul_;
    if (!options_.algorithm.empty()) call_options_->algorithm = options_.algorithm.c_str();
  }

  /// One iteration: a blocking call or a group.
  void iterate() {
    if (options_.aggregate == 1) {
      issue(buffers_->place(0), nullptr);
    } else {
      check(rondo_group_start(), "rondo_group_start");
      for (int m = 0; m < options_.aggregate; ++m) issue(buffers_->place(static_cast<uint64_t>(m)), nullptr);
      check(rondo_group_end(), "rondo_group_end");
    }
    buffers_->advance(static_cast<uint64_t>(options_.aggregate));
    if (device_ != nullptr && static_cast<Blocking>(options_.blocking) != Blocking::kQueue) device_->synchronize();
  }

  void iterate_queued(int iters) {
    if (device_ != nullptr) {  // a stream is already a queue
      for (int i = 0; i < iters; ++i) iterate();
      return device_->synchronize();
    }
    std::deque<rondo_work*> under_way;
    for (int i = 0; i < iters * options_.aggregate; ++i) {
      rondo_work* works[PerfCall::kMaxWorks] = {};
      issue(buffers_->place(0), works);
      buffers_->advance(1);
      for (rondo_work* work : works)
        if (work != nullptr) under_way.push_back(work);
      while (under_way.size() >= kMaxQueued) wait_for_first(under_way);
    }
    while (!under_way.empty()) wait_for_first(under_way);
  }
  void wait_for_first(std::deque<rondo_work*>& under_way) {
    check(rondo_work_wait(under_way.front()), "rondo_work_wait");
    under_way.pop_front();
  }

  // ---- one size ----

  void prepare(const Place& place) {
    const auto [in, out] = ends(place);
    if (device_ != nullptr) {
      if (out != nullptr) device_->fill(out, 0x5a, layout_.out_elems * dtype_bytes(types_.output));
      if (in == nullptr) return;
      const uint64_t bytes = layout_.in_elems * dtype_bytes(types_.input);
      data_->fill(rank_, layout_.in_elems, device_->host(bytes));
      return device_->upload(in, device_->host(bytes), bytes);
    }
    if (out != nullptr) std::memset(out, 0x5a, layout_.out_elems * dtype_bytes(types_.output));
    if (in != nullptr) data_->fill(rank_, layout_.in_elems, in);
  }
  uint64_t count_wrong(const Place& place) {
    const std::byte* out = ends(place).out;
    if (out == nullptr) return 0;
    if (device_ != nullptr) {
      const uint64_t bytes = layout_.out_elems * dtype_bytes(types_.output);
      device_->download(device_->host(bytes), out, bytes);
      out = device_->host(bytes);
    }
    if (op().traits.reduces) return data_->count_wrong_reduced(layout_.in_own, layout_.out_elems, out);
    uint64_t wrong = 0;
    for (const Segment& s : segments_) {
      wrong += data_->count_wrong_delivered(s.from, s.first_elem, s.num_elems, out);
      out += s.num_elems * dtype_bytes(types_.output);
    }
    return wrong;
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

  struct Timed {
    double mean_s = 0;
    std::optional<Spread> spread;
  };
  Timed measure() {
    for (int i = 0; i < options_.warmup_iters; ++i) iterate();
    if (device_ != nullptr) device_->synchronize();
    check(rondo_comm_error(comm_), op().name);
    const auto blocking = static_cast<Blocking>(options_.blocking);
    IterationTimes times(options_.iters, TickScale(made_, read_clock_pair()));
    double untimed_s = 0;
    barrier();
    const Clock::time_point start = Clock::now();
    times.start();
    if (blocking == Blocking::kQueue) {
      iterate_queued(options_.iters);
    } else if (blocking == Blocking::kUntimedBarrier) {
      for (int i = 0; i < options_.iters; ++i) untimed_s += iterate_and_meet(times);
    } else {
      for (int i = 0; i < options_.iters; ++i) {
        iterate();
        if (blocking == Blocking::kBarrier) barrier();
        times.lap();
      }
    }
    const double all_s = seconds_since(start) - untimed_s;
    return {all_s / options_.iters / options_.aggregate, times.finish(options_.aggregate)};
  }
  /// Times one iteration, then runs a barrier. Returns the seconds of the barrier.
  double iterate_and_meet(IterationTimes& times) {
    const Clock::time_point start = Clock::now();
    iterate();
    const Clock::time_point end = Clock::now();
    times.add(std::chrono::duration<double>(end - start).count());
    barrier();
    return seconds_since(end);
  }

  /// Replaces this rank's times by the reported times.
  void average_over_ranks(double* seconds, uint64_t num) {
    const auto averaging = static_cast<Averaging>(options_.average);
    if (averaging == Averaging::kMin) return combine(seconds, num, RONDO_MIN);
    if (averaging == Averaging::kMax) return combine(seconds, num, RONDO_MAX);
    if (averaging == Averaging::kRank0 && rank_ != 0) std::fill_n(seconds, num, 0.0);
    combine(seconds, num, RONDO_SUM);
    for (uint64_t i = 0; averaging == Averaging::kMean && i < num; ++i) seconds[i] /= nranks_;
  }

  /// Applies -a to the times and adds the wrong values of all ranks.
  Measurement over_ranks(const Timed& timed, uint64_t wrong) {
    const Spread spread = timed.spread.value_or(Spread{});
    double seconds[] = {timed.mean_s, spread.median_s, spread.p10_s, spread.p90_s};
    double all_wrong = static_cast<double>(wrong);
    average_over_ranks(seconds, std::size(seconds));
    combine(&all_wrong, 1, RONDO_SUM);
    total_wrong_ += static_cast<uint64_t>(all_wrong);
    Measurement m;
    m.seconds = seconds[0];
    if (timed.spread) m.spread = {seconds[1], seconds[2], seconds[3]};
    if (options_.check > 0 && op().moves_bytes()) m.num_wrong = static_cast<uint64_t>(all_wrong);
    return m;
  }

  Measurement measure_placement(bool in_place) {
    in_place_ = in_place;
    uint64_t wrong = verify();
    if (report_) progress_.say(fmt::format("{} bytes of {}: measuring", shape_.bytes, dtype_name(types_.input)));
    const Timed timed = measure();
    wrong += verify();
    return over_ranks(timed, wrong);
  }

  std::string plan_text() {
    if (!options_.show_plan || !report_) return "";
    char text[1024] = {};
    check(rondo_explain_plan(comm_, std::string(op().name).c_str(), shape_.count_elems,
                             static_cast<rondo_dtype>(types_.input), static_cast<rondo_op>(reduce_op_), text,
                             sizeof text),
          "rondo_explain_plan");
    return text;
  }

  void measure_size(uint64_t bytes, size_t index, size_t num_sizes) {
    shape_ = call_shape(op(), types_.input, nranks_, bytes);
    layout_ = rank_layout(op(), shape_, {rank_, nranks_, root_});
    segments_ = expected_segments(op(), shape_, {rank_, nranks_, root_});
    buffers_->use(shape_, types_);
    if (report_)
      progress_.say(
          fmt::format("size {} of {}: {} bytes of {}", index + 1, num_sizes, bytes, dtype_name(types_.input)));
    ResultRow row;
    row.shape = shape_;
    if (op().moves_bytes()) row.dtype = types_.input;
    if (op().traits.reduces) row.op = reduce_op_;
    if (op().is_rooted()) row.root = root_;
    row.plan = plan_text();
    row.out_of_place = measure_placement(false);
    if (op().may_be_in_place() && types_.input == types_.output) row.in_place = measure_placement(true);
    progress_.clear();
    if (report_) report_->row(row);
  }

  std::vector<int> roots() const {
    if (!op().is_rooted() || options_.root >= 0) return {std::max(0, options_.root)};
    std::vector<int> all(static_cast<size_t>(nranks_));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  void sweep() {
    const std::vector<uint64_t> sizes = op().moves_bytes() ? sweep_bytes(options_).value() : std::vector<uint64_t>{0};
    const std::vector<Dtype> dtypes = op().moves_bytes() ? options_.dtypes : std::vector<Dtype>{Dtype::kUint8};
    for (Dtype dtype : dtypes)
      for (Op reduce_op : op().traits.reduces ? options_.ops : std::vector<Op>{Op::kSum}) {
        types_ = types_of(options_, dtype);
        reduce_op_ = reduce_op;
        data_ = std::make_unique<PerfData>(DataSpec{op().traits, types_, reduce_op, nranks_, kSeed});
        prepare_call();
        for (int root : roots()) {
          root_ = root;
          for (size_t i = 0; i < sizes.size(); ++i) measure_size(sizes[i], i, sizes.size());
        }
      }
  }

  void write_json() {
    if (options_.json_path.empty()) return;
    if (options_.json_path == "-") {
      std::fputs(report_->json().c_str(), stdout);
      if (std::fflush(stdout) != 0) throw PerfError("cannot write the JSON to the standard output");
      return;
    }
    const auto name = write_new_file(options_.json_path, report_->json());
    fmt::print("# JSON: {}\n", name ? *name : "cannot write " + options_.json_path);
    if (!name) throw PerfError("cannot write " + options_.json_path);
  }

  static constexpr uint64_t kSeed = 20260101;
  const PerfOptions& options_;
  rondo_comm* comm_;     // measured
  rondo_comm* control_;  // in host memory; equal to comm_ unless buffers are on devices
  std::unique_ptr<PerfDevice> device_;
  int rank_ = 0, nranks_ = 1;
  std::unique_ptr<PerfBuffers> buffers_;
  std::optional<Report> report_;  // rank 0 only
  Progress progress_;
  const ClockPair made_ = read_clock_pair();
  uint64_t total_wrong_ = 0;
  // for the current row
  std::unique_ptr<PerfData> data_;
  TypeRow types_ = uniform_row(Dtype::kFloat32);
  Op reduce_op_ = Op::kSum;
  int root_ = 0;
  uint64_t premul_ = 0;
  std::optional<rondo_call> call_options_;
  CallShape shape_;
  RankLayout layout_;
  std::vector<Segment> segments_;  // expected output, if the operation does not reduce
  bool in_place_ = false;
};

rondo_config config_of(const PerfOptions& options) {
  rondo_config config = RONDO_CONFIG_INIT;
  config.deadline_s = options.timeout_s;
  return config;
}

/// Returns the exit status of one rank. Aborts the other ranks if it fails.
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

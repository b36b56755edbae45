// Report of `rondo perf`: nccl-tests' table on a stream, and its JSON.
//
// The columns, their widths and the JSON keys are nccl-tests' (2.19), so that its readers work on ours; rondo adds
// columns behind them (median, p10, p90 and which measurement is disturbed) and keys (rondo_version, regime, num_ranks,
// ranks_are, rotate_sets, plan, types, median, p10, p90, disturbed) and takes none away. What was not measured is
// N/A in the table and null in the JSON. A `host` device says that the numbers come from memory, not from NVLink.
//
// Thread safety: belongs to rank 0.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "perf_options.h"
#include "perf_times.h"

namespace rondo::tools {

/// One rank of the run, as it describes itself.
struct RankInfo {
  int32_t pid = 0;
  char host[64] = {};
  char processor[128] = {};
};
RankInfo describe_this_rank();

/// What kind of run it is, beside the options.
struct RunInfo {
  int nranks = 1;
  std::string ranks_are;  // "processes", "threads", "processes of torchrun", "one rank"
  std::vector<std::string> args;
  std::vector<RankInfo> ranks;
  uint64_t buffer_bytes = 0;  // all buffers of one rank
  uint64_t cache_bytes = 0;   // last-level cache; 0: unknown
};

struct Measurement {
  double seconds = 0;                   // of one operation
  std::optional<uint64_t> num_wrong{};  // nothing: not checked
  std::optional<Spread> spread{};       // nothing: iterations were not timed one by one
  bool disturbed() const { return spread && is_disturbed(seconds, *spread); }
};

struct ResultRow {
  CallShape shape;
  std::optional<Dtype> dtype;  // nothing: no data
  std::optional<Op> op;        // nothing: nothing is reduced
  int root = -1;               // -1: none
  std::string plan;            // the planner's reason, when asked for
  Measurement out_of_place;
  std::optional<Measurement> in_place;  // nothing: the operation has no such form
};

/// "1234.56" in at most `width` characters, fewer digits for larger numbers.
std::string format_number(double value, int width);

class Report {
 public:
  Report(const PerfOptions& options, RunInfo run, std::FILE* out);
  void header();
  void row(const ResultRow& row);
  /// Ends the table. `error`: empty, or why the run ended early.
  void footer(const std::string& error);
  /// The JSON text; call after footer.
  std::string json() const;
  /// True when no value was wrong.
  bool all_correct() const { return num_wrong_ == 0; }

 private:
  std::string row_text(const ResultRow& row) const;
  double average_bus_bandwidth() const;
  /// How many measurements were disturbed, of how many.
  std::pair<size_t, size_t> disturbed() const;

  const PerfOptions& options_;
  RunInfo run_;
  std::FILE* out_;
  std::vector<ResultRow> rows_;
  uint64_t num_wrong_ = 0;
  std::string start_time_, end_time_, error_;
};

/// Writes `text` to a new file: `path`, or when that exists path.0, path.1, ... The name, or nothing when it cannot.
std::optional<std::string> write_new_file(const std::string& path, const std::string& text);

}  // namespace rondo::tools

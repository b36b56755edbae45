// Report of `rondo perf`: nccl-tests' table and JSON.
//
// The columns, their widths and the JSON keys are nccl-tests' (2.19), so that its tools can read our output. rondo
// appends columns (median, p10, p90, disturbed) and keys (rondo_version, regime, num_ranks, ranks_are, rotate_sets,
// plan, types, median, p10, p90, disturbed). Unmeasured values are N/A in the table and null in the JSON. A `host`
// device means that the numbers come from memory, not from NVLink. Thread safety: used by rank 0.
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

struct RankInfo {
  int32_t pid = 0;
  char host[64] = {};
  char processor[128] = {};
};
RankInfo describe_this_rank();

/// Facts about the run that are not in the options.
struct RunInfo {
  int nranks = 1;
  std::string ranks_are;  // "processes", "threads", "processes of torchrun", "one rank"
  std::vector<std::string> args;
  std::vector<RankInfo> ranks;
  uint64_t buffer_bytes = 0;  // sum of one rank's buffers
  uint64_t cache_bytes = 0;   // last-level cache; 0: unknown
};

struct Measurement {
  double seconds = 0;                   // of one operation
  std::optional<uint64_t> num_wrong{};  // nullopt: not checked
  std::optional<Spread> spread{};       // nullopt: iterations were not timed separately
  bool disturbed() const { return spread && is_disturbed(seconds, *spread); }
};

struct ResultRow {
  CallShape shape;
  std::optional<Dtype> dtype;  // nullopt: no data
  std::optional<Op> op;        // nullopt: no reduction
  int root = -1;               // -1: no root
  std::string plan;            // the planner's reason, if requested
  Measurement out_of_place;
  std::optional<Measurement> in_place;  // nullopt: not supported by the operation
};

/// "1234.56" in at most `width` characters, with fewer digits for larger numbers.
std::string format_number(double value, int width);

class Report {
 public:
  Report(const PerfOptions& options, RunInfo run, std::FILE* out);
  void header();
  void row(const ResultRow& row);
  /// Ends the table. `error`: the reason if the run ended early, else empty.
  void footer(const std::string& error);
  /// The JSON text; call after footer.
  std::string json() const;
  /// True when no value was wrong.
  bool all_correct() const { return num_wrong_ == 0; }

 private:
  std::string row_text(const ResultRow& row) const;
  double average_bus_bandwidth() const;
  /// Number of disturbed measurements, and of all.
  std::pair<size_t, size_t> disturbed() const;

  const PerfOptions& options_;
  RunInfo run_;
  std::FILE* out_;
  std::vector<ResultRow> rows_;
  uint64_t num_wrong_ = 0;
  std::string start_time_, end_time_, error_;
};

/// Writes `text` to a new file: `path`, or if that exists path.0, path.1, ... Returns its name, or nullopt on failure.
std::optional<std::string> write_new_file(const std::string& path, const std::string& text);

}  // namespace rondo::tools

#include "perf_report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "rondo/rondo.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace rondo::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;
constexpr int kJsonLayout = 3;  // of nccl-tests

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string measurement_text(const std::optional<Measurement>& m, const Bandwidth& b) {
  if (!m) return fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A");
  return fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", format_number(m->seconds * 1e6, 7), format_number(b.algorithm, 6),
                     format_number(b.bus, 6),
                     m->num_wrong ? fmt::format("{:g}", static_cast<double>(*m->num_wrong)) : "N/A");
}

std::string spread_text(const std::optional<Measurement>& m) {
  if (!m || !m->spread) return fmt::format("  {:>7}  {:>7}  {:>7}", "N/A", "N/A", "N/A");
  return fmt::format("  {:>7}  {:>7}  {:>7}", format_number(m->spread->median_s * 1e6, 7),
                     format_number(m->spread->p10_s * 1e6, 7), format_number(m->spread->p90_s * 1e6, 7));
}

/// "no", "out", "in" or "both": the disturbed measurements of a row.
const char* disturbed_text(const ResultRow& row) {
  const bool out = row.out_of_place.disturbed(), in = row.in_place && row.in_place->disturbed();
  if (!row.out_of_place.spread) return "N/A";
  return out && in ? "both" : out ? "out" : in ? "in" : "no";
}

std::string_view op_text(const ResultRow& row) { return row.op ? op_name(*row.op) : "none"; }
std::string_view dtype_text(const ResultRow& row) { return row.dtype ? dtype_name(*row.dtype) : "none"; }
Bandwidth bandwidth_of(const PerfOptions& options, int nranks, const ResultRow& row,
                       const std::optional<Measurement>& m) {
  return m ? bandwidth(*options.operation, nranks, row.shape.bytes, m->seconds) : Bandwidth{};
}

/// The types that the user set explicitly, as (key, name) pairs.
std::vector<std::pair<std::string, std::string_view>> named_types(const PerfOptions& o) {
  std::vector<std::pair<std::string, std::string_view>> types;
  for (const auto& [key, dtype] : {std::pair{"wire", o.wire}, {"accumulator", o.accumulator}, {"output", o.output}})
    if (dtype) types.emplace_back(key, dtype_name(*dtype));
  return types;
}

const char* yes_no(bool yes) { return yes ? "true" : "false"; }  // strings, as in nccl-tests

}  // namespace

RankInfo describe_this_rank() {
  RankInfo info;
  info.pid = getpid();
  gethostname(info.host, sizeof info.host - 1);
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string processor = "host processor";
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.starts_with("model name")) {
      processor = line.substr(std::min(line.size(), line.find(':') + 2));
      break;
    }
  std::strncpy(info.processor, processor.c_str(), sizeof info.processor - 1);
  return info;
}

std::string format_number(double value, int width) {
  for (int digits = 2; digits >= 0; --digits) {
    std::string text = fmt::format("{:.{}f}", value, digits);
    if (std::ssize(text) <= width) return text;
  }
  return fmt::format("{:.{}e}", value, width >= 7 ? 1 : 0);
}

Report::Report(const PerfOptions& options, RunInfo run, std::FILE* out)
    : options_(options), run_(std::move(run)), out_(out), start_time_(now_text()) {}

void Report::header() {
  const bool factor = options_.step_factor > 1;
  fmt::print(out_, "# rondo {} perf with the columns and flags of nccl-tests\n", rondo_version());
  fmt::print(out_, "# Collective test starting: {}\n", options_.operation->name);
  fmt::print(out_,
             "# nRanks {} ({}) minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} agg iters: {} "
             "validation: {} unalign: {}\n",
             run_.nranks, run_.ranks_are, options_.min_bytes, options_.max_bytes,
             factor ? options_.step_factor : options_.step_bytes, factor ? "factor" : "bytes", options_.warmup_iters,
             options_.iters, options_.aggregate, options_.check, options_.unalign_elems);
  std::string types;
  for (const auto& [key, name] : named_types(options_)) types += fmt::format(" {} {}", key, name);
  if (!types.empty()) fmt::print(out_, "# Types that differ from the column's:{}\n", types);
  if (options_.operation->variable_counts)
    fmt::print(out_, "# Counts: part k of N holds k + 1 of N(N+1)/2 shares; the column shows their average\n");
  if (options_.rotate > 1) {
    const bool small = run_.buffer_bytes < 2 * run_.cache_bytes;
    fmt::print(out_, "# Cold: every call uses the next place in {} MiB of buffers per rank{}\n",
               run_.buffer_bytes >> 20,
               small ? fmt::format("; the last-level cache has {} MiB: raise --rotate", run_.cache_bytes >> 20) : "");
  }
  if (options_.registered != 0) fmt::print(out_, "# Buffers come from rondo_alloc: all ranks can access them\n");
  fmt::print(out_, "#\n# Using devices\n");
  for (size_t r = 0; r < run_.ranks.size(); ++r)
    fmt::print(out_, "#  Rank {:2} Group  0 Pid {:6} on {:>10} device  0 [host] {}\n", r, run_.ranks[r].pid,
               run_.ranks[r].host, run_.ranks[r].processor);
  constexpr const char* kColumns =
      "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}{}"
      "  {:>7}  {:>7}  {:>7}  {:>7}  {:>7}  {:>7}  {:>9}\n";
  const auto time_of_day = [&](const char* text) { return options_.timestamps ? fmt::format("{:>21}", text) : ""; };
  fmt::print(out_,
             "#\n# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}           out-of-place                       in-place          "
             "{}{:>25}{:>27}\n",
             "", "", "", "", "", time_of_day(""), "out-of-place", "in-place");
  fmt::print(out_, fmt::runtime(kColumns), "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong",
             "time", "algbw", "busbw", "#wrong", time_of_day("timestamp"), "median", "p10", "p90", "median", "p10",
             "p90", "disturbed");
  fmt::print(out_, fmt::runtime(kColumns), "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)",
             "(GB/s)", "(GB/s)", "", time_of_day("%Y-%m-%d %H:%M:%S"), "(us)", "(us)", "(us)", "(us)", "(us)", "(us)",
             "");
  std::fflush(out_);
}

std::string Report::row_text(const ResultRow& row) const {
  auto measured = [&](const std::optional<Measurement>& m) {
    return measurement_text(m, bandwidth_of(options_, run_.nranks, row, m));
  };
  return fmt::format("{:>12}  {:>12}  {:>8}  {:>6}  {:>6}{}{}{}{}{}  {:>9}", row.shape.bytes, row.shape.count_elems,
                     dtype_text(row), op_text(row), row.root, measured(row.out_of_place), measured(row.in_place),
                     options_.timestamps ? fmt::format("{:>21}", now_text()) : "", spread_text(row.out_of_place),
                     spread_text(row.in_place), disturbed_text(row));
}

void Report::row(const ResultRow& row) {
  if (!row.plan.empty()) fmt::print(out_, "# {} bytes: {}\n", row.shape.bytes, row.plan);
  fmt::print(out_, "{}\n", row_text(row));
  std::fflush(out_);
  num_wrong_ += row.out_of_place.num_wrong.value_or(0);
  if (row.in_place) num_wrong_ += row.in_place->num_wrong.value_or(0);
  rows_.push_back(row);
}

double Report::average_bus_bandwidth() const {
  double sum = 0;
  int num = 0;
  for (const ResultRow& row : rows_)
    for (const std::optional<Measurement>& m : {std::optional(row.out_of_place), row.in_place})
      if (m) sum += bandwidth_of(options_, run_.nranks, row, m).bus, ++num;
  return num == 0 ? 0 : sum / num;
}

std::pair<size_t, size_t> Report::disturbed() const {
  std::pair<size_t, size_t> num;
  for (const ResultRow& row : rows_)
    for (const std::optional<Measurement>& m : {std::optional(row.out_of_place), row.in_place})
      if (m && m->spread) num.first += m->disturbed() ? 1 : 0, ++num.second;
  return num;
}

void Report::footer(const std::string& error) {
  error_ = error;
  end_time_ = now_text();
  fmt::print(out_, "# {:<20} : {} {}\n", "Out of bounds values", num_wrong_, num_wrong_ == 0 ? "OK" : "FAILED");
  fmt::print(out_, "# {:<20} : {:g}\n", "Avg bus bandwidth", average_bus_bandwidth());
  if (const auto [num, all] = disturbed(); num > 0)
    fmt::print(out_, "# {:<20} : {} of {} measurements: time above {} medians, or p90 above {} times p10\n",
               "Disturbed", num, all, kDisturbedMean, kDisturbedSpread);
  fmt::print(out_, "#\n# Collective test concluded: {}\n", options_.operation->name);
  if (!error.empty()) fmt::print(out_, "# error: {}\n", error);
  std::fflush(out_);
}

namespace {

OrderedJson environment_json() {
  OrderedJson env = OrderedJson::array();
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry(*e);
    const bool secret = entry.starts_with("RONDO_UNIQUE_ID=") || entry.starts_with("RONDO_SECRET=");
    if (entry.starts_with("RONDO_") && !entry.starts_with("RONDO_PERF_") && !secret) env.push_back(*e);
  }
  return env;
}

OrderedJson config_json(const PerfOptions& o, const RunInfo& run) {
  OrderedJson devices = OrderedJson::array();
  for (size_t r = 0; r < run.ranks.size(); ++r)
    devices.push_back({{"rank", r},
                       {"group", 0},
                       {"pid", run.ranks[r].pid},
                       {"hostname", run.ranks[r].host},
                       {"device", 0},
                       {"device_hex", "host"},
                       {"device_info", run.ranks[r].processor}});
  const bool factor = o.step_factor > 1;
  OrderedJson config = {{"nthreads", o.threads > 0 ? o.threads : 1},
                        {"ngpus", 0},
                        {"num_ranks", run.nranks},
                        {"ranks_are", run.ranks_are},
                        {"minimum_bytes", o.min_bytes},
                        {"maximum_bytes", o.max_bytes},
                        {factor ? "step_factor" : "step_bytes", factor ? o.step_factor : o.step_bytes},
                        {"warmup_iters", o.warmup_iters},
                        {"iterations", o.iters},
                        {"aggregated_iterations", o.aggregate},
                        {"validation", o.check},
                        {"graph", 0},
                        {"blocking_collectives", yes_no(o.blocking != 0)},
                        {"average", o.average},
                        {"registered", o.registered},
                        {"unalign", o.unalign_elems},
                        {"rotate_sets", std::max(1, o.rotate)},
                        {"buffer_bytes", run.buffer_bytes},
                        {"last_level_cache_bytes", run.cache_bytes},
                        {"devices", devices}};
  for (const auto& [key, name] : named_types(o)) config["types"][key] = name;
  return config;
}

const char* regime_text(const PerfOptions& o) { return o.rotate > 1 ? "cold" : "hot"; }

OrderedJson result_json(const PerfOptions& o, int nranks, const ResultRow& row) {
  OrderedJson result = {{"size", row.shape.bytes},
                        {"count", row.shape.count_elems},
                        {"type", dtype_text(row)},
                        {"redop", op_text(row)},
                        {"root", std::to_string(row.root)}};
  for (const auto& [key, m] :
       {std::pair{"out_of_place", std::optional(row.out_of_place)}, {"in_place", row.in_place}}) {
    const Bandwidth b = bandwidth_of(o, nranks, row, m);
    result[key] = {{"time", m ? OrderedJson(m->seconds * 1e6) : OrderedJson()},
                   {"alg_bw", m ? OrderedJson(b.algorithm) : OrderedJson()},
                   {"bus_bw", m ? OrderedJson(b.bus) : OrderedJson()},
                   {"nwrong", m && m->num_wrong ? OrderedJson(*m->num_wrong) : OrderedJson()}};
    if (!m || !m->spread) continue;
    result[key]["median"] = m->spread->median_s * 1e6;
    result[key]["p10"] = m->spread->p10_s * 1e6;
    result[key]["p90"] = m->spread->p90_s * 1e6;
    result[key]["disturbed"] = m->disturbed();
  }
  result["actual_iterations"] = o.iters;
  result["regime"] = regime_text(o);
  if (!row.plan.empty()) result["plan"] = row.plan;
  return result;
}

}  // namespace

std::string Report::json() const {
  OrderedJson results = OrderedJson::array();
  for (const ResultRow& row : rows_) results.push_back(result_json(options_, run_.nranks, row));
  const OrderedJson all = {{"version", kJsonLayout},
                           {"start_time", start_time_},
                           {"args", run_.args},
                           {"env", environment_json()},
                           {"rondo_version", rondo_version()},
                           {"collective", options_.operation->name},
                           {"regime", regime_text(options_)},
                           {"config", config_json(options_, run_)},
                           {"results", results},
                           {"out_of_bounds", {{"count", num_wrong_}, {"okay", yes_no(num_wrong_ == 0)}}},
                           {"average_bus_bandwidth", {{"bandwidth", average_bus_bandwidth()}, {"okay", "unchecked"}}},
                           {"errors", error_.empty() ? OrderedJson::array() : OrderedJson::array({error_})},
                           {"end_time", end_time_}};
  return all.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::optional<std::string> write_new_file(const std::string& path, const std::string& text) {
  for (int attempt = -1; attempt < 10000; ++attempt) {
    const std::string name = attempt < 0 ? path : fmt::format("{}.{}", path, attempt);
    const int fd = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd < 0) return std::nullopt;
    std::FILE* file = fdopen(fd, "w");
    const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if (file == nullptr) close(fd);
    if (file != nullptr && std::fclose(file) == 0 && written) return name;
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace rondo::tools

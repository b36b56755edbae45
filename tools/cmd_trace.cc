// `rondo trace`: exports the files of RONDO_TRACE (tools/trace/export.h) and prints summaries.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "commands.h"
#include "trace/export.h"
#include "trace/read_trace.h"
#include "trace/selection.h"
#include "trace/timeline.h"

namespace rondo::tools {
namespace {

struct TraceArgs {
  std::string path;
  std::string out = "-";
  bool json_lines = false;
  std::string calls, ranks;
  double from_us = -HUGE_VAL, to_us = HUGE_VAL;
};

[[noreturn]] void fail_trace(const std::string& message) {
  std::fprintf(stderr, "rondo trace: %s\n", message.c_str());
  throw CLI::RuntimeError(2);
}

std::vector<TraceFile> read(const std::string& path) {
  auto files = read_traces(path);
  if (!files.ok()) fail_trace(std::string(files.status().message()));
  return std::move(*files);
}

/// "17", or "17-20" with both ends included. nullopt for any other text.
std::optional<std::pair<uint64_t, uint64_t>> parse_range(std::string_view text) {
  const size_t dash = std::min(text.find('-'), text.size());
  const auto number = [](std::string_view digits) -> std::optional<uint64_t> {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    return value;
  };
  const auto first = number(text.substr(0, dash));
  const auto last = dash == text.size() ? first : number(text.substr(dash + 1));
  if (!first || !last || *first > *last) return std::nullopt;
  return std::pair(*first, *last);
}

TraceSelection selection_of(const TraceArgs& args) {
  TraceSelection selection;
  if (!args.calls.empty()) {
    const auto range = parse_range(args.calls);
    if (!range) fail_trace("--calls " + args.calls + " is not a number or a range: write 17 or 17-20");
    std::tie(selection.first_call, selection.last_call) = *range;
  }
  for (size_t begin = 0; !args.ranks.empty() && begin <= args.ranks.size();) {
    const size_t end = std::min(args.ranks.find(',', begin), args.ranks.size());
    const auto range = parse_range(std::string_view(args.ranks).substr(begin, end - begin));
    if (!range || range->second > 65535)
      fail_trace("--ranks " + args.ranks + " is not a list of ranks: write 0,2 or 0-3");
    for (uint64_t rank = range->first; rank <= range->second; ++rank)
      selection.ranks.insert(static_cast<int32_t>(rank));
    begin = end + 1;
  }
  if (args.from_us > args.to_us) fail_trace("--from is after --to");
  constexpr double kMost_us = 1e15;  // some thirty years
  if (args.from_us > -kMost_us) selection.from_ns = static_cast<int64_t>(std::min(args.from_us, kMost_us) * 1e3);
  if (args.to_us < kMost_us) selection.to_ns = static_cast<int64_t>(std::max(args.to_us, -kMost_us) * 1e3);
  return selection;
}

/// An empty selection is an error. The message lists the calls and ranks in the traces.
void refuse_nothing(const TraceArgs& args, const std::vector<TraceFile>& files, const SelectedRecords& selected) {
  uint64_t first = UINT64_MAX, last = 0;
  std::set<int32_t> ranks;
  for (size_t f = 0; f < files.size(); ++f) {
    ranks.insert(files[f].identity.rank);
    for (size_t i = 0; i < files[f].records.size(); ++i) {
      if (selected.has_step(f, i)) return;
      if (files[f].records[i].kind != static_cast<uint64_t>(RecordKind::kStep)) continue;
      first = std::min<uint64_t>(first, files[f].records[i].sequence);
      last = std::max<uint64_t>(last, files[f].records[i].sequence);
    }
  }
  if (last == 0) return;  // the traces are empty
  fail_trace(fmt::format(
      "{}: no record is selected: the traces have calls {}-{} of ranks {}; times are microseconds, as in the picture",
      args.path, first, last, fmt::join(ranks, ", ")));
}

void run_export(const TraceArgs& args) {
  const std::vector<TraceFile> files = read(args.path);
  const TraceSelection selection = selection_of(args);
  const Timeline timeline(files);
  refuse_nothing(args, files, SelectedRecords(files, timeline, selection));
  std::FILE* out = args.out == "-" ? stdout : std::fopen(args.out.c_str(), "w");
  if (out == nullptr) fail_trace(args.out + ": " + std::strerror(errno));
  auto report = args.json_lines ? export_json_lines(files, out, selection) : export_chrome(files, out, selection);
  if (out != stdout && std::fclose(out) != 0 && report.ok()) fail_trace(args.out + ": " + std::strerror(errno));
  if (!report.ok()) fail_trace(args.out + ": " + std::string(report.status().message()));
  std::fprintf(stderr, "%zu files, %llu records, %llu records lost", files.size(),
               static_cast<unsigned long long>(report->steps), static_cast<unsigned long long>(report->lost));
  if (!args.json_lines)
    std::fprintf(stderr, "; %llu flows, %llu sends and %llu receives without their other end",
                 static_cast<unsigned long long>(report->flows),
                 static_cast<unsigned long long>(report->unmatched_sends),
                 static_cast<unsigned long long>(report->unmatched_recvs));
  std::fprintf(stderr, "%s\n",
               report->one_clock ? "" : "; the clocks of a host's ranks differ: each rank is placed by its own clock");
}

// Totals of one rank, in microseconds.
struct Sums {
  double working = 0, data = 0, room = 0, order = 0;
  uint64_t bytes_sent = 0, records = 0;
  std::set<uint64_t> operations;
  std::map<int32_t, double> data_from;  // by the first peer of the instruction
};

Sums sum_up(const std::vector<TraceFile>& files, size_t file, const SelectedRecords& selected) {
  const TraceFile& f = files[file];
  const TickScale scale(f.start, f.end);
  const auto us = [&](uint64_t num_ticks) { return scale.duration_ns(num_ticks) * 1e-3; };
  Sums s;
  for (size_t index = 0; index < f.records.size(); ++index) {
    if (!selected.has_step(file, index)) continue;
    const StepRecord& r = f.records[index];
    ++s.records;
    s.operations.insert(operation_key(f, r));
    s.working += us(r.work_ticks);
    s.data += us(r.wait_data_ticks);
    s.room += us(r.wait_room_ticks);
    s.order += us(r.wait_order_ticks);
    const TracedInstruction* i = f.instruction(r);
    if (i == nullptr) continue;
    s.bytes_sent += r.bytes() * i->send_peers.size();
    if (!i->recv_peers.empty()) s.data_from[i->recv_peers[0]] += us(r.wait_data_ticks);
  }
  return s;
}

void run_summary(const TraceArgs& args) {
  const std::vector<TraceFile> files = read(args.path);
  const TraceSelection selection = selection_of(args);
  const Timeline timeline(files);
  const SelectedRecords selected(files, timeline, selection);
  refuse_nothing(args, files, selected);
  std::printf("%-12s %5s %8s %9s %8s %12s %12s %12s %12s %14s  %s\n", "communicator", "rank", "calls", "records",
              "lost", "working us", "data us", "room us", "order us", "bytes sent", "waits most for");
  for (size_t i = 0; i < files.size(); ++i) {
    if (!selected.has_file(i)) continue;
    const TraceFile& f = files[i];
    const Sums s = sum_up(files, i, selected);
    int32_t most = -1;
    for (const auto& [peer, us] : s.data_from)
      if (us > 0 && (most < 0 || us > s.data_from.at(most))) most = peer;
    std::printf("%-12llx %5d %8zu %9llu %8llu %12.1f %12.1f %12.1f %12.1f %14llu  %s\n",
                static_cast<unsigned long long>(f.identity.communicator), f.identity.rank, s.operations.size(),
                static_cast<unsigned long long>(s.records), static_cast<unsigned long long>(f.num_lost()), s.working,
                s.data, s.room, s.order, static_cast<unsigned long long>(s.bytes_sent),
                most < 0 ? "-" : ("rank " + std::to_string(most)).c_str());
    if (!f.why.empty()) std::printf("             rank %d ended with: %s\n", f.identity.rank, f.why.c_str());
  }
}

// Consecutive collectives with the same shape and plan.
struct CallRun {
  uint64_t first = 0, last = 0;
  int64_t from_ns = INT64_MAX, to_ns = INT64_MIN;
  std::string what;
};

std::vector<CallRun> runs_of(const std::vector<TraceFile>& files, size_t file, const SelectedRecords& selected,
                             const Timeline& timeline) {
  std::map<uint64_t, CallRun> calls;
  const TraceFile& f = files[file];
  for (size_t i = 0; i < f.records.size(); ++i) {
    const StepRecord& r = f.records[i];
    if (!selected.has_step(file, i) || is_point_to_point(f.plans[r.plan].shape.collective)) continue;
    CallRun& call = calls[r.sequence];
    const TracedPlan& plan = f.plans[r.plan];
    call.what = fmt::format("{}  {} {}", shape_text(plan.shape), plan.algorithm, plan.protocol);
    call.from_ns = std::min(call.from_ns, timeline.ns(file, r.begin_ticks));
    call.to_ns = std::max(call.to_ns, timeline.ns(file, r.done_ticks()));
  }
  std::vector<CallRun> runs;
  for (auto& [sequence, call] : calls) {
    const bool goes_on = !runs.empty() && runs.back().what == call.what && runs.back().last + 1 == sequence;
    if (!goes_on) runs.push_back({sequence, sequence, call.from_ns, call.to_ns, call.what});
    runs.back().last = sequence;
    runs.back().to_ns = std::max(runs.back().to_ns, call.to_ns);
  }
  return runs;
}

// Lists the first selected rank of each communicator. All ranks have the same order of collectives.
void run_calls(const TraceArgs& args) {
  const std::vector<TraceFile> files = read(args.path);
  const TraceSelection selection = selection_of(args);
  const Timeline timeline(files);
  const SelectedRecords selected(files, timeline, selection);
  refuse_nothing(args, files, selected);
  std::set<uint64_t> communicators;
  for (size_t i = 0; i < files.size(); ++i) {
    const TraceIdentity& id = files[i].identity;
    if (!selected.has_file(i) || !communicators.insert(id.communicator).second) continue;
    fmt::print("communicator {:x}, rank {}\n{:>17}  {:>12}  {:>12}  {}\n", id.communicator, id.rank, "calls", "from us",
               "to us", "what");
    for (const CallRun& run : runs_of(files, i, selected, timeline))
      fmt::print("{:>17}  {:>12.1f}  {:>12.1f}  {}\n",
                 run.first == run.last ? fmt::format("{}", run.first) : fmt::format("{}-{}", run.first, run.last),
                 static_cast<double>(run.from_ns) * 1e-3, static_cast<double>(run.to_ns) * 1e-3, run.what);
  }
}

void add_selection(CLI::App& command, TraceArgs& args) {
  command.add_option("path", args.path, "Names the folder of *.rtrace files, or one file")->required();
  command.add_option("--calls", args.calls, "Selects calls by the numbers in the picture: 17 or 17-20")
      ->type_name("A-B");
  command.add_option("--ranks", args.ranks, "Selects ranks: 0,2 or 0-3")->type_name("LIST");
  command
      .add_option("--from", args.from_us,
                  "Selects records that end at this time or later, in microseconds of the picture")
      ->type_name("US");
  command.add_option("--to", args.to_us, "Selects records that begin at this time or earlier")->type_name("US");
}

}  // namespace

void add_trace_command(CLI::App& app) {
  auto args = std::make_shared<TraceArgs>();
  CLI::App* command = app.add_subcommand("trace", "Reads the traces of RONDO_TRACE or rondo_trace_start");
  command->require_subcommand(1);
  CLI::App* to_json =
      command->add_subcommand("export", "Writes traces as Chrome trace JSON (for ui.perfetto.dev) or JSON Lines");
  add_selection(*to_json, *args);
  to_json->add_option("--out,-o", args->out, "Writes to this file; - is the standard output")
      ->type_name("FILE")
      ->capture_default_str();
  to_json->add_flag("--jsonl", args->json_lines, "Writes JSON Lines: an object for each file, plan and record");
  to_json->callback([args] { run_export(*args); });
  CLI::App* summary = command->add_subcommand(
      "summary", "Prints for each rank the time of working and waiting, and the rank it waits for most");
  add_selection(*summary, *args);
  summary->callback([args] { run_summary(*args); });
  CLI::App* calls = command->add_subcommand(
      "calls", "Lists the collectives in order, with the numbers and times that --calls, --from and --to take");
  add_selection(*calls, *args);
  calls->callback([args] { run_calls(*args); });
  command->footer(
      "Example:\n"
      "  RONDO_TRACE=/tmp/t rondo perf all_reduce --ranks 4 -b 1M -e 1M\n"
      "  rondo trace summary /tmp/t\n"
      "  rondo trace export /tmp/t -o trace.json     open it at ui.perfetto.dev\n"
      "  rondo trace calls /tmp/t                    lists the calls\n"
      "  rondo trace export /tmp/t --calls 17-20 --ranks 0,1 -o part.json\n");
}

}  // namespace rondo::tools

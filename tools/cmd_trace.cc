// `rondo trace`: what RONDO_TRACE wrote, for people and for other programs (src/trace/export.h).
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "commands.h"
#include "trace/export.h"
#include "trace/timeline.h"

namespace rondo::tools {
namespace {

struct TraceArgs {
  std::string path;
  std::string out = "-";
  bool json_lines = false;
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

void run_export(const TraceArgs& args) {
  const std::vector<TraceFile> files = read(args.path);
  std::FILE* out = args.out == "-" ? stdout : std::fopen(args.out.c_str(), "w");
  if (out == nullptr) fail_trace(args.out + ": " + std::strerror(errno));
  auto report = args.json_lines ? export_json_lines(files, out) : export_chrome(files, out);
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
               report->one_clock ? "" : "; the clocks of a host's ranks do not run alike: placed one by one");
}

// What one rank did in all, in microseconds.
struct Sums {
  double working = 0, data = 0, room = 0, order = 0;
  uint64_t bytes_sent = 0;
  std::set<uint64_t> operations;
  std::map<int32_t, double> data_from;  // by the first peer of the instruction
};

Sums sum_up(const TraceFile& f) {
  const TickScale scale(f.start, f.end);
  const auto us = [&](uint64_t num_ticks) { return scale.duration_ns(num_ticks) * 1e-3; };
  Sums s;
  for (const StepRecord& r : f.records) {
    if (r.kind != static_cast<uint64_t>(RecordKind::kStep)) continue;
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
  std::printf("%-12s %5s %8s %9s %8s %12s %12s %12s %12s %14s  %s\n", "communicator", "rank", "calls", "records",
              "lost", "working us", "data us", "room us", "order us", "bytes sent", "waits most for");
  for (const TraceFile& f : read(args.path)) {
    const Sums s = sum_up(f);
    int32_t most = -1;
    for (const auto& [peer, us] : s.data_from)
      if (us > 0 && (most < 0 || us > s.data_from.at(most))) most = peer;
    std::printf("%-12llx %5d %8zu %9zu %8llu %12.1f %12.1f %12.1f %12.1f %14llu  %s\n",
                static_cast<unsigned long long>(f.identity.communicator), f.identity.rank, s.operations.size(),
                f.records.size(), static_cast<unsigned long long>(f.num_lost()), s.working, s.data, s.room, s.order,
                static_cast<unsigned long long>(s.bytes_sent),
                most < 0 ? "-" : ("rank " + std::to_string(most)).c_str());
    if (!f.why.empty()) std::printf("             rank %d ended with: %s\n", f.identity.rank, f.why.c_str());
  }
}

}  // namespace

void add_trace_command(CLI::App& app) {
  auto args = std::make_shared<TraceArgs>();
  CLI::App* command = app.add_subcommand("trace", "Reads traces that RONDO_TRACE or rondo_trace_start wrote");
  command->require_subcommand(1);
  CLI::App* to_json =
      command->add_subcommand("export", "Writes traces as Chrome trace JSON (for ui.perfetto.dev) or JSON Lines");
  to_json->add_option("path", args->path, "Folder of *.rtrace files, or one file")->required();
  to_json->add_option("--out,-o", args->out, "Where to; - is the standard output")
      ->type_name("FILE")
      ->capture_default_str();
  to_json->add_flag("--jsonl", args->json_lines, "JSON Lines: an object for each file, plan and record");
  to_json->callback([args] { run_export(*args); });
  CLI::App* summary = command->add_subcommand("summary", "Prints what each rank did: working, waiting and for whom");
  summary->add_option("path", args->path, "Folder of *.rtrace files, or one file")->required();
  summary->callback([args] { run_summary(*args); });
  command->footer(
      "Example:\n"
      "  RONDO_TRACE=/tmp/t rondo perf all_reduce --ranks 4 -b 1M -e 1M\n"
      "  rondo trace summary /tmp/t\n"
      "  rondo trace export /tmp/t -o trace.json     open it at ui.perfetto.dev\n");
}

}  // namespace rondo::tools

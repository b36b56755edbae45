// `rondo diagnose`: explains from flight records (diagnose.h) why a job hangs or failed.
#include <cstdio>
#include <memory>
#include <string>

#include "commands.h"
#include "diagnose.h"

namespace rondo::tools {
namespace {

constexpr int kCauseFound = 1, kUnusable = 2, kCauseUnknown = 3;

void print(const Finding& f) { std::printf("cause: %s: %s\n", cause_name(f.cause), f.text.c_str()); }

void print(const CommunicatorView& comm, const std::vector<Finding>& findings) {
  size_t records = 0;
  bool waits = false;
  for (const RankView& r : comm.ranks) records += r.has_record, waits |= !r.current.empty();
  std::printf("communicator %s: %d ranks, %zu records\n", comm.id.c_str(), comm.nranks, records);
  for (const RankView& r : comm.ranks) std::printf("  rank %-4d %s\n", r.rank, describe_rank(r).c_str());
  if (findings.empty())
    std::printf(waits ? "  waits for ranks whose processes wait in another communicator\n" : "  nobody waits\n");
  for (const Finding& f : findings) print(f);
}

void run(const std::string& folder) {
  std::vector<std::string> problems;
  const std::vector<CommunicatorView> comms = read_flight_records(folder, &problems);
  for (const std::string& p : problems) std::fprintf(stderr, "rondo diagnose: %s\n", p.c_str());
  if (comms.empty()) {
    std::fprintf(stderr, "rondo diagnose: %s holds no flight records; set RONDO_FLIGHT to have ranks write them\n",
                 folder.c_str());
    throw CLI::RuntimeError(kUnusable);
  }
  const Verdict verdict = find_verdict(comms);
  int code = verdict.between.empty() ? 0 : kCauseFound;
  for (const Finding& f : verdict.between) print(f);
  for (size_t i = 0; i < comms.size(); ++i) {
    print(comms[i], verdict.within[i]);
    for (const Finding& f : verdict.within[i]) {
      if (f.cause != Cause::kUnknown) code = kCauseFound;
      else if (code == 0) code = kCauseUnknown;
    }
  }
  if (code != 0) throw CLI::RuntimeError(code);
}

}  // namespace

void add_diagnose_command(CLI::App& app) {
  auto folder = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "diagnose",
      "Reads the flight records of a job's ranks and prints which rank waits for which, at which step, and why");
  command->add_option("dir", *folder, "Folder with the *.flight.json files (RONDO_FLIGHT of the job)")->required();
  command->footer(
      "Causes: dead, departed, stopped, aborted, different call, missing call, waiting cycle, stuck.\n"
      "Exit status: 0 nobody waits, 1 a cause was found, 2 no usable record, 3 ranks wait and the cause is not in the "
      "records.\n");
  command->callback([folder] { run(*folder); });
}

}  // namespace rondo::tools

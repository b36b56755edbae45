// `rondo check`: proves the registered algorithms (src/schedule/checker.h) and prints what was proven as a table.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "commands.h"
#include "schedule/checker.h"

namespace rondo::tools {
namespace {

constexpr int kMaxRaceRanks = 128;  // beyond: values and deadlocks only, one loop

struct CheckArgs {
  std::string algo;
  std::string collective;
  int max_ranks = 64;
  int ranks = 0;  // 0: 1 .. max_ranks
  int max_pair_ranks = 8;
};

struct Tally {
  int proofs = 0;
  int failures = 0;
  bool fingerprints = false;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string label(const Algorithm& a) { return fmt::format("{} {}", a.name, collective_name(a.collective)); }

[[noreturn]] void refuse(const std::string& message) {
  std::fprintf(stderr, "rondo check: %s\n", message.c_str());
  throw CLI::RuntimeError(2);
}

std::vector<Algorithm> chosen(CheckArgs& args) {
  std::replace(args.algo.begin(), args.algo.end(), '-', '_');
  std::replace(args.collective.begin(), args.collective.end(), '-', '_');
  if (!args.collective.empty() && !collective_from_name(args.collective))
    refuse("there is no collective '" + args.collective + "' (rondo explain --list)");
  std::vector<Algorithm> rows;
  for (const Algorithm& a : all_algorithms())
    if ((args.algo.empty() || a.name == args.algo) &&
        (args.collective.empty() || collective_name(a.collective) == args.collective))
      rows.push_back(a);
  if (rows.empty()) refuse("there is no algorithm '" + args.algo + "' for that (rondo explain --list)");
  return rows;
}

/// "63/64 S", in lowest terms.
std::string bytes_text(const CheckReport& r) {
  const int64_t common = std::max<int64_t>(1, std::gcd(r.sent_chunks, r.total_chunks));
  const int64_t num = r.sent_chunks / common, den = r.total_chunks / common;
  if (num == 0) return "0";
  return den == 1 ? (num == 1 ? "S" : fmt::format("{} S", num)) : fmt::format("{}/{} S", num, den);
}

void check_row(const Algorithm& a, const CheckArgs& args, Tally* tally) {
  const auto start = std::chrono::steady_clock::now();
  const int first = args.ranks > 0 ? args.ranks : 1, last = args.ranks > 0 ? args.ranks : args.max_ranks;
  CheckReport report;
  int proven = first - 1;
  for (int n = first; n <= last; ++n) {
    tally->fingerprints |= n > kMaxRaceRanks;
    report = check_roots(a, n, n <= kMaxRaceRanks ? CheckOptions{} : CheckOptions::fingerprints());
    tally->proofs += static_cast<int>(roots_to_prove(a.collective, n).size());
    if (!report.ok) {
      std::fflush(stdout);
      std::fprintf(stderr, "rondo check: %s, %d ranks: %s\n", label(a).c_str(), n, report.reason.c_str());
      ++tally->failures;
      break;
    }
    proven = n;
  }
  const std::string ranks = proven < first    ? "none"
                            : first == proven ? fmt::format("{}", first)
                                              : fmt::format("{}..{}", first, proven);
  const std::string depth = report.fifo_depth == report.fifo_depth_sliced
                                ? fmt::format("{}", report.fifo_depth)
                                : fmt::format("{} ({})", report.fifo_depth, report.fifo_depth_sliced);
  std::fputs(
      fmt::format("{:<19} {:<15} {:>8} {:>7} {:>11} {:>10} {:>8.2f}{}\n", a.name, collective_name(a.collective), ranks,
                  report.steps, bytes_text(report), depth, seconds_since(start), report.ok ? "" : "  FAILED")
          .c_str(),
      stdout);
}

void check_pairs(const std::vector<Algorithm>& rows, const CheckArgs& args, Tally* tally) {
  const int last = std::min(args.max_pair_ranks, args.ranks > 0 ? args.ranks : args.max_ranks);
  const int first = args.ranks > 0 ? args.ranks : 1;
  if (first > last) return;
  int pairs = 0;
  for (const Algorithm& a : rows)
    for (const Algorithm& b : all_algorithms()) {
      ++pairs;
      for (int n = first; n <= last; ++n) {
        const CheckReport report = check_pair(a, b, n);
        ++tally->proofs;
        if (report.ok) continue;
        std::fflush(stdout);
        std::fprintf(stderr, "rondo check: %s, then %s, %d ranks: %s\n", label(a).c_str(), label(b).c_str(), n,
                     report.reason.c_str());
        ++tally->failures;
        break;
      }
    }
  std::fputs(fmt::format("{} ordered pairs on shared connections, {} ranks, run-ahead included\n", pairs,
                         first == last ? fmt::format("{}", last) : fmt::format("{}..{}", first, last))
                 .c_str(),
             stdout);
}

void run(CheckArgs& args) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Algorithm> rows = chosen(args);
  Tally tally;
  std::fputs(fmt::format("{:<19} {:<15} {:>8} {:>7} {:>11} {:>10} {:>8}\n", "algorithm", "collective", "ranks", "steps",
                         "bytes/rank", "FIFO depth", "seconds")
                 .c_str(),
             stdout);
  for (const Algorithm& a : rows) check_row(a, args, &tally);
  check_pairs(rows, args, &tally);
  std::fputs(fmt::format("Steps, bytes and depth are those of the largest number of ranks; depth in brackets with 4 "
                         "messages a chunk.\n{}{} proofs, {} failed, {:.2f} s\n",
                         tally.fingerprints ? fmt::format("Above {} ranks: values and deadlocks by fingerprints, one "
                                                          "loop of {} slots; no races.\n",
                                                          kMaxRaceRanks, CheckOptions::fingerprints().first_fifo_depth)
                                            : "",
                         tally.proofs, tally.failures, seconds_since(start))
                 .c_str(),
             stdout);
  std::fflush(stdout);
  if (tally.failures > 0) throw CLI::RuntimeError(1);
}

}  // namespace

void add_check_command(CLI::App& app) {
  auto args = std::make_shared<CheckArgs>();
  CLI::App* command = app.add_subcommand(
      "check",
      "Proves the algorithms for every number of ranks: right result, same bits on all ranks, no deadlock, no race, "
      "steps and bytes as stated");
  command->add_option("collective", args->collective, "Only this collective");
  command->add_option("--algo,-a", args->algo, "Only this algorithm (rondo explain --list)");
  CLI::Option* max_ranks = command->add_option("--max-ranks", args->max_ranks, "Every number of ranks from 1 to this")
                               ->check(CLI::Range(1, 65535))
                               ->capture_default_str();
  command->add_option("--ranks,-n", args->ranks, "This number of ranks only; thousands by fingerprints")
      ->check(CLI::Range(1, 65535))
      ->excludes(max_ranks);
  command->add_option("--max-pair-ranks", args->max_pair_ranks, "Ordered pairs of algorithms: up to this many ranks")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  rondo check                              everything, 1 to 64 ranks\n"
      "  rondo check --algo ring --ranks 1000     one algorithm, a large job\n"
      "Exit status: 0 all proven, 1 something failed (reason on stderr), 2 wrong arguments.\n");
  command->callback([args] { run(*args); });
}

}  // namespace rondo::tools

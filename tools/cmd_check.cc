// `rondo check`: proves the registered algorithms (src/schedule/checker.h) and prints a table of the proofs.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "commands.h"
#include "perf_options.h"
#include "plugin.h"
#include "schedule/checker.h"

namespace rondo::tools {
namespace {

constexpr int kMostRanksOnHosts = 33;  // default; above 16 ranks only 17, 25 and 33
constexpr int kMaxRaceRanks = 128;     // above: only values and deadlocks, one loop

struct CheckArgs {
  std::string algo;
  std::string collective;
  int max_ranks = 64;
  int ranks = 0;  // 0: 1 .. max_ranks
  int max_pair_ranks = 8;
  std::string hosts;  // empty: one host, and layouts_to_prove if the row depends on hosts
  HostLayout layout = 1;
  Plugins plugins;
};

/// The proofs of a row. It is printed after all earlier rows.
struct Result {
  int proofs = 0;
  int failures = 0;
  bool fingerprints = false;
  std::string line;    // of the table
  std::string errors;  // for stderr
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string label(const Algorithm& a) { return fmt::format("{} {}", a.name, collective_name(a.collective)); }

std::string root_text(const Algorithm& a, Rank root) {
  return collective_is_rooted(a.collective) ? fmt::format(" of root {}", root) : "";
}

[[noreturn]] void refuse(const std::string& message) {
  std::fprintf(stderr, "rondo check: %s\n", message.c_str());
  throw CLI::RuntimeError(2);
}

std::vector<Algorithm> chosen(const CheckArgs& args) {
  std::optional<Collective> collective;
  if (!args.collective.empty()) {
    const Expected<Collective> named = named_collective(args.collective);
    if (!named.ok()) refuse(std::string(named.status().message()));
    collective = *named;
  }
  std::vector<Algorithm> rows;
  std::vector<std::string> names;
  for (const Algorithm& a : all_algorithms()) {
    if (std::find(names.begin(), names.end(), a.name) == names.end()) names.emplace_back(a.name);
    if ((args.algo.empty() || letters_of(a.name) == letters_of(args.algo)) &&
        (!collective || a.collective == *collective))
      rows.push_back(a);
  }
  if (!rows.empty()) return rows;
  const Status none =
      collective ? named_algorithm(*collective, args.algo).status() : no_such("algorithm", args.algo, names);
  refuse(std::string(none.message()));
}

/// "63/64 S", in lowest terms.
std::string bytes_text(const CheckReport& r) {
  const int64_t common = std::max<int64_t>(1, std::gcd(r.sent_chunks, r.total_chunks));
  const int64_t num = r.sent_chunks / common, den = r.total_chunks / common;
  if (num == 0) return "0";
  return den == 1 ? (num == 1 ? "S" : fmt::format("{} S", num)) : fmt::format("{}/{} S", num, den);
}

/// The layouts for which a row is proven: one host, or the user's. Rows that depend on hosts are also proven on
/// several.
std::vector<HostLayout> layouts_of(const Algorithm& a, const CheckArgs& args, int nranks) {
  if (!args.hosts.empty()) return {args.layout};
  std::vector<HostLayout> layouts{nranks};
  if (depends_on_hosts(a) && (nranks <= 16 || (nranks <= kMostRanksOnHosts && nranks % 8 == 1)))
    for (const HostLayout& layout : layouts_to_prove(nranks)) layouts.push_back(layout);
  return layouts;
}

std::string ranks_text(const HostLayout& layout) {
  return layout.one_host() ? fmt::format("{} ranks", layout.nranks())
                           : fmt::format("{} ranks on hosts {}", layout.nranks(), layout.text());
}

Result check_row(const Algorithm& a, const CheckArgs& args) {
  const auto start = std::chrono::steady_clock::now();
  const int first = args.ranks > 0 ? args.ranks : 1, last = args.ranks > 0 ? args.ranks : args.max_ranks;
  Result result;
  CheckReport report;  // the last one on one host, or on the user's layout
  int proven = first - 1, layouts = 0;
  for (int n = first; n <= last && result.failures == 0; ++n) {
    result.fingerprints |= n > kMaxRaceRanks;
    for (const HostLayout& layout : layouts_of(a, args, n)) {
      CheckReport one = check_roots(a, layout, n <= kMaxRaceRanks ? CheckOptions{} : CheckOptions::fingerprints());
      result.proofs += static_cast<int>(roots_to_prove(a.collective, n).size());
      const bool ok = one.ok;
      if (!ok) {
        result.errors = fmt::format("rondo check: {}, {}: {}\n", label(a), ranks_text(layout), one.reason);
        ++result.failures;
      }
      if (!ok || layout.one_host() || !args.hosts.empty()) report = std::move(one);
      if (!ok) break;
      if (!layout.one_host()) ++layouts;
    }
    if (result.failures == 0) proven = n;
  }
  const std::string ranks = proven < first    ? "none"
                            : first == proven ? fmt::format("{}", first)
                                              : fmt::format("{}..{}", first, proven);
  const std::string depth = report.fifo_depth == report.fifo_depth_sliced
                                ? fmt::format("{}", report.fifo_depth)
                                : fmt::format("{} ({})", report.fifo_depth, report.fifo_depth_sliced);
  result.line = fmt::format(
      "{:<21} {:<15} {:>8} {:>7} {:>11} {:>10} {:>8} {:>7} {:>8.2f}{}\n", a.name, collective_name(a.collective), ranks,
      report.steps, bytes_text(report), depth, report.count_patterns > 0 ? "variable" : "equal",
      layouts > 0 ? std::to_string(layouts) : "-", seconds_since(start), report.ok ? "" : "  FAILED");
  if (!args.hosts.empty() && report.ok)
    result.line += fmt::format("{:<21} {:<15} {} crossing{}, {}/{} S over a host's link\n", "", "", report.crossings,
                               report.crossings == 1 ? "" : "s", report.host_sent_chunks, report.total_chunks);

  return result;
}

/// The pairs of roots that are worth a check_pair: equal and different ones, first and last ranks.
std::vector<std::pair<Rank, Rank>> root_pairs_to_prove(Collective first, Collective second, int nranks) {
  const Rank last = nranks - 1;
  const bool a = collective_is_rooted(first), b = collective_is_rooted(second);
  std::vector<std::pair<Rank, Rank>> pairs{{0, 0}};
  if (a && b) pairs.insert(pairs.end(), {{0, last}, {last, 0}, {0, nranks / 2}});
  else if (a || b) pairs.push_back({a ? last : 0, b ? last : 0});
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  return pairs;
}

/// Checks `a` followed by every row of the registry.
Result check_pairs_of(const Algorithm& a, const CheckArgs& args, int first, int last) {
  Result result;
  for (const Algorithm& b : all_algorithms()) {
    std::vector<HostLayout> layouts;
    for (int n = first; n <= last; ++n) layouts.push_back(args.hosts.empty() ? HostLayout(n) : args.layout);
    if (args.hosts.empty() && (depends_on_hosts(a) || depends_on_hosts(b)) && !a.direct && !b.direct)
      for (const HostLayout& few : {HostLayout::uniform(2, 2), HostLayout::of(std::vector<int>{0, 1, 0, 1, 1})})
        if (few.nranks() >= first && few.nranks() <= last) layouts.push_back(few);
    bool ok = true;
    for (size_t k = 0; ok && k < layouts.size(); ++k)
      for (const auto& [root_a, root_b] : root_pairs_to_prove(a.collective, b.collective, layouts[k].nranks())) {
        const CheckReport report = check_pair(a, b, layouts[k], {}, root_a, root_b);
        ++result.proofs;
        if (report.ok) continue;
        result.errors += fmt::format("rondo check: {}{}, then {}{}, {}: {}\n", label(a), root_text(a, root_a), label(b),
                                     root_text(b, root_b), ranks_text(layouts[k]), report.reason);
        ++result.failures;
        ok = false;
        break;
      }
  }
  return result;
}

/// Runs `count` proofs in parallel, one per core, and prints the results in order. Proofs share no state.
Result prove_all(size_t count, const std::function<Result(size_t)>& prove) {
  std::vector<std::promise<Result>> results(count);
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i = next++; i < count; i = next++) results[i].set_value(prove(i));
  };
  std::vector<std::thread> workers;
  for (size_t k = 0; k < std::min<size_t>(count, std::max(1u, std::thread::hardware_concurrency())); ++k)
    workers.emplace_back(work);
  Result all;
  for (std::promise<Result>& promise : results) {
    const Result one = promise.get_future().get();
    std::fputs(one.line.c_str(), stdout);
    std::fflush(stdout);
    std::fputs(one.errors.c_str(), stderr);
    all.proofs += one.proofs;
    all.failures += one.failures;
    all.fingerprints |= one.fingerprints;
  }
  for (std::thread& worker : workers) worker.join();
  return all;
}

std::string footnotes(const std::vector<Algorithm>& rows, bool fingerprints) {
  std::string text =
      "Steps, bytes and depth are for the largest number of ranks; depth in brackets is with 4 messages a chunk.\n"
      "Bytes are written by the busiest rank into messages, in parts of the whole vector S. A message to several\n"
      "ranks is written once and counts once; direct copies between buffers do not count. (rondo explain counts\n"
      "both, for each rank that gets them.)\n";
  if (std::any_of(rows.begin(), rows.end(), [](const Algorithm& a) { return collective_is_rooted(a.collective); }))
    text += fmt::format("Roots: every one up to {} ranks, then 0, 1, N/2, N-2 and N-1.\n", kMaxAllRoots);
  if (fingerprints)
    text += fmt::format(
        "Above {} ranks: values and deadlocks by fingerprints, one loop with FIFOs of {}; no races, no ragged "
        "or variable counts.\n",
        kMaxRaceRanks, CheckOptions::fingerprints().first_fifo_depth);
  return text;
}

void run(CheckArgs& args) {
  args.plugins.load("check");
  const auto start = std::chrono::steady_clock::now();
  if (!args.hosts.empty()) {
    const Expected<HostLayout> layout = HostLayout::parse(args.hosts);
    if (!layout.ok()) refuse(std::string(layout.status().message()));
    args.layout = *layout;
    args.ranks = layout->nranks();
  }
  const std::vector<Algorithm> rows = chosen(args);
  std::fputs(fmt::format("{:<21} {:<15} {:>8} {:>7} {:>11} {:>10} {:>8} {:>7} {:>8}\n", "algorithm", "collective",
                         "ranks", "steps", "bytes/rank", "FIFO depth", "counts", "layouts", "seconds")
                 .c_str(),
             stdout);
  const Result alone = prove_all(rows.size(), [&](size_t i) { return check_row(rows[i], args); });
  Result pairs;
  const int last = std::min(args.max_pair_ranks, args.ranks > 0 ? args.ranks : args.max_ranks);
  const int first = args.ranks > 0 ? args.ranks : 1;
  if (first <= last) {
    pairs = prove_all(rows.size(), [&](size_t i) { return check_pairs_of(rows[i], args, first, last); });
    std::fputs(fmt::format("{} ordered pairs on shared connections, {} ranks, run-ahead included\n",
                           rows.size() * all_algorithms().size(),
                           first == last ? fmt::format("{}", last) : fmt::format("{}..{}", first, last))
                   .c_str(),
               stdout);
  }
  const int failures = alone.failures + pairs.failures;
  std::fputs(fmt::format("{}{} proofs, {} failed, {:.2f} s\n", footnotes(rows, alone.fingerprints),
                         alone.proofs + pairs.proofs, failures, seconds_since(start))
                 .c_str(),
             stdout);
  std::fflush(stdout);
  if (failures > 0) throw CLI::RuntimeError(1);
}

}  // namespace

void add_check_command(CLI::App& app) {
  auto args = std::make_shared<CheckArgs>();
  CLI::App* command = app.add_subcommand(
      "check",
      "Proves the algorithms for every number of ranks: right result, same bits on all ranks, no deadlock, no race, "
      "steps and bytes as stated, and variable counts if the algorithm supports them");
  command->add_option("collective", args->collective, "Checks only this collective");
  command->add_option("--algo,-a", args->algo, "Checks only this algorithm (rondo explain --list)");
  CLI::Option* max_ranks =
      command->add_option("--max-ranks", args->max_ranks, "Checks every number of ranks from 1 to this one")
          ->check(CLI::Range(1, 65535))
          ->capture_default_str();
  CLI::Option* ranks =
      command->add_option("--ranks,-n", args->ranks, "Checks only this number of ranks, thousands by fingerprints")
          ->check(CLI::Range(1, 65535))
          ->excludes(max_ranks);
  command
      ->add_option("--hosts", args->hosts,
                   "Checks only ranks on these hosts: 2x4 (two hosts of four), 3+2, 0,1,0,1 (the host of each rank)")
      ->type_name("LAYOUT")
      ->excludes(max_ranks)
      ->excludes(ranks);
  command
      ->add_option("--max-pair-ranks", args->max_pair_ranks,
                   "Checks ordered pairs of algorithms with up to this many ranks")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  args->plugins.add_to(*command);
  command->footer(
      "Examples:\n"
      "  rondo check                              everything, 1 to 64 ranks\n"
      "  rondo check broadcast                    one collective, from every root\n"
      "  rondo check --algo ring --ranks 1000     one algorithm, a large job\n"
      "  rondo check all_reduce --hosts 4x8       ranks on hosts, and the traffic between them\n"
      "layouts: number of layouts of several hosts for which a row was proven, if it depends on hosts.\n"
      "counts: \"variable\" if a count for each rank (all_gather_v and the like) was proven as well.\n"
      "Exit status: 0 all proven, 1 a proof failed (reason on stderr), 2 wrong arguments.\n");
  command->callback([args] { run(*args); });
}

}  // namespace rondo::tools

#include "schedule/checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "schedule/check_collective.h"
#include "schedule/check_counts.h"
#include "schedule/check_machine.h"
#include "schedule/extent.h"
#include "schedule/variable_counts.h"

namespace rondo {
namespace {

using check::execute;
using check::Failure;
using check::Operation;
using check::Outcome;
using check::Program;
using check::RunOptions;

/// One proof: runs a program in all requested ways and collects the report.
class Proof {
 public:
  Proof(std::vector<Operation> operations, const CheckOptions& options, const CheckClaims& claims)
      : operations_(std::move(operations)), options_(options), claims_(claims) {}

  CheckReport run() {
    if (auto f = program_.build(operations_)) {
      fail(*f);
      return std::move(report_);
    }
    const RankSchedule& first = operations_[0].schedule->ranks[0];
    report_.total_chunks = std::max(first.in_chunks, first.out_chunks);
    for (const auto& [s, line_of] : operations_)
      for (const RankSchedule& r : s->ranks) {
        report_.scratch_chunks = std::max<int64_t>(report_.scratch_chunks, r.scratch_chunks);
        for (const Lane& lane : r.lanes) report_.instructions += static_cast<int64_t>(lane.size());
      }
    if (one_loop() && many_loops() && all_lengths() && variable_lengths()) compare_cost();
    return std::move(report_);
  }

 private:
  bool races() const { return program_.nranks <= options_.max_race_ranks; }

  /// Executes at the smallest depth, starting at `*depth`, that has no deadlock for lack of space.
  bool execute_at_smallest_depth(RunOptions o, int* depth, Outcome* outcome) {
    for (;; ++*depth) {
      o.depth = *depth;
      *outcome = execute(program_, o);
      if (!outcome->failure) return true;
      if (!outcome->failure->for_want_of_room || *depth >= options_.max_fifo_depth) return fail(*outcome->failure);
    }
  }

  bool one_loop() {
    RunOptions o;
    o.races = races();
    o.rank_order = claims_.rank_order;
    o.fingerprint = options_.loops > 1;
    report_.fifo_depth = options_.first_fifo_depth;
    Outcome outcome;
    if (!execute_at_smallest_depth(o, &report_.fifo_depth, &outcome)) return false;
    report_.steps = outcome.steps;
    report_.sent_chunks = outcome.sent_elems;
    report_.crossings = outcome.crossings;
    report_.host_sent_chunks = outcome.host_sent_elems;
    report_.order_fingerprint = outcome.order_fingerprint;
    report_.traffic_fingerprint = outcome.traffic_fingerprint;
    return true;
  }

  bool many_loops() {
    report_.fifo_depth_sliced = report_.fifo_depth;
    if (options_.loops == 1 && options_.max_messages_per_chunk == 1) return true;
    for (int slices = 1; slices <= options_.max_messages_per_chunk; ++slices) {
      RunOptions o;
      o.loops = options_.loops;
      o.slices = slices;
      o.races = races();
      int depth = slices == 1 ? report_.fifo_depth : options_.first_fifo_depth;
      Outcome outcome;
      if (!execute_at_smallest_depth(o, &depth, &outcome)) return false;
      if (slices == 1) report_.fifo_depth = depth;
      report_.fifo_depth_sliced = depth;
    }
    return true;
  }

  /// Chunks of unequal and zero length: every pattern for few ranks, typical ones for many.
  bool all_lengths() {
    if (!options_.ragged) return true;
    uint64_t most = 0, least = UINT64_MAX;  // chunks of one part
    for (const auto& [s, line_of] : operations_) {
      const uint64_t chunks = check::Conditions(*s).per_part;
      most = std::max(most, chunks);
      least = std::min(least, chunks);
    }
    std::set<uint64_t> counts{0, 1, most / 2, most - 1, most + 1, 2 * most + 1};
    if (program_.nranks <= 6 && operations_.size() == 1)
      for (uint64_t count = 0; count <= 2 * most + 1; ++count) counts.insert(count);
    for (const uint64_t count : counts) {
      RunOptions o;
      o.count_elems = count;
      o.loop_elems = count > most ? 2 : 1;
      if (lengths(o, num_loops(count, least, o.loop_elems))) continue;
      report_.reason += fmt::format(" [{} elements, {} a message]", count, o.loop_elems);
      return false;
    }
    return true;
  }

  /// A count for each rank, or for each pair of ranks.
  bool variable_lengths() {
    const Schedule& s = *operations_[0].schedule;
    const auto serves = [&](const RankSchedule& r) { return serves_variable_counts(r, s.collective); };
    if (!options_.ragged || operations_.size() != 1 || !std::ranges::all_of(s.ranks, serves)) return true;
    const std::vector<check::Counts> patterns = check::count_patterns(s.collective, s.nranks);
    for (const check::Counts& counts : patterns) {
      RunOptions o;
      o.part_elems = counts.part_elems;
      o.loop_elems = 2;
      if (lengths(o, num_loops(check::kLongestPartElems, 1, o.loop_elems))) continue;
      report_.reason += fmt::format(" [variable counts: {}; {} a message]", counts.name, o.loop_elems);
      return false;
    }
    report_.count_patterns = static_cast<int>(patterns.size());
    return true;
  }

  /// Executes with the lengths in `o`, in loops of one and of two messages per chunk.
  bool lengths(RunOptions o, uint64_t windows) {
    for (int slices = 1; slices <= std::min(2, options_.max_messages_per_chunk); ++slices) {
      o.ragged = true;
      o.slices = slices;
      o.loops = std::max(1, (static_cast<int>(windows) + slices - 1) / slices);
      o.races = races();
      int depth = report_.fifo_depth;
      Outcome outcome;
      if (!execute_at_smallest_depth(o, &depth, &outcome)) return false;
      report_.fifo_depth_sliced = std::max(report_.fifo_depth_sliced, depth);
    }
    return true;
  }

  bool compare_cost() {
    if (!claims_.cost) return true;
    const Cost& cost = *claims_.cost;
    const int64_t measured = report_.sent_chunks * cost.sent_den, claimed = cost.sent_num * report_.total_chunks;
    const auto differs = [&](int64_t found, int64_t stated) {
      return claims_.cost_is_bound ? found > stated : found != stated;
    };
    if (differs(report_.steps, cost.steps))
      return fail({fmt::format("takes {} steps where {} are claimed", report_.steps, cost.steps)});
    if (cost.crossings >= 0 && differs(report_.crossings, cost.crossings))
      return fail(
          {fmt::format("crosses between hosts {} times where {} are claimed", report_.crossings, cost.crossings)});
    if (differs(measured, claimed))
      return fail({fmt::format("sends {}/{} S from its busiest rank where {}/{} are claimed", report_.sent_chunks,
                               report_.total_chunks, cost.sent_num, cost.sent_den)});
    return true;
  }

  bool fail(const Failure& f) {
    report_.ok = false;
    report_.rank = f.rank;
    report_.lane = f.lane;
    report_.pc = f.pc;
    const Operation& operation = operations_[static_cast<size_t>(f.op)];
    if (operations_.size() > 1) report_.reason += fmt::format("operation {}: ", f.op + 1);
    const bool placed = f.rank >= 0 && f.lane >= 0 && f.pc >= 0;
    const check::Words words(*operation.schedule, operation.line_of);
    if (placed) {
      const std::string line = words.line({f.rank, f.lane, f.pc});
      report_.reason += line + (line.empty() ? "" : ": ");
    }
    if (f.rank >= 0) report_.reason += fmt::format("rank {} ", f.rank);
    if (placed)
      report_.reason += fmt::format("lane {} pc {} ({}): ", f.lane, f.pc,
                                    instruction_text(operation.schedule->ranks[static_cast<size_t>(f.rank)],
                                                     words.instruction({f.rank, f.lane, f.pc})));
    report_.reason += f.what;
    return false;
  }

  std::vector<Operation> operations_;
  const CheckOptions& options_;
  const CheckClaims& claims_;
  Program program_;
  CheckReport report_;
};

bool is_direct(const Schedule& s) {
  for (const RankSchedule& r : s.ranks)
    for (const Lane& lane : r.lanes)
      for (const Instruction& i : lane)
        if (i.is(kFlagDirect)) return true;
  return false;
}

/// The lines of a definition. Each query records again, because queries are rare.
LineOf lines_of(const Algorithm& algorithm, const HostLayout& hosts, Rank root) {
  return [&algorithm, hosts, root](Rank rank, int lane, int pc) -> std::string {
    const TextLines lines = record_lines(algorithm, rank, hosts, root);
    const size_t l = static_cast<size_t>(lane), i = static_cast<size_t>(pc);
    return l < lines.size() && i < lines[l].size() ? lines[l][i].text() : "";
  };
}

}  // namespace

CheckReport check_schedule(const Schedule& schedule, const CheckOptions& options, const CheckClaims& claims,
                           const LineOf& line_of) {
  return Proof({{&schedule, line_of}}, options, claims).run();
}

CheckReport check_algorithm(const Algorithm& algorithm, const HostLayout& hosts, const CheckOptions& options,
                            Rank root) {
  const Schedule schedule = record_all(algorithm, hosts, root);
  CheckClaims claims;
  claims.cost = cost_of(algorithm, hosts);
  claims.cost_is_bound = collective_is_rooted(algorithm.collective);
  claims.rank_order = algorithm.rank_order;
  CheckReport report = check_schedule(schedule, options, claims, lines_of(algorithm, hosts, root));
  if (report.ok && hosts.nranks() > 1 && is_direct(schedule) != algorithm.direct) {
    report.ok = false;
    report.reason = algorithm.direct ? "is declared direct but accesses no peer's buffer"
                                     : "accesses peers' buffers but is not declared direct";
  }
  return report;
}

std::vector<Rank> roots_to_prove(Collective collective, int nranks) {
  if (!collective_is_rooted(collective)) return {0};
  if (nranks > kMaxAllRoots) return {0, 1, nranks / 2, nranks - 2, nranks - 1};
  std::vector<Rank> all(static_cast<size_t>(nranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<HostLayout> layouts_to_prove(int n) {
  if (n < 2) return {};
  auto dealt = [n](int hosts, bool by_turns) {
    std::vector<int> keys;
    for (int r = 0; r < n; ++r)
      keys.push_back(by_turns ? r % hosts : static_cast<int>(static_cast<int64_t>(r) * hosts / n));
    return HostLayout::of(keys);
  };
  std::vector<HostLayout> all{dealt(2, false)};
  auto add = [&](const HostLayout& layout) {
    if (std::ranges::find(all, layout) == all.end() && !layout.one_host()) all.push_back(layout);
  };
  if (n <= 16 || n % 8 == 1) {
    std::vector<int> one_left(static_cast<size_t>(n), 1);  // the other ranks of a host have died
    one_left[0] = 0;
    add(HostLayout::of(one_left));
    add(dealt(std::min(n, 3), true));
  }
  if (n <= 12 || n == 25) {
    for (int hosts = 2; hosts < n; ++hosts)
      if (n % hosts == 0) add(dealt(hosts, false));
    add(dealt(2, true));
    add(dealt(std::min(n, 4), false));
  }
  if (n <= 8) add(dealt(n, false));
  return all;
}

CheckReport check_roots(const Algorithm& algorithm, const HostLayout& hosts, const CheckOptions& options) {
  const int nranks = hosts.nranks();
  CheckReport all;
  const std::vector<Rank> roots = roots_to_prove(algorithm.collective, nranks);
  for (const Rank root : roots) {
    CheckReport one = check_algorithm(algorithm, hosts, options, root);
    if (!one.ok) {
      if (collective_is_rooted(algorithm.collective)) one.reason = fmt::format("root {}: {}", root, one.reason);
      return one;
    }
    one.steps = std::max(one.steps, all.steps);
    one.sent_chunks = std::max(one.sent_chunks, all.sent_chunks);
    one.crossings = std::max(one.crossings, all.crossings);
    one.host_sent_chunks = std::max(one.host_sent_chunks, all.host_sent_chunks);
    one.scratch_chunks = std::max(one.scratch_chunks, all.scratch_chunks);
    one.fifo_depth = std::max(one.fifo_depth, all.fifo_depth);
    one.fifo_depth_sliced = std::max(one.fifo_depth_sliced, all.fifo_depth_sliced);
    one.instructions = std::max(one.instructions, all.instructions);
    all = one;
  }
  const Cost cost = cost_of(algorithm, hosts);
  if (std::ssize(roots) == nranks &&
      (all.steps != cost.steps || (cost.crossings >= 0 && all.crossings != cost.crossings) ||
       all.sent_chunks * cost.sent_den != cost.sent_num * all.total_chunks)) {
    all.ok = false;
    all.reason = fmt::format("no root takes {} steps and sends {}/{} S as claimed: at most {} and {}/{} S", cost.steps,
                             cost.sent_num, cost.sent_den, all.steps, all.sent_chunks, all.total_chunks);
    if (cost.crossings >= 0) all.reason += fmt::format(", {} and {} crossings", cost.crossings, all.crossings);
  }
  return all;
}

CheckReport check_pair(const Schedule& first, const Schedule& second, const CheckOptions& options) {
  return Proof({{&first}, {&second}}, options, {}).run();
}

CheckReport check_pair(const Algorithm& first, const Algorithm& second, const HostLayout& hosts,
                       const CheckOptions& options, Rank first_root, Rank second_root) {
  const Schedule a = record_all(first, hosts, first_root), b = record_all(second, hosts, second_root);
  return Proof({{&a, lines_of(first, hosts, first_root)}, {&b, lines_of(second, hosts, second_root)}}, options, {})
      .run();
}

}  // namespace rondo

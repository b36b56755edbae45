#include "core/own_algorithms.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <vector>

#include "algorithms/registry.h"
#include "protocol/fifo.h"
#include "schedule/checker.h"
#include "schedule/renderer.h"

namespace rondo {
namespace {

constexpr int kProvenRanks = 8;    // when a row is registered
constexpr int kPairRanks = 4;      // before and after every other row
constexpr int kMaxRaceRanks = 64;  // beyond, a communicator's proof is by fingerprints: values and deadlocks

std::string label(const Algorithm& a) {
  return fmt::format("algorithm {} of {}", a.name, collective_name(a.collective));
}

Status refused(const Algorithm& a, int nranks, std::string_view why) {
  return Status(StatusCode::kInvalidArgument, fmt::format("{}, {} ranks: {}", label(a), nranks, why));
}

/// What is wrong with the text itself, before it is worth a proof.
Status check_text(const Algorithm& a, int nranks, const std::vector<Rank>& roots) {
  for (const Rank root : roots)
    for (Rank r = 0; r < nranks; ++r) {
      const Expected<RankSchedule> recorded = try_record_rank(a, r, nranks, root);
      if (!recorded.ok()) return refused(a, nranks, recorded.status().message());
      for (const Lane& lane : recorded.value().lanes)
        for (const Instruction& i : lane)
          if (a.direct && (i.has(kVerbRecv) || i.has(kVerbSend)) && !i.is(kFlagDirect) && !i.is(kFlagCredit))
            return refused(a, nranks, fmt::format("rank {} sends data in a message: a direct algorithm sends credits "
                                                  "alone, its data go from buffer to buffer", r));
      for (const PortSet& set : recorded.value().port_sets)
        for (const Port& port : set)
          if (port.tag == kTagPointToPoint)
            return refused(a, nranks,
                           fmt::format("rank {} uses tag {:#x}, which is that of send and recv", r, port.tag));
    }
  return {};
}

Status prove(const Algorithm& a, int nranks, const CheckOptions& options) {
  RONDO_TRY(check_text(a, nranks, roots_to_prove(a.collective, nranks)));
  const CheckReport report = check_roots(a, nranks, options);
  if (!report.ok) return refused(a, nranks, report.reason);
  if (report.fifo_depth > static_cast<int>(kRingMessages))
    return refused(a, nranks, fmt::format("it needs {} messages under way on one connection, and {} are sure to find "
                                          "room", report.fifo_depth, kRingMessages));
  return {};
}

Status prove_before_and_after(const Algorithm& a, const Algorithm& other) {
  for (const bool before : {true, false}) {
    const CheckReport report = before ? check_pair(a, other, kPairRanks) : check_pair(other, a, kPairRanks);
    if (!report.ok)
      return refused(a, kPairRanks,
                     fmt::format("right {} {}: {}", before ? "before" : "after", label(other), report.reason));
  }
  return {};
}

}  // namespace

Status prove_algorithm(const Algorithm& algorithm, int nranks) {
  RONDO_TRY(check_row(algorithm));
  if (nranks < 1 || nranks > 65535)
    return Status(StatusCode::kInvalidArgument, fmt::format("nranks is {}: 1 to 65535 are possible", nranks));
  return prove(algorithm, nranks, nranks <= kMaxRaceRanks ? CheckOptions{} : CheckOptions::fingerprints());
}

Status register_algorithm(const Algorithm& algorithm, uint32_t abi) {
  if (abi != kAlgorithmAbi)
    return Status(StatusCode::kUnsupported,
                  fmt::format("this algorithm was compiled for layout {} of rondo/algorithm.h, rondo {} has layout {}: "
                              "compile it with the headers of the rondo that runs it",
                              abi, RONDO_VERSION, kAlgorithmAbi));
  RONDO_TRY(check_row(algorithm));
  static std::mutex one_after_the_other;  // or two new rows might never be proven before and after each other
  const std::lock_guard lock(one_after_the_other);
  RONDO_TRY(check_new(algorithm));
  for (int n = 1; n <= kProvenRanks; ++n) RONDO_TRY(prove(algorithm, n, {}));
  RONDO_TRY(prove_before_and_after(algorithm, algorithm));
  for (const Algorithm& other : all_algorithms()) RONDO_TRY(prove_before_and_after(algorithm, other));
  return add_row(algorithm);
}

Status prove_own_algorithms(int nranks) {
  const std::span<const Algorithm> own = own_algorithms();
  if (own.empty() || nranks <= kProvenRanks) return {};
  static std::mutex mutex;
  static std::set<int> proven;  // numbers of ranks; no row can come any more once a communicator is made
  const std::lock_guard lock(mutex);
  if (proven.contains(nranks)) return {};
  for (const Algorithm& a : own) RONDO_TRY(prove_algorithm(a, nranks));
  proven.insert(nranks);
  return {};
}

std::string explain_algorithm(const Algorithm& algorithm, int nranks, Rank root) {
  ExplainOptions options;
  options.nranks = nranks;
  options.root = root;
  return explain(algorithm, options);
}

}  // namespace rondo

#include "schedule/own_algorithms.h"

#include <atomic>
#include <mutex>
#include <set>
#include <vector>

#include "algorithms/registry.h"
#include "base/error.h"
#include "protocol/fifo.h"
#include "schedule/checker.h"
#include "schedule/renderer.h"

namespace rondo {
namespace {

constexpr int kProvenRanks = 8;    // at registration
constexpr int kPairRanks = 4;      // before and after every other row
constexpr int kMaxRaceRanks = 64;  // above it, a communicator's proof uses fingerprints: values and deadlocks only

std::string label(const Algorithm& a) {
  return fmt::format("algorithm {} of {}", a.name, collective_name(a.collective));
}

std::string on_hosts(const HostLayout& hosts) {
  return hosts.one_host() ? "" : fmt::format("on hosts {}: ", hosts.text());
}

Status refused(const Algorithm& a, int nranks, std::string_view why) {
  return invalid_argument("{}, {} ranks: {}", label(a), nranks, why);
}

/// Errors in the definition itself, found before the proof.
Status check_text(const Algorithm& a, const HostLayout& hosts, const std::vector<Rank>& roots) {
  const int nranks = hosts.nranks();
  for (const Rank root : roots)
    for (Rank r = 0; r < nranks; ++r) {
      const Expected<RankSchedule> recorded = try_record_rank(a, r, hosts, root);
      if (!recorded.ok()) return refused(a, nranks, recorded.status().message());
      for (const Lane& lane : recorded.value().lanes)
        for (const Instruction& i : lane)
          if (a.direct && (i.has(kVerbRecv) || i.has(kVerbSend)) && !i.is(kFlagDirect) && !i.is(kFlagCredit))
            return refused(a, nranks, fmt::format("rank {} sends data in a message: a direct algorithm sends credits "
                                                  "alone, its data go from buffer to buffer", r));
      for (const PortSet& set : recorded.value().port_sets)
        for (const Port& port : set)
          if (is_message_tag(port.tag))
            return refused(a, nranks,
                           fmt::format("rank {} uses tag {:#x}, which is reserved for send and recv", r, port.tag));
    }
  return {};
}

Status prove(const Algorithm& a, const HostLayout& hosts, const CheckOptions& options) {
  const int nranks = hosts.nranks();
  RONDO_TRY(check_text(a, hosts, roots_to_prove(a.collective, nranks)));
  const CheckReport report = check_roots(a, hosts, options);
  if (!report.ok) return refused(a, nranks, on_hosts(hosts) + report.reason);
  if (report.fifo_depth > static_cast<int>(kRingMessages))
    return refused(a, nranks,
                   fmt::format("it needs {} messages under way on one connection, which has guaranteed "
                               "space for {}",
                               report.fifo_depth, kRingMessages));
  return {};
}

Status prove_before_and_after(const Algorithm& a, const Algorithm& other, const HostLayout& hosts) {
  for (const bool before : {true, false}) {
    const CheckReport report = before ? check_pair(a, other, hosts) : check_pair(other, a, hosts);
    if (!report.ok)
      return refused(a, kPairRanks,
                     fmt::format("right {} {}: {}", before ? "before" : "after", label(other), report.reason));
  }
  return {};
}

std::atomic<bool> without_proof = false;

}  // namespace

void register_without_proof() { without_proof = true; }

Status prove_algorithm(const Algorithm& algorithm, const HostLayout& hosts) {
  const int nranks = hosts.nranks();
  RONDO_TRY(check_row(algorithm));
  if (nranks < 1 || nranks > 65535) return invalid_argument("nranks is {}: 1 to 65535 are possible", nranks);
  return prove(algorithm, hosts, nranks <= kMaxRaceRanks ? CheckOptions{} : CheckOptions::fingerprints());
}

Status prove_for_registration(const Algorithm& algorithm) {
  for (int n = 1; n <= kProvenRanks; ++n) {
    RONDO_TRY(prove(algorithm, n, {}));
    if (!depends_on_hosts(algorithm)) continue;
    for (const HostLayout& hosts : layouts_to_prove(n)) RONDO_TRY(prove(algorithm, hosts, {}));
  }
  std::vector<HostLayout> layouts{kPairRanks};  // rows that depend on hosts make a different pair there
  layouts.push_back(HostLayout::uniform(2, kPairRanks / 2));
  for (const HostLayout& hosts : layouts) {
    RONDO_TRY(prove_before_and_after(algorithm, algorithm, hosts));
    for (const Algorithm& other : all_algorithms())
      if (hosts.one_host() || depends_on_hosts(algorithm) || depends_on_hosts(other))
        RONDO_TRY(prove_before_and_after(algorithm, other, hosts));
  }
  return {};
}

Status register_algorithm(const Algorithm& algorithm, uint32_t abi) {
  if (abi != kAlgorithmAbi)
    return unsupported(
        "this algorithm was compiled for layout {} of rondo/algorithm.h, rondo {} has layout {}: compile it with the "
        "headers of the rondo that runs it",
        abi, RONDO_VERSION, kAlgorithmAbi);
  RONDO_TRY(check_row(algorithm));
  static std::mutex one_after_the_other;  // otherwise two new rows might never be proven before and after each other
  const std::lock_guard lock(one_after_the_other);
  RONDO_TRY(check_new(algorithm));
  if (without_proof) return add_row(algorithm);
  RONDO_TRY(prove_for_registration(algorithm));
  return add_row(algorithm);
}

Status prove_own_algorithms(const HostLayout& hosts) {
  const std::span<const Algorithm> own = own_algorithms();
  if (without_proof) return unsupported("this process registers algorithms without a proof, therefore it runs none");
  if (own.empty() || (hosts.one_host() && hosts.nranks() <= kProvenRanks)) return {};
  static std::mutex mutex;
  static std::set<std::string> proven;  // layouts; rows are frozen once a communicator is made
  const std::lock_guard lock(mutex);
  std::string layout = hosts.text();
  if (hosts != hosts.by_rank())
    for (int i = 0; i < hosts.nranks(); ++i) layout += fmt::format(" {}", hosts.rank_at(i));
  if (proven.contains(layout)) return {};
  for (const Algorithm& a : own) RONDO_TRY(prove_algorithm(a, hosts));
  proven.insert(layout);
  return {};
}

std::string explain_algorithm(const Algorithm& algorithm, const HostLayout& hosts, Rank root) {
  const int nranks = hosts.nranks();
  if (nranks < 1 || nranks > kMaxExplainRanks)
    return fmt::format("nranks is {}: 1 to {} ranks are explained\n", nranks, kMaxExplainRanks);
  if (root < 0 || root >= nranks) return fmt::format("root is {}: the ranks are 0 to {}\n", root, nranks - 1);
  for (Rank r = 0; r < nranks; ++r)
    if (const auto recorded = try_record_rank(algorithm, r, hosts, root); !recorded.ok())
      return recorded.status().to_string() + "\n";
  ExplainOptions options;
  options.hosts = hosts;
  options.root = root;
  return explain(algorithm, options);
}

}  // namespace rondo

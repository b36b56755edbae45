#include "engine/planner.h"

#include <fmt/format.h>

#include <algorithm>

#include "rondo/rondo.h"

namespace rondo {

Planner::Planner(Rank rank, int nranks, const PlannerSettings& settings, PortTable& ports, const KernelTable& kernels)
    : rank_(rank), nranks_(nranks), settings_(settings), ports_(ports), kernels_(kernels), cache_(kSets * kWays) {}

// What one rank does. Chunks of a one-chunk buffer are as long as those of the other one when that is cut by ranks.
Planner::Profile Planner::profile_of(const RankSchedule& s, bool cut_by_ranks) {
  const double whole = std::max(s.in_chunks, s.out_chunks);
  Profile p;
  for (const Lane& lane : s.lanes)
    for (const Instruction& i : lane) {
      if (i.verb == Verb::kWait || i.is(kFlagCredit)) continue;
      const double chunks = cut_by_ranks ? whole : s.chunks(i.has(kVerbSrc) ? i.src_buffer() : i.dst_buffer());
      const double share = i.num_chunks / chunks;
      const PortSet &from = s.recv_ports(i), &to = s.send_ports(i);
      const auto received = static_cast<double>(from.size()), sent = static_cast<double>(to.size());
      p.messages += 1;
      p.longest_chunk = std::max(p.longest_chunk, share);
      p.user_share += share * ((i.has(kVerbSrc) ? 1 : 0) + (i.has(kVerbDst) ? 1 : 0));
      if (i.is(kFlagDirect)) {
        p.peer_share += share * (received + sent);
        p.pulls += received;
      } else {
        const bool multicast = !to.empty() && to[0].group != kUnicast;
        p.slot_share += share * (received + (multicast ? 1.0 : sent));
      }
    }
  return p;
}

// Looks at a few ranks that every rank would look at too: the choice must not depend on who makes it.
const Planner::Profile& Planner::profile(const Algorithm& algorithm) {
  auto [it, fresh] = profiles_.try_emplace(&algorithm);
  Profile& most = it->second;
  if (!fresh) return most;
  most.steps = algorithm.cost(nranks_).steps;
  for (Rank r : {0, 1, nranks_ / 2, nranks_ - 1}) {
    if (r >= nranks_) continue;
    const Profile p = profile_of(record_rank(algorithm, r, nranks_), algorithm.collective != Collective::kAllReduce);
    most.messages = std::max(most.messages, p.messages);
    most.pulls = std::max(most.pulls, p.pulls);
    most.longest_chunk = std::max(most.longest_chunk, p.longest_chunk);
    most.slot_share = std::max(most.slot_share, p.slot_share);
    most.user_share = std::max(most.user_share, p.user_share);
    most.peer_share = std::max(most.peer_share, p.peer_share);
  }
  return most;
}

// One message for a chunk that fits a slot. Long chunks, and those of ranks that share a core, go in shorter messages:
// the slots in use then stay in the second level cache beside the caller's data (docs/architecture.md, "Staging").
uint64_t Planner::choose_message_bytes(uint64_t chunk_bytes) const {
  if (settings_.message_bytes != 0) return std::clamp<uint64_t>(settings_.message_bytes, 64, 64 * 1024);
  return chunk_bytes <= 256 * 1024 && settings_.ranks_per_core <= 1 ? 64 * 1024 : 16 * 1024;
}

double Planner::forecast_ns(const Candidate& c, uint64_t bytes) {
  const Profile& p = profile(*c.algorithm);
  const PlannerSettings& k = settings_;
  const double share = k.ranks_per_core, size = static_cast<double>(bytes), chunk = p.longest_chunk * size;
  const double steps = static_cast<double>(p.steps), step_ns = share > 1 ? k.yield_ns * share : k.handover_ns;
  const double user_ns = size * (p.user_share * k.user_ns_per_byte + p.peer_share * k.peer_ns_per_byte);
  if (c.algorithm->pulls_only && !ports_.transport().may_be_direct()) {
    const bool fresh = c.algorithm->collective == Collective::kAllReduce;  // its second half reads what was just summed
    const double fresh_ns = bytes > k.huge_bytes  ? k.huge_pull_ns_per_byte
                            : bytes > k.big_bytes ? k.big_pull_ns_per_byte : k.pull_fresh_ns_per_byte;
    const double pull_ns = fresh ? fresh_ns : k.pull_ns_per_byte;
    const double calls = p.pulls + p.peer_share * size / (256 * 1024);
    return steps * step_ns + share * (calls * k.pull_call_ns + size * p.peer_share * pull_ns + user_ns);
  }
  if (c.algorithm->direct) return steps * step_ns + share * (4 * k.message_ns + user_ns);
  if (c.protocol == Protocol::kInline) {
    const double lines = std::max(1.0, chunk / kLinePayloadBytes);
    return steps * step_ns + share * p.messages * (k.line_ns + lines * k.line_ns);
  }
  const double message = std::min(chunk, static_cast<double>(c.message_bytes));
  const double loops = std::max(1.0, chunk / static_cast<double>(c.message_bytes));
  const double slot_ns = bytes > k.big_bytes ? k.big_slot_ns_per_byte : k.slot_ns_per_byte;
  const double fill_ns = (steps - 1) * message * slot_ns;  // until the pipeline runs
  return steps * 2 * step_ns + fill_ns +
         share * (p.messages * loops * k.message_ns + size * p.slot_share * slot_ns + user_ns);
}

Expected<const Algorithm*> Planner::find(Collective collective, std::string_view name) const {
  if (const Algorithm* a = find_algorithm(collective, name)) return a;
  std::string known;
  for (const Algorithm& a : all_algorithms())
    if (a.collective == collective) known += fmt::format("{}{}", known.empty() ? "" : ", ", a.name);
  return Status(StatusCode::kInvalidArgument,
                fmt::format("rank {}: algorithm \"{}\" does not exist for {}; there are {}", rank_, name,
                            collective_name(collective), known));
}

Expected<std::vector<Planner::Candidate>> Planner::candidates(const PlanRequest& request, bool staged_only) {
  // A direct instruction reads its peers' raw inputs and does not know their scales.
  const bool scales = collective_reduces(request.collective) && request.op == Op::kPremulSum;
  const bool may_map = !staged_only && !scales && ports_.transport().may_be_direct();
  const bool may_pull = !staged_only && !scales && ports_.transport().can_pull();
  auto allowed = [&](const Algorithm& a) { return !a.direct || may_map || (a.pulls_only && may_pull); };
  // A call's own algorithm is a demand; RONDO_ALGO applies to the collectives that have it.
  std::string_view demanded = request.algorithm != nullptr ? request.algorithm->name : "";
  if (demanded.empty()) {
    const Algorithm* set = find_algorithm(request.collective, settings_.algorithm);
    if (set != nullptr && allowed(*set)) demanded = set->name;
  }
  const uint64_t elem_bytes = dtype_bytes(request.dtype);
  const bool scaled = request.collective != Collective::kAllReduce;
  const uint64_t bytes = request.count_elems * elem_bytes * (scaled ? static_cast<uint64_t>(nranks_) : 1);
  std::vector<Candidate> found;
  for (const Algorithm& a : all_algorithms()) {
    if (a.collective != request.collective || (!demanded.empty() && a.name != demanded)) continue;
    if (!allowed(a)) continue;
    if ((request.promises & RONDO_PROMISE_RANK_ORDER) && collective_reduces(a.collective) && !a.rank_order) continue;
    const double chunk = std::max(1.0, profile(a).longest_chunk * static_cast<double>(bytes) + static_cast<double>(elem_bytes));
    for (Protocol protocol : {Protocol::kInline, Protocol::kSimple}) {
      if (protocol == Protocol::kInline && (a.direct || chunk > static_cast<double>(kMaxInlineBytes) + 8)) continue;
      if (!a.direct && settings_.protocol[0] != 0 && protocol_name(protocol) != settings_.protocol &&
          !(protocol == Protocol::kSimple && chunk > static_cast<double>(kMaxInlineBytes) + 8))
        continue;
      Candidate c{&a, protocol, protocol == Protocol::kInline ? kMaxInlineBytes
                                                              : choose_message_bytes(static_cast<uint64_t>(chunk)), 0};
      c.forecast_ns = forecast_ns(c, bytes);
      found.push_back(c);
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& x, const Candidate& y) { return x.forecast_ns < y.forecast_ns; });
  if (found.empty())
    return Status(StatusCode::kUnsupported,
                  fmt::format("rank {}: no algorithm for {}{}{}", rank_, collective_name(request.collective),
                              demanded.empty() ? "" : fmt::format(" named {} fits this call", demanded),
                              request.promises & RONDO_PROMISE_RANK_ORDER
                                  ? ": the promise of rank order needs one_shot, two_shot, pull or direct"
                              : scales ? ": direct reads what a peer has not scaled yet; premul_sum needs another"
                                  : ": direct needs buffers that all ranks can reach (rondo_alloc, or ranks as threads), pull "
                                    "processes that may read one another's memory"));
  return found;
}

Expected<std::unique_ptr<Program>> Planner::build(const PlanRequest& request, const Candidate& c) {
  ProgramShape shape;
  shape.operation = {request.collective, request.dtype, collective_reduces(request.collective) ? request.op : Op::kSum,
                     static_cast<uint8_t>(c.algorithm - all_algorithms().data()), request.count_elems};
  shape.protocol = c.protocol;
  shape.message_bytes = c.message_bytes;
  return compile(record_rank(*c.algorithm, rank_, nranks_), shape, ports_, kernels_);
}

Expected<const std::shared_ptr<Plan>*> Planner::plan_slow(const PlanRequest& request, std::shared_ptr<Plan>* set) {
  const bool direct_allowed = ports_.transport().may_be_direct();
  RONDO_TRY_ASSIGN(const std::vector<Candidate> found, candidates(request, false));
  const Candidate& best = found[0];
  auto plan = std::make_shared<Plan>();
  plan->request = request;
  plan->may_be_direct = direct_allowed;
  plan->algorithm = best.algorithm;
  RONDO_TRY_ASSIGN(plan->program, build(request, best));
  plan->reason = best.algorithm->direct
                     ? fmt::format("{} from buffer to buffer, forecast {:.2f} us", best.algorithm->name,
                                   best.forecast_ns / 1000)
                     : fmt::format("{} {}, messages of {} B, forecast {:.2f} us", best.algorithm->name,
                                   protocol_name(best.protocol), best.message_bytes, best.forecast_ns / 1000);
  if (settings_.algorithm[0] != 0 && request.algorithm == nullptr && best.algorithm->name != settings_.algorithm)
    plan->reason += fmt::format(" (RONDO_ALGO={} cannot serve this {})", settings_.algorithm,
                                collective_name(request.collective));
  if (best.algorithm->direct && !best.algorithm->pulls_only) {
    PlanRequest staged = request;
    staged.algorithm = nullptr;
    RONDO_TRY_ASSIGN(const std::vector<Candidate> others, candidates(staged, true));
    RONDO_TRY_ASSIGN(plan->fallback, build(staged, others[0]));
    plan->reason += fmt::format("; {} when a rank's buffers cannot be reached", others[0].algorithm->name);
  }
  if (found.size() > 1)
    plan->reason += fmt::format("; next best {} {} {:.2f} us", found[1].algorithm->name,
                                protocol_name(found[1].protocol), found[1].forecast_ns / 1000);
  std::move_backward(set, set + kWays - 1, set + kWays);  // the oldest of the set goes
  set[0] = std::move(plan);
  return set;
}

}  // namespace rondo

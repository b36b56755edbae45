#include "plan/planner.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/round_up.h"
#include "rondo/rondo.h"
#include "transport/segment.h"

namespace rondo {
namespace {

constexpr uint64_t kShort = 16 * 1024, kLong = 64 * 1024;  // message sizes in bytes

std::string promise_names(uint32_t promises) {
  std::string text;
  for (const auto& [bit, name] :
       {std::pair<uint32_t, std::string_view>{RONDO_PROMISE_SAME_BITS_PER_SIZE, "equal bits at every size"},
        {RONDO_PROMISE_SAME_BITS_PER_ALGORITHM, "equal bits by every algorithm"},
        {RONDO_PROMISE_SAME_BITS_PER_TRANSPORT, "equal bits on every transport"},
        {RONDO_PROMISE_RANK_ORDER, "rank order"}})
    if (promises & bit) text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  return text;
}

}  // namespace

Planner::Planner(Rank rank, const HostLayout& hosts, const PlannerSettings& settings, PortTable& ports,
                 const KernelTable& kernels)
    : rank_(rank),
      hosts_(hosts),
      hosts_by_rank_(hosts.by_rank()),
      nranks_(hosts.nranks()),
      settings_(settings),
      measured_world_(
          settings.corrections.nearest_measured(CostCorrections::world_of(nranks_, settings.ranks_per_core))),
      ports_(ports),
      kernels_(kernels) {}

void Planner::force(const Candidate* candidate) {
  forced_ = candidate != nullptr ? *candidate : Candidate{};
  cache_.clear();
}

const ScheduleProfile& Planner::profile(const Algorithm& algorithm, Rank root) {
  const auto [it, fresh] = profiles_.try_emplace({&algorithm, root});
  if (fresh) it->second = profile_schedule(algorithm, hosts_, root, settings_.ranks_per_core);
  return it->second;
}

// Returns the message sizes to compare. RONDO_MESSAGE_BYTES leaves only one. A chunk of up to 16 KiB is one message. A
// longer chunk may also be sent in messages of 16 KiB, so that ranks read while others write.
std::vector<uint64_t> Planner::message_sizes(Collective collective, double chunk_bytes) const {
  if (settings_.message_bytes != 0)
    return {std::clamp<uint64_t>(settings_.message_bytes, 64,
                                 hosts_.one_host() ? kLong : ports_.transport().longest_message_bytes())};
  if (chunk_bytes <= kShort) return {kLong};
  if (hosts_.one_host() || chunk_bytes <= kLong) return {kShort, kLong};
  return {kShort, long_message(collective, chunk_bytes)};
}

// Returns true if messages of this length can use the whole ring in turn instead of a lap. Ranks that share a core find
// each other's messages in its caches, so a lap is always better for them.
bool Planner::may_use_whole_ring(double message_bytes) const {
  return hosts_.one_host() && nranks_ > 1 && settings_.ranks_per_core == 1 &&
         lap_bytes(message_bytes, lap_messages()) < static_cast<double>(ring_bytes());
}
uint64_t Planner::ring_bytes() const { return SegmentLayout(nranks_).data_bytes(); }

// Returns the message size between hosts, for a chunk of more than 64 KiB:
//   - Two equal pieces of the chunk, if the transport has no long messages, or if a host has several ranks and the call
//     is not an all-reduce. A piece is slightly shorter than the kernel's TCP segment of 64 KiB, so that the header
//     fits.
//   - Otherwise the longest message of the transport. For sums half of it, so that the first part is sent while the
//     rest arrives (not if the ranks' own cores copy the bytes of the link and are always busy). Divided by the number
//     of ranks of a host whose messages a rank may be adding at once (`most_here`). If more than two ranks forward
//     messages and hosts do not share cores, a chunk has at least four messages.
uint64_t Planner::long_message(Collective collective, double chunk_bytes) const {
  constexpr uint64_t kPieces = 2, kOverlap = 4, kPieceBytes = 63 * 1024;
  const auto whole = static_cast<uint64_t>(chunk_bytes);
  const uint64_t pieces = (whole + kPieceBytes - 1) / kPieceBytes;
  const uint64_t two_pieces = round_up((whole + pieces - 1) / pieces, uint64_t{64}) * std::min(kPieces, pieces);
  const uint64_t longest = ports_.transport().longest_message_bytes();
  const bool zero_copy_inside = collective == Collective::kAllReduce;  // most data inside a host is zero-copy
  if (longest <= kPieces * kLong || (hosts_.num_hosts() < nranks_ && !zero_copy_inside)) return two_pieces;
  int most_here = 1;  // ranks whose messages a rank may be adding at once
  for (int h = 0; h < hosts_.num_hosts(); ++h) most_here = std::max(most_here, hosts_.num_ranks(h) - 1);
  const bool overlaps = nranks_ > 2 && !settings_.hosts_share_cores;
  const bool halves = collective_reduces(collective) && (overlaps || !settings_.hosts_share_kernel);
  const uint64_t most = (halves ? longest / 2 : longest) / static_cast<uint64_t>(most_here);
  const uint64_t messages = std::max((whole + most - 1) / most, overlaps ? kOverlap : 1);
  return std::max(two_pieces, round_up((whole + messages - 1) / messages, uint64_t{64}));
}

void Planner::forecast(Candidate& c, const Volume& v, Rank root) {
  const ScheduleProfile& p = profile(*c.algorithm, root);
  const bool by_copy = c.algorithm->pulls_only && !ports_.transport().may_be_direct();
  const int shared = settings_.ranks_per_core;
  c.cost = {&p,
            c.protocol,
            c.algorithm->direct,
            by_copy,
            static_cast<double>(c.message_bytes),
            v.whole,
            v.chunk(p.longest_chunk),
            shared,
            v.user,
            v.user > 0,
            c.whole_ring ? static_cast<double>(ring_bytes())
                         : lap_bytes(static_cast<double>(c.message_bytes), lap_messages()),
            c.whole_ring,
            nranks_ == 2 && !hosts_.one_host()};
  c.counts = cost_counts(c.cost, settings_.costs);
  c.forecast_ns = rondo::forecast_ns(c.counts, settings_.costs, shared);
}

// Corrects all forecasts or none, because corrected and uncorrected ones cannot be compared. Corrects nothing on
// several hosts.
void Planner::correct(std::vector<Candidate>& found, const Volume& v) const {
  if (!hosts_.one_host()) return;
  const CostCorrections& known = settings_.corrections;
  if (!std::ranges::all_of(found, [&](const Candidate& c) {
        return known.knows(measured_world_, algorithm_index(*c.algorithm), form_of(c));
      }))
    return;
  for (Candidate& c : found)
    c.forecast_ns *= known.factor(measured_world_, algorithm_index(*c.algorithm), form_of(c),
                                  std::max(v.whole, v.user));
}

CostForm Planner::form_of(const Candidate& c) const {
  if (c.algorithm->direct)
    return c.algorithm->pulls_only && !ports_.transport().may_be_direct() ? CostForm::kCopied : CostForm::kMapped;
  if (c.protocol == Protocol::kInline) return CostForm::kInline;
  if (c.whole_ring) return CostForm::kWhole;
  return c.message_bytes <= 16 * 1024 ? CostForm::kShort : CostForm::kLong;
}

Expected<const Algorithm*> Planner::find(Collective collective, std::string_view name) const {
  if (const Algorithm* a = find_algorithm(collective, name)) return a;
  std::string known;
  for (const Algorithm& a : all_algorithms())
    if (a.collective == collective) known += fmt::format("{}{}", known.empty() ? "" : ", ", a.name);
  return invalid_argument("rank {}: algorithm \"{}\" does not exist for {}; there are {}", rank_, name,
                          collective_name(collective), known);
}

Planner::Volume Planner::volume_of(const CallShape& r) const {
  const TypeRow t = r.types();
  const double wire_bytes = dtype_bytes(t.wire), user_bytes = std::max(dtype_bytes(t.input), dtype_bytes(t.output));
  auto user = [&](double elems) { return r.row != 0 ? elems * user_bytes : 0; };
  const auto whole = static_cast<double>(whole_elems(r.collective, r.count_elems, nranks_));
  if (r.counts == nullptr) return {whole * wire_bytes, 0, user(whole)};
  constexpr double kUnknownBytes = 1 << 20;  // no rank knows the other ranks' counts
  if (r.counts->pairwise) return {kUnknownBytes * nranks_, kUnknownBytes};
  const PartExtents& many = r.counts->in.counts.size() > 1 ? r.counts->in : r.counts->out;
  const auto sum = static_cast<double>(r.count_elems);
  return {sum * wire_bytes, std::max(1.0, static_cast<double>(many.longest()) * wire_bytes), user(sum)};
}

bool Planner::considered(const Algorithm& a, Collective collective, std::string_view demanded) const {
  if (a.collective != collective) return false;
  return demanded.empty() ? !a.for_hosts || !hosts_.one_host() : a.name == demanded;
}

// Checks whether an algorithm can serve this call, whatever its cost.
bool Planner::allowed(const Algorithm& a, const CallShape& r, bool staged_only) {
  const ScheduleProfile& p = profile(a, r.root);
  if (r.counts != nullptr && !p.serves_variable_counts) return false;
  if (r.promises != 0 && collective_reduces(a.collective) && !a.rank_order) {
    // An algorithm adds in the same order on every transport. If it has only one chunk, it does so at every size too.
    const bool named = r.algorithm != nullptr;
    uint32_t kept = named ? RONDO_PROMISE_SAME_BITS_PER_TRANSPORT : 0;
    if (named && p.longest_chunk == 1) kept |= RONDO_PROMISE_SAME_BITS_PER_SIZE;
    if ((r.promises & ~kept) != 0) return false;
  }
  if (r.row != 0) {
    const TypeRow t = r.types();
    if (p.pushes) return false;  // data is pushed into a peer's output without conversion
    // A pull that converts types needs an intermediate copy. Messages are therefore faster at every size
    // (compare_types --collective all_gather, 4 MiB, 2 processes: 1.08 times the plain call instead of 1.18).
    const bool named = r.algorithm != nullptr || a.name == settings_.algorithm;
    if (a.direct && !collective_reduces(a.collective) && !named) return false;
    if (p.adds_in_out && t.output != t.wire && t.output != t.accumulator)
      return false;  // out cannot hold a partial sum
    if (p.sends_final && collective_reduces(a.collective) && a.collective != Collective::kAllReduce)
      return false;  // the owner of a chunk must compute its sum in the accumulator
  }
  if (!a.direct) return true;
  if (!hosts_.one_host()) return false;  // no rank can access another host's memory
  // A direct instruction reads the peers' inputs as they are. It lacks the peers' scales, counts and offsets.
  const bool scales = collective_reduces(r.collective) && r.op == Op::kPremulSum;
  if (staged_only || scales || (r.counts != nullptr && (r.counts->pairwise || !r.counts->packed))) return false;
  return ports_.transport().may_be_direct() || (a.pulls_only && ports_.transport().can_pull());
}

std::string Planner::why_none(const CallShape& r, std::string_view demanded) const {
  std::string text = fmt::format("rank {}: no algorithm can serve this {}{}", rank_, collective_name(r.collective),
                                 r.counts != nullptr ? "_v" : "");
  if (!demanded.empty()) text += fmt::format(" (required: {})", demanded);
  if (r.promises != 0)
    return text + fmt::format(
                      ": to keep the promise of {}, an algorithm must add in rank order; one_shot, two_shot, pull and "
                      "direct do so",
                      promise_names(r.promises));
  if (r.row != 0)
    return text +
           ": with mixed types an algorithm must not write into a peer's buffer, partial sums must fit into their "
           "storage, and only the rank that gets a sum may complete it; use ring, one_shot, two_shot or pull";
  if (!hosts_.one_host())
    return text + fmt::format(": the ranks are on several hosts ({}), and no rank can access buffers on another host",
                              hosts_.text());
  if (r.counts != nullptr)
    return text + ": calls with a count for each rank need an algorithm with one chunk for each part";
  if (r.op == Op::kPremulSum && collective_reduces(r.collective))
    return text + ": direct reads data that the peer has not scaled yet, so it cannot serve premul_sum";
  return text +
         ": direct needs buffers that all ranks can access (rondo_alloc, or ranks as threads); pull needs processes "
         "that may read one another's memory";
}

// A call can require an algorithm. RONDO_ALGO is used for the calls that it can serve.
std::string_view Planner::required_name(const CallShape& request, bool staged_only) {
  if (request.algorithm != nullptr) return request.algorithm->name;
  if (is_forced(request, staged_only)) return forced_.algorithm->name;
  const Algorithm* set = find_algorithm(request.collective, settings_.algorithm);
  return set != nullptr && allowed(*set, request, staged_only) ? set->name : std::string_view();
}

Expected<std::vector<Candidate>> Planner::candidates(const CallShape& request, bool staged_only) {
  RONDO_TRY_ASSIGN(const auto algorithms, usable(request, staged_only));
  const bool forced = is_forced(request, staged_only);
  const Volume volume = volume_of(request);
  const double elem_bytes = dtype_bytes(request.types().wire);
  const bool pairwise = request.counts != nullptr && request.counts->pairwise;
  std::vector<Candidate> found;
  for (const Algorithm* algorithm : algorithms) {
    const Algorithm& a = *algorithm;
    const double chunk = std::max(1.0, volume.chunk(profile(a, request.root).longest_chunk) + elem_bytes);
    const double chunk_elems = std::ceil(volume.chunk(profile(a, request.root).longest_chunk) / elem_bytes - 1e-6);
    const double cut = hosts_.one_host() ? chunk : chunk_elems * elem_bytes;  // hosts: a few bytes may add a message
    const bool fits_lines = chunk <= static_cast<double>(kMaxInlineBytes) + 8;
    auto add = [&](Protocol protocol, uint64_t message_bytes, bool whole_ring = false) {
      const bool as_forced =
          protocol == forced_.protocol && message_bytes == forced_.message_bytes && whole_ring == forced_.whole_ring;
      if (forced && !as_forced) return;
      Candidate& c = found.emplace_back(Candidate{&a, protocol, message_bytes, whole_ring});
      forecast(c, volume, request.root);
    };
    const bool lines_possible = !a.direct && fits_lines && !pairwise;
    auto wanted = [&](Protocol p) {
      const std::string_view set = settings_.protocol;  // LL protocols of devices correspond to inline
      return set.empty() || protocol_name(p) == set || (p == Protocol::kInline && set.starts_with("ll"));
    };
    if (lines_possible && wanted(Protocol::kInline)) add(Protocol::kInline, kMaxInlineBytes);
    if (a.direct) add(Protocol::kSimple, 64 * 1024);
    else if (wanted(Protocol::kSimple) || !lines_possible) {
      const std::vector<uint64_t> sizes = message_sizes(a.collective, cut);
      for (const uint64_t bytes : sizes) add(Protocol::kSimple, bytes);
      const uint64_t longest = sizes.back();
      if (may_use_whole_ring(std::min(chunk, static_cast<double>(longest)))) add(Protocol::kSimple, longest, true);
    }
  }
  correct(found, volume);
  std::ranges::stable_sort(found, [](const Candidate& x, const Candidate& y) { return x.forecast_ns < y.forecast_ns; });
  if (found.empty()) return Status(StatusCode::kUnsupported, why_none(request, required_name(request, staged_only)));
  return found;
}

Expected<std::vector<const Algorithm*>> Planner::usable(const CallShape& request, bool staged_only) {
  const std::string_view name = required_name(request, staged_only);
  std::vector<const Algorithm*> found;
  for (const Algorithm& a : all_algorithms())
    if (considered(a, request.collective, name) && allowed(a, request, staged_only)) found.push_back(&a);
  if (found.empty()) return Status(StatusCode::kUnsupported, why_none(request, name));
  return found;
}

OperationShape operation_shape(const CallShape& r, uint8_t algorithm) {
  return {r.collective, r.dtype, collective_reduces(r.collective) ? r.op : Op::kSum, algorithm, r.count_elems,
          static_cast<uint16_t>(r.root), r.row, r.counts != nullptr};
}

Expected<std::unique_ptr<Program>> Planner::build(const CallShape& request, const Candidate& c) {
  ProgramShape shape;
  shape.operation = operation_shape(request, algorithm_index(*c.algorithm));
  shape.protocol = c.protocol;
  shape.message_bytes = c.message_bytes;
  shape.counts = request.counts.get();
  shape.lap_messages = c.whole_ring ? kWholeRing : lap_messages();
  shape.direct = c.algorithm->direct && nranks_ > 1;
  shape.pushes = shape.direct && profile(*c.algorithm, request.root).pushes;
  // If the call has a promise about bits, rings and trees are in rank order, wherever the ranks run.
  const HostLayout& layout = request.promises == 0 ? hosts_ : hosts_by_rank_;
  return compile(record_rank(*c.algorithm, rank_, layout, collective_is_rooted(request.collective) ? request.root : 0),
                 shape, ports_, kernels_);
}

// Plans a message between two ranks. The protocol and the size of the pieces follow from the length, the hosts and
// RONDO_MESSAGE_BYTES. If a message has more pieces than its FIFO has lines (SegmentLayout::data_lines), its sender
// must wait for the receiver. Then both ends report a mismatch if their lengths differ.
Status Planner::plan_message(const CallShape& request, Plan& plan) {
  const uint64_t bytes = request.count_elems * dtype_bytes(request.dtype);
  ProgramShape shape;
  shape.operation = operation_shape(request, request.matched ? kMatchedByTag : 0);
  shape.lap_messages = lap_messages();
  shape.protocol = bytes <= kMaxInlineBytes ? Protocol::kInline : Protocol::kSimple;
  constexpr uint64_t kPiece = 48 * 1024;  // between hosts
  shape.message_bytes = bytes <= kMaxInlineBytes       ? kMaxInlineBytes
                        : settings_.message_bytes != 0 ? message_sizes(request.collective, 0).front()
                        : bytes <= 256 * 1024          ? kLong
                        : request.root < 0 || hosts_.same_host(rank_, request.root) ? kShort
                                                                                    : kPiece;
  RONDO_TRY_ASSIGN(plan.program,
                   compile(record_point_to_point(request.collective, rank_, nranks_, request.root, request.matched),
                           shape, ports_, kernels_));
  plan.reason = fmt::format("point to point, {}, messages of {} B", protocol_name(shape.protocol), shape.message_bytes);
  return {};
}

// Returns the order of rings and trees, if it is not by rank.
std::string Planner::order_text() const {
  if (hosts_ == hosts_by_rank_) return {};
  const HostLayout& places = hosts_.places();
  constexpr int kMostShown = 16;
  std::string text;
  for (int i = 0; i < std::min(nranks_, kMostShown); ++i)
    text += fmt::format("{}{}",
                        i == 0                                                       ? ", by places "
                        : places.same_host(places.rank_at(i - 1), places.rank_at(i)) ? " "
                                                                                     : " | ",
                        places.rank_at(i));
  return text + (nranks_ > kMostShown ? " ..." : "");
}

Expected<const std::shared_ptr<Plan>*> Planner::plan_slow(const CallShape& request) {
  auto plan = std::make_shared<Plan>();
  plan->request = request;
  plan->may_be_direct = ports_.transport().may_be_direct();
  RONDO_TRY(is_point_to_point(request.collective) ? plan_message(request, *plan) : plan_collective(request, *plan));
  if (plan->program != nullptr) plan->program->reason = plan->reason;
  if (plan->fallback != nullptr)
    plan->fallback->reason = "fallback, because a rank's buffers cannot be reached: " + plan->reason;
  return cache_.add(std::move(plan));
}

Status Planner::plan_collective(const CallShape& request, Plan& plan) {
  RONDO_TRY_ASSIGN(const std::vector<Candidate> found, candidates(request));
  const Candidate& best = found[0];
  plan.algorithm = best.algorithm;
  RONDO_TRY_ASSIGN(plan.program, build(request, best));
  plan.reason =
      best.algorithm->direct
          ? fmt::format("{} from buffer to buffer, forecast {:.2f} us", best.algorithm->name, best.forecast_ns / 1000)
          : fmt::format("{} {}, messages of {} B{}, forecast {:.2f} us", best.algorithm->name,
                        protocol_name(best.protocol), best.message_bytes, best.whole_ring ? " in the whole ring" : "",
                        best.forecast_ns / 1000);
  if (!hosts_.one_host())
    plan.reason += fmt::format(", hosts {}{}", hosts_.text(), settings_.hosts_pretended ? " (pretended)" : "");
  if (depends_on_hosts(*best.algorithm) && request.promises == 0) plan.reason += order_text();
  if (!settings_.algorithm.empty() && request.algorithm == nullptr && best.algorithm->name != settings_.algorithm)
    plan.reason += fmt::format(" (RONDO_ALGO={} cannot serve this {})", settings_.algorithm,
                                collective_name(request.collective));
  // If the algorithm only reads, and the kernel can copy from any buffer, all buffers can be reached.
  const bool reaches_all = best.algorithm->pulls_only && ports_.transport().can_pull();
  if (best.algorithm->direct && !reaches_all) {
    CallShape staged = request;
    staged.algorithm = nullptr;
    RONDO_TRY_ASSIGN(const std::vector<Candidate> others, candidates(staged, true));
    RONDO_TRY_ASSIGN(plan.fallback, build(staged, others[0]));
    plan.reason += fmt::format("; {} when a rank's buffers cannot be reached", others[0].algorithm->name);
  }
  if (found.size() > 1)
    plan.reason +=
        fmt::format("; next best {} {}{} {:.2f} us", found[1].algorithm->name, protocol_name(found[1].protocol),
                    found[1].whole_ring ? " in the whole ring" : "", found[1].forecast_ns / 1000);
  return {};
}

}  // namespace rondo

#include "device/engine/device_planner.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "device/engine/lower.h"

namespace rondo {
namespace {

// The longest message that fits a protocol's slot, or the ring.
uint64_t longest_message(DeviceProtocol p, const DeviceLayout& layout) {
  return p == DeviceProtocol::kSimple ? layout.message_bytes : DeviceLayout::slot_payload(form_of(p));
}

// True if the algorithm was registered from outside.
bool is_own(const Algorithm& a) {
  const auto own = own_algorithms();
  return !own.empty() && &a >= own.data() && &a < own.data() + own.size();
}

double whole_bytes(const CallShape& r, int nranks) {
  return static_cast<double>(whole_elems(r.collective, r.count_elems, nranks)) * dtype_bytes(r.types().wire);
}

// Minimum share of a channel that justifies a block, by DeviceProtocol.
constexpr uint64_t kLeastShare[kNumDeviceProtocols] = {32 * 1024, 4 * 1024, 8 * 1024};

}  // namespace

DevicePlanner::DevicePlanner(int nranks, const DeviceWorld& world, Planner& planner)
    : nranks_(nranks), world_(world), planner_(planner) {}

uint32_t DevicePlanner::lanes_of(const Algorithm& a, Rank root) {
  for (const auto& [known, lanes] : lanes_)
    if (known == &a) return lanes;
  // A rank's number of lanes may depend on its position. The maximum over ranks counts.
  size_t most = 1;
  for (Rank r = 0; r < nranks_; r = r < 8 ? r + 1 : r * 2)
    most = std::max(most, record_rank(a, r, planner_.hosts(), root).lanes.size());
  if (nranks_ > 1) most = std::max(most, record_rank(a, nranks_ - 1, planner_.hosts(), root).lanes.size());
  lanes_.emplace_back(&a, static_cast<uint32_t>(most));
  return static_cast<uint32_t>(most);
}

// `preference`: the call's own limit; 0: none.
uint32_t DevicePlanner::most_blocks(uint32_t preference) const {
  uint32_t most = world_.resident_blocks;
  for (const uint32_t limit : {planner_.settings().device_most_blocks, preference})
    if (limit > 0) most = std::min(most, limit);
  return most;
}

uint32_t DevicePlanner::most_channels(uint32_t lanes, uint32_t preference) const {
  return std::min(world_.layout.max_channels, std::max(1u, most_blocks(preference) / lanes));
}

uint32_t DevicePlanner::channels_for(double bytes, uint64_t least_bytes, uint32_t lanes,
                                     const CallShape& request) const {
  const double wanted = bytes / static_cast<double>(least_bytes);
  const uint32_t most = most_channels(lanes, request.max_blocks);
  const uint32_t least_blocks = std::max({1u, planner_.settings().device_least_blocks, uint32_t{request.min_blocks}});
  const uint32_t least = std::min(most, (least_blocks + lanes - 1) / lanes);
  return wanted <= least ? least : wanted >= most ? most : static_cast<uint32_t>(wanted);
}

double DevicePlanner::forecast(const DeviceCandidate& c, double whole_bytes, Rank root) const {
  const Cost cost = cost_of(*c.algorithm, planner_.hosts());
  const auto p = static_cast<size_t>(c.protocol);
  const double sent = nranks_ == 1 ? 0 : static_cast<double>(cost.sent_num) / static_cast<double>(cost.sent_den);
  double across = 0;  // over the busiest host's link, in addition to traffic inside
  double hops = static_cast<double>(cost.steps);  // inside hosts
  if (world_.proxied) {
    const ScheduleProfile& profile = planner_.profile(*c.algorithm, root);
    hops = std::max(0.0, hops - profile.crossings);
    across = profile.crossings * costs_.crossing_ns + profile.host_share * whole_bytes / costs_.network_gigabytes_per_s;
  }
  const RankWork& work = planner_.profile(*c.algorithm, root).busiest;
  // A multicast crosses the link to each of its readers: they read it there, or a stream copies it for each.
  const double moved = c.algorithm->direct ? work.peer_share : std::max(sent, work.ring_share - sent);
  if (world_.engine == EngineKind::kStream)
    return costs_.launch_ns + static_cast<double>(cost.steps) * costs_.stream_step_ns + across +
           moved * whole_bytes / world_.link_gigabytes_per_s;
  const double touched = work.user_share + work.peer_share + work.ring_share;
  const double hop = world_.through_host ? costs_.host_hop_ns[p] : costs_.hop_ns[p];
  return costs_.launch_ns + hops * hop + across +
         whole_bytes * std::max(moved / (world_.link_gigabytes_per_s * costs_.efficiency[p]),
                                touched / (c.num_channels * costs_.channel_gigabytes_per_s[p]));
}

void DevicePlanner::add_forms(const Algorithm& a, const CallShape& r, std::vector<DeviceCandidate>& found) {
  if (world_.engine == EngineKind::kStream) {
    // The stream engine has no channels and maps no peer's buffers.
    if (a.direct) return;
    // A single rank sends nothing, so that no slot limits its copies.
    const auto whole = static_cast<uint64_t>(nranks_ == 1 ? whole_bytes(r, 1) : 0);
    found.push_back({&a, DeviceProtocol::kSimple, 1, std::max(world_.stream_slot_bytes, whole), 0});
    return;
  }
  const uint32_t lanes = lanes_of(a, r.root);
  if (lanes > world_.resident_blocks) return;
  // Amount that a lane moves at once: at most a chunk. The smallest chunks are whole / ranks.
  const double chunk = whole_bytes(r, nranks_) / nranks_;
  const bool pairwise = r.counts != nullptr && r.counts->pairwise;
  const std::string_view wanted = planner_.settings().protocol;
  for (const DeviceProtocol p : {DeviceProtocol::kSimple, DeviceProtocol::kLl, DeviceProtocol::kLl128}) {
    if (a.direct && p != DeviceProtocol::kSimple) continue;
    if (p == DeviceProtocol::kLl128 && !world_.wide_lines) continue;
    if (p != DeviceProtocol::kSimple && world_.all_cross) continue;  // no connection would have lines
    if (pairwise && p != DeviceProtocol::kSimple) continue;  // ranks do not know the others' message lengths
    // LL and LL128 order less than a flag after the data, enough for tested (built-in) algorithms only (docs/cuda.md).
    if (p != DeviceProtocol::kSimple && !a.direct && is_own(a)) continue;
    if (!a.direct && !wanted.empty() && wanted != protocol_name(p) &&
        !(wanted == "inline" && p != DeviceProtocol::kSimple))
      continue;
    found.push_back({&a, p, channels_for(pairwise ? 1 << 20 : chunk, kLeastShare[static_cast<size_t>(p)], lanes, r),
                     longest_message(p, world_.layout), 0});
  }
}

Expected<std::vector<DeviceCandidate>> DevicePlanner::candidates(const CallShape& request, bool staged_only) {
  RONDO_TRY_ASSIGN(const auto usable, planner_.usable(request, staged_only));
  std::vector<DeviceCandidate> found;
  // A limit below every algorithm's lanes is raised to the fewest lanes.
  uint32_t fewest = UINT32_MAX;
  for (const Algorithm* a : usable) fewest = std::min(fewest, lanes_of(*a, request.root));
  const uint32_t most = std::max(fewest, most_blocks(request.max_blocks));
  for (const Algorithm* a : usable)
    if (world_.engine == EngineKind::kStream || lanes_of(*a, request.root) <= most) add_forms(*a, request, found);
  if (found.empty() && planner_.settings().protocol.empty())
    return unsupported("no algorithm for {} fits the devices: a launch may have {} blocks",
                       collective_name(request.collective), world_.resident_blocks);
  if (found.empty())
    return unsupported("RONDO_PROTO={} has no algorithm for this {} on devices", planner_.settings().protocol,
                       collective_name(request.collective));
  sort(request, found);
  return found;
}

void DevicePlanner::limit_channels(const CallShape& request, uint32_t most, DeviceCandidate& c) const {
  c.num_channels = std::min(c.num_channels, most);
  c.forecast_ns = forecast(c, whole_bytes(request, nranks_), request.root);
}

void DevicePlanner::sort(const CallShape& request, std::vector<DeviceCandidate>& found) const {
  for (DeviceCandidate& c : found) limit_channels(request, c.num_channels, c);
  std::stable_sort(found.begin(), found.end(),
                   [](const DeviceCandidate& x, const DeviceCandidate& y) { return x.forecast_ns < y.forecast_ns; });
}

Expected<std::vector<DeviceCandidate>> DevicePlanner::fallbacks(const CallShape& request,
                                                                const DeviceCandidate& direct) {
  CallShape staged = request;
  staged.algorithm = nullptr;  // the fallback need not be the required algorithm
  RONDO_TRY_ASSIGN(auto found, candidates(staged, true));
  for (DeviceCandidate& c : found)
    c.num_channels =
        std::min(direct.num_channels, most_channels(lanes_of(*c.algorithm, request.root), request.max_blocks));
  sort(request, found);
  return found;
}

DeviceCandidate DevicePlanner::message(uint64_t bytes, bool crosses) const {
  DeviceCandidate c;
  if (world_.engine == EngineKind::kStream) {
    c.message_bytes = world_.stream_slot_bytes;
    return c;
  }
  c.protocol = bytes <= 32 * 1024 && !crosses ? DeviceProtocol::kLl : DeviceProtocol::kSimple;
  c.message_bytes = longest_message(c.protocol, world_.layout);
  // A rank may send to and receive from all ranks, itself included, at once.
  const auto directions = static_cast<uint32_t>(2 * nranks_);
  c.num_channels =
      channels_for(static_cast<double>(bytes), kLeastShare[static_cast<size_t>(c.protocol)], directions, {});
  return c;
}

std::string DevicePlanner::describe(const DeviceCandidate& c) const {
  if (world_.engine == EngineKind::kStream)
    return fmt::format("{} by streams, messages of {} B, forecast {:.1f} us", c.algorithm->name, c.message_bytes,
                       c.forecast_ns / 1000);
  if (c.algorithm->direct)
    return fmt::format("{} from buffer to buffer, {} channels, forecast {:.1f} us", c.algorithm->name, c.num_channels,
                       c.forecast_ns / 1000);
  const bool mixed = world_.proxied && c.protocol != DeviceProtocol::kSimple;
  return fmt::format("{} {}{}, {} channels, messages of {} B, forecast {:.1f} us", c.algorithm->name,
                     protocol_name(c.protocol), mixed ? " inside hosts" : "", c.num_channels, c.message_bytes,
                     c.forecast_ns / 1000);
}

}  // namespace rondo

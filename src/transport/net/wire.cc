#include "transport/net/wire.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/codec.h"
#include "transport/net/tcp_rail.h"
#ifdef RONDO_HAVE_UCX
#include "transport/net/ucx_rail.h"
#endif

namespace rondo::net {

Expected<std::vector<std::string>> parse_rails(const std::string& names) {
  std::vector<std::string> rails;
  for (size_t at = 0; at <= names.size() && !names.empty();) {
    const size_t end = std::min(names.find(',', at), names.size());
    std::string name = names.substr(at, end - at);
    at = end + 1;
    const bool again = std::find(rails.begin(), rails.end(), name) != rails.end();
    if (name.empty() || again || rails.size() == kMostRails)
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("RONDO_RAILS={}: {}; expected names of network devices, each once, with commas between "
                                "them (rondo info shows them)",
                                names,
                                name.empty() ? "a name is empty"
                                : again      ? name + " comes twice"
                                             : fmt::format("more than {} names", kMostRails)));
    rails.push_back(std::move(name));
  }
  return rails;
}

namespace {

uint64_t left_of(uint64_t limit_ns, uint64_t since_ns) {
  const uint64_t gone = monotonic_ns() - since_ns;
  return gone < limit_ns ? limit_ns - gone : 0;
}

Expected<std::unique_ptr<Rail>> make_ucx_rail([[maybe_unused]] Rank rank, [[maybe_unused]] int nranks,
                                              [[maybe_unused]] Sink& sink, [[maybe_unused]] const std::string& device) {
#ifdef RONDO_HAVE_UCX
  RONDO_TRY_ASSIGN(auto rail, UcxRail::create(rank, nranks, sink, device));
  return std::unique_ptr<Rail>(std::move(rail));
#else
  return Status(StatusCode::kUnsupported, "this build of rondo has no UCX (install libucx-dev, build again)");
#endif
}

}  // namespace

Expected<std::unique_ptr<Wire>> Wire::create(Net net, Rank rank, int nranks, Sink& sink, const Reach& reach) {
  std::unique_ptr<Wire> wire(new Wire(nranks));
  auto make = [&](const std::string& device) -> Expected<std::unique_ptr<Rail>> {
    if (net == Net::kUcx) return make_ucx_rail(rank, nranks, sink, device);
    RONDO_TRY_ASSIGN(auto rail, TcpRail::create(rank, nranks, sink, device, reach.addresses));
    return std::unique_ptr<Rail>(std::move(rail));
  };
  for (size_t i = 0; i < std::max<size_t>(1, reach.devices.size()); ++i) {
    RONDO_TRY_ASSIGN(auto rail, make(reach.devices.empty() ? std::string() : reach.devices[i]));
    wire->rails_.push_back(std::move(rail));
  }
  if (wire->rails_.size() == 1) {
    wire->event_fd_ = wire->rails_[0]->event_fd();
    return wire;
  }
  wire->event_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (wire->event_fd_ < 0) return Status(StatusCode::kSystem, fmt::format("epoll_create1: {}", strerror(errno)));
  for (const auto& rail : wire->rails_) {
    epoll_event e{};
    e.events = EPOLLIN;
    if (epoll_ctl(wire->event_fd_, EPOLL_CTL_ADD, rail->event_fd(), &e) != 0)
      return Status(StatusCode::kSystem, fmt::format("epoll_ctl: {}", strerror(errno)));
  }
  return wire;
}

Wire::~Wire() {
  if (rails_.size() > 1 && event_fd_ >= 0) ::close(event_fd_);
}

std::string Wire::address() const {
  std::vector<std::string> all;
  for (const auto& rail : rails_) all.push_back(rail->address());
  return encode(all);
}

Status Wire::set_peers(const std::vector<PeerRoute>& routes, uint64_t session) {
  std::vector<std::vector<PeerRoute>> of_rails(rails_.size());
  size_t first_ranks = 0;  // rank 0's number of rails
  for (size_t r = 0; r < routes.size(); ++r) {
    auto parts = decode<std::vector<std::string>>(routes[r].address).value_or(std::vector<std::string>());
    if (r == 0) first_ranks = parts.size();
    if (parts.size() != first_ranks)
      return Status(
          StatusCode::kMismatch,
          fmt::format("rank {} has {} rail{} and rank 0 has {}: RONDO_RAILS must name as many network devices "
                      "on all ranks",
                      r, parts.size(), parts.size() == 1 ? "" : "s", first_ranks));
    for (size_t i = 0; i < std::min(parts.size(), of_rails.size()); ++i)
      of_rails[i].push_back({std::move(parts[i]), routes[r].host, routes[r].near});
  }
  for (size_t i = 0; i < rails_.size(); ++i) rails_[i]->set_peers(std::move(of_rails[i]), session);
  return {};
}

// Each rail counts its own messages: otherwise a message that overtakes on another rail would look old.
bool Wire::seal_with(const Sealer::Key& key, Rank rank, int nranks) {
  for (size_t i = 0; i < rails_.size(); ++i) {
    auto sealer = Sealer::create(key, rank, nranks, static_cast<uint8_t>(i));
    if (sealer == nullptr) return false;
    rails_[i]->seal_with(std::move(sealer));
  }
  return true;
}

Rail& Wire::rail_to(Rank to) {
  const size_t n = rails_.size();
  if (n == 1) return *rails_[0];
  uint32_t& turn = turn_[static_cast<size_t>(to)];
  size_t best = turn % n;
  for (size_t i = 1; i < n; ++i)
    if (const size_t other = (turn + i) % n; rails_[other]->pending(to) < rails_[best]->pending(to)) best = other;
  turn = static_cast<uint32_t>((best + 1) % n);
  return *rails_[best];
}

bool Wire::progress() {
  bool any = false;
  for (const auto& rail : rails_) any |= rail->progress();
  return any;
}
uint64_t Wire::pending() const {
  uint64_t sum = 0;
  for (const auto& rail : rails_) sum += rail->pending();
  return sum;
}
bool Wire::connected(Rank to) const {
  return std::any_of(rails_.begin(), rails_.end(), [to](const auto& rail) { return rail->connected(to); });
}
bool Wire::lost(Rank r) const {
  return std::any_of(rails_.begin(), rails_.end(), [r](const auto& rail) { return rail->lost(r); });
}
bool Wire::may_zero_copy(Rank to) const {
  return std::all_of(rails_.begin(), rails_.end(), [to](const auto& rail) { return rail->may_zero_copy(to); });
}
bool Wire::recall(uint64_t quiet_ns, uint64_t limit_ns) {
  bool all = true;
  const uint64_t since = monotonic_ns();
  for (const auto& rail : rails_) all &= rail->recall(quiet_ns, left_of(limit_ns, since));
  return all;
}
std::vector<PeerLoss> Wire::losses(uint64_t before_ns) const {
  std::vector<PeerLoss> all;
  for (const auto& rail : rails_)
    for (PeerLoss& l : rail->losses(before_ns)) all.push_back(std::move(l));
  return all;
}
bool Wire::flush() {
  bool all = true;
  for (const auto& rail : rails_) all &= rail->flush();
  return all;
}
bool Wire::close(uint64_t limit_ns) {
  bool all = true;
  const uint64_t since = monotonic_ns();
  for (const auto& rail : rails_) all &= rail->close(left_of(limit_ns, since));
  return all;
}
bool Wire::arm() {
  bool all = true;
  for (const auto& rail : rails_) all &= rail->arm();
  return all;
}

}  // namespace rondo::net

#include "transport/net/rail_set.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/codec.h"
#include "base/error.h"

namespace rondo::net {

std::span<const Network* const> networks() {
#define RONDO_X(name) &name##_network,
  static constexpr const Network* kNetworks[] = {RONDO_NETWORKS(RONDO_X)};
#undef RONDO_X
  return kNetworks;
}

size_t network_index(std::string_view transport) {
  const auto rows = networks();
  const auto is_it = [&](const Network* n) { return transport.substr(transport.find('+') + 1) == n->name; };
  return static_cast<size_t>(std::find_if(rows.begin(), rows.end(), is_it) - rows.begin());
}

Expected<std::vector<std::string>> parse_rails(const std::string& names) {
  std::vector<std::string> rails;
  for (size_t at = 0; at <= names.size() && !names.empty();) {
    const size_t end = std::min(names.find(',', at), names.size());
    std::string name = names.substr(at, end - at);
    at = end + 1;
    const bool again = std::find(rails.begin(), rails.end(), name) != rails.end();
    if (name.empty() || again || rails.size() == kMostRails)
      return invalid_argument(
          "RONDO_RAILS={}: {}; expected names of network devices, each once, with commas between "
          "them (rondo info shows them)",
          names,
          name.empty() ? "a name is empty"
          : again      ? name + " comes twice"
                       : fmt::format("more than {} names", kMostRails));
    rails.push_back(std::move(name));
  }
  return rails;
}

Expected<std::unique_ptr<RailSet>> RailSet::create(const Network& network, Sink& sink,
                                                   const std::vector<std::string>& devices, RailOptions options) {
  std::unique_ptr<RailSet> set(new RailSet(options.nranks));
  for (size_t i = 0; i < std::max<size_t>(1, devices.size()); ++i) {
    if (!devices.empty()) options.device = devices[i];
    RONDO_TRY_ASSIGN(auto rail, network.make_rail(sink, options));
    set->rails_.push_back(std::move(rail));
  }
  if (set->rails_.size() == 1) return set;
  set->events_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  epoll_event e = {EPOLLIN, {}};
  const bool failed = !set->events_ || set->any([&](Rail& rail) {
    return epoll_ctl(set->events_.get(), EPOLL_CTL_ADD, rail.event_fd(), &e) != 0;
  });
  if (failed) return make_error(StatusCode::kSystem, "epoll: {}", strerror(errno));
  return set;
}

std::string RailSet::address() const {
  std::vector<std::string> all;
  for (const auto& rail : rails_) all.push_back(rail->address());
  return encode(all);
}

Status RailSet::set_peers(const std::vector<PeerRoute>& routes, uint64_t session) {
  std::vector<std::vector<PeerRoute>> of_rails(rails_.size());
  size_t first_ranks = 0;  // rank 0's number of rails
  for (size_t r = 0; r < routes.size(); ++r) {
    auto parts = decode<std::vector<std::string>>(routes[r].address).value_or(std::vector<std::string>());
    if (r == 0) first_ranks = parts.size();
    if (parts.size() != first_ranks)
      return make_error(StatusCode::kMismatch,
                        "rank {} has {} rail{} and rank 0 has {}: RONDO_RAILS must name as many network devices "
                        "on all ranks",
                        r, parts.size(), parts.size() == 1 ? "" : "s", first_ranks);
    for (size_t i = 0; i < std::min(parts.size(), of_rails.size()); ++i)
      of_rails[i].push_back({std::move(parts[i]), routes[r].host, routes[r].near});
  }
  for (size_t i = 0; i < rails_.size(); ++i) rails_[i]->set_peers(std::move(of_rails[i]), session);
  return {};
}

// Each rail counts its own messages: otherwise a message that overtakes on another rail would look old.
bool RailSet::seal_with(const Sealer::Key& key, Rank rank, int nranks) {
  for (size_t i = 0; i < rails_.size(); ++i) {
    auto sealer = Sealer::create(key, rank, nranks, static_cast<uint8_t>(i));
    if (sealer == nullptr) return false;
    rails_[i]->seal_with(std::move(sealer));
  }
  return true;
}

Rail& RailSet::rail_to(Rank to) {
  const size_t n = rails_.size();
  if (n == 1) return *rails_[0];
  uint32_t& turn = turn_[static_cast<size_t>(to)];
  size_t best = turn % n;
  for (size_t i = 1; i < n; ++i)
    if (const size_t other = (turn + i) % n; rails_[other]->pending(to) < rails_[best]->pending(to)) best = other;
  turn = static_cast<uint32_t>((best + 1) % n);
  return *rails_[best];
}

std::vector<PeerLoss> RailSet::losses(uint64_t before_ns) const {
  std::vector<PeerLoss> all;
  for (const auto& rail : rails_)
    for (PeerLoss& l : rail->losses(before_ns)) all.push_back(std::move(l));
  return all;
}

}  // namespace rondo::net

// RailSet: the messages of one rank to and from the ranks without common memory, over one or several rails.
//
//   rank 0   rail eth0 ======= rail eth0   rank 1       a message takes the rail with the fewest pending messages to
//            rail eth1 ======= rail eth1                its peer; equal rails take turns
//
// Messages of send_copy() always take the first rail. Without device names there is one rail over all devices. Rail i
// of a rank is connected to rail i of its peers, whatever its device is called there. A peer that is lost on one rail
// is lost.
//
// Thread safety: none; RemoteTransport holds one lock around all calls. The sink is called from progress(), push() and
// recall().
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "transport/net/network.h"

namespace rondo::net {

constexpr size_t kMostRails = 16;
/// Splits "eth0,eth1". Errors: kInvalidArgument (an empty or repeated name, more than kMostRails).
Expected<std::vector<std::string>> parse_rails(const std::string& names);

class RailSet {
 public:
  /// One rail over each of `devices`; none: one rail over all devices. `options`: for each rail. Errors: those of the
  /// rails.
  static Expected<std::unique_ptr<RailSet>> create(const Network& network, Sink& sink,
                                                   const std::vector<std::string>& devices, RailOptions options);

  /// The address that peers need to reach this rank.
  std::string address() const;
  /// By rank. Splits each address() among the rails. Errors: kMismatch (a peer has another number of rails), equal on
  /// all ranks.
  Status set_peers(const std::vector<PeerRoute>& routes, uint64_t session);
  /// Seals all data from now on, as Rail::seal_with. False: libcrypto cannot.
  bool seal_with(const Sealer::Key& key, Rank rank, int nranks);
  size_t num_rails() const { return rails_.size(); }

  // The following functions are Rail's, over all rails.
  void send(Rank to, const DataHeader& header, const std::byte* data, size_t bytes, ZeroCopySend* zero_copy = nullptr) {
    rail_to(to).send(to, header, data, bytes, zero_copy);
  }
  void send_copy(Rank to, const Header& header, const void* data, size_t bytes) {
    rails_[0]->send_copy(to, header, data, bytes);
  }
  bool progress() { return any(&Rail::progress); }
  void push() {
    for (const auto& rail : rails_) rail->push();
  }
  bool has_unread() const { return any(&Rail::has_unread); }
  bool is_pending() const {
    return any([](Rail& rail) { return rail.pending() != 0; });
  }
  bool connected(Rank to) const { return any(&Rail::connected, to); }
  bool lost(Rank r) const { return any(&Rail::lost, r); }
  bool may_zero_copy(Rank to) const { return all(&Rail::may_zero_copy, to); }
  bool recall(uint64_t quiet_ns, uint64_t until_ns) { return all(&Rail::recall, quiet_ns, until_ns); }
  std::vector<PeerLoss> losses(uint64_t before_ns) const;
  bool flush() { return all(&Rail::flush); }
  /// If it returns false, this object must not be destroyed.
  bool close(uint64_t until_ns) { return all(&Rail::close, until_ns); }
  int event_fd() const { return events_ ? events_.get() : rails_[0]->event_fd(); }
  bool arm() { return all(&Rail::arm); }
  uint64_t session() const { return rails_[0]->session(); }

 private:
  explicit RailSet(int nranks) : turn_(static_cast<size_t>(nranks)) {}
  Rail& rail_to(Rank to);
  // Both call the function on every rail.
  template <class F, class... Arguments>
  bool any(F f, Arguments... arguments) const {
    bool found = false;
    for (const auto& rail : rails_) found |= std::invoke(f, *rail, arguments...);
    return found;
  }
  template <class F, class... Arguments>
  bool all(F f, Arguments... arguments) const {
    return !any([&](Rail& rail) { return !std::invoke(f, rail, arguments...); });
  }

  std::vector<std::unique_ptr<Rail>> rails_;
  std::vector<uint32_t> turn_;  // by rank: the next rail
  Fd events_;                   // several rails: an epoll descriptor over theirs
};

}  // namespace rondo::net

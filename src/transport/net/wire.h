// Wire: the messages of one rank to and from the ranks without common memory, over one or several rails.
//
//   rank 0   rail eth0 ======= rail eth0   rank 1       a message takes the rail with the fewest pending messages to
//            rail eth1 ======= rail eth1                its peer; equal rails take turns
//
// Without device names there is one rail over all devices. Rail i of a rank is connected to rail i of its peers,
// whatever its device is called there. A peer that is lost on one rail is lost.
//
// Thread safety: none; RemoteTransport holds one lock around all calls. The sink is called from progress().
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "transport/net/ucx_rail.h"

namespace rondo::net {

/// Splits "eth0,eth1". Errors: kInvalidArgument (an empty or repeated name, more than kMostRails).
constexpr size_t kMostRails = 16;
Expected<std::vector<std::string>> parse_rails(const std::string& names);

/// The network between ranks without common memory.
enum class Net : uint8_t { kTcp, kUcx };

/// The endpoints of this rank.
struct Reach {
  std::vector<std::string> devices;    // one rail over each; none: one rail over all devices
  std::vector<std::string> addresses;  // numeric; a TCP rail without a device listens there
};

class Wire {
 public:
  /// Errors: those of the rails, kUnsupported (no UCX).
  static Expected<std::unique_ptr<Wire>> create(Net net, Rank rank, int nranks, Sink& sink, const Reach& reach);
  /// close() must have returned true before, if anything was sent.
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// The address that peers need to reach this rank.
  std::string address() const;
  /// By rank. Splits each address() among the rails. Errors: kMismatch (a peer has another number of rails), equal on
  /// all ranks.
  Status set_peers(const std::vector<PeerRoute>& routes, uint64_t session);
  /// Seals all data from now on, as Rail::seal_with. False: libcrypto cannot.
  bool seal_with(const Sealer::Key& key, Rank rank, int nranks);

  // The following functions are Rail's, over all rails.
  void send(Rank to, const DataHeader& header, const std::byte* data, size_t bytes, ZeroCopy* zero_copy = nullptr) {
    rail_to(to).send(to, header, data, bytes, zero_copy);
  }
  void send_copy(Rank to, const Header& header, const void* data, size_t bytes) {
    rails_[0]->send_copy(to, header, data, bytes);
  }
  bool progress();
  void push() {
    for (const auto& rail : rails_) rail->push();
  }
  bool has_unread() const {
    return std::any_of(rails_.begin(), rails_.end(), [](const auto& rail) { return rail->has_unread(); });
  }
  uint64_t pending() const;
  bool connected(Rank to) const;
  bool lost(Rank r) const;
  bool may_zero_copy(Rank to) const;
  bool recall(uint64_t quiet_ns, uint64_t limit_ns);
  std::vector<PeerLoss> losses(uint64_t before_ns) const;
  bool flush();
  bool close(uint64_t limit_ns);
  int event_fd() const { return event_fd_; }
  bool arm();
  uint64_t session() const { return rails_[0]->session(); }
  size_t num_rails() const { return rails_.size(); }

 private:
  explicit Wire(int nranks) : turn_(static_cast<size_t>(nranks)) {}
  Rail& rail_to(Rank to);
  std::vector<std::unique_ptr<Rail>> rails_;
  std::vector<uint32_t> turn_;  // by rank: the next rail
  int event_fd_ = -1;           // several rails: an epoll descriptor over theirs
};

}  // namespace rondo::net

// Wire: the messages of one rank to and from the ranks that share no memory with it, over one or several rails.
//
//   rank 0   rail eth0 ======= rail eth0   rank 1       a message takes the rail to its peer on which the fewest are
//            rail eth1 ======= rail eth1                under way, the rails by turns where these are as many
//
// Without names there is one rail, over whatever devices there are. Rail i of a rank talks to rail i of its peers,
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

/// "eth0,eth1" as names. Errors: kInvalidArgument (an empty name, one that comes twice, more than kMostRails).
constexpr size_t kMostRails = 16;
Expected<std::vector<std::string>> parse_rails(const std::string& names);

/// What carries messages between ranks that share no memory.
enum class Net : uint8_t { kTcp, kUcx };

/// By what this rank is reached.
struct Reach {
  std::vector<std::string> devices;    // one rail over each; none: one rail over whatever there is
  std::vector<std::string> addresses;  // numeric; a TCP rail without a device listens there
};

class Wire {
 public:
  /// Errors: those of the rails, kUnsupported (no UCX).
  static Expected<std::unique_ptr<Wire>> create(Net net, Rank rank, int nranks, Sink& sink, const Reach& reach);
  /// close() must have said true before, if anything was sent.
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// What the peers need to reach this rank.
  std::string address() const;
  /// By rank: what address() says there is split among the rails. Errors: kMismatch (a peer has another number of
  /// rails), the same on all ranks.
  Status set_peers(const std::vector<PeerRoute>& routes, uint64_t session);
  /// From now on all data are sealed, as Rail::seal_with. False: libcrypto cannot.
  bool seal_with(const Sealer::Key& key, Rank rank, int nranks);

  // What follows is as Rail has it, of all rails.
  void send(Rank to, const DataHeader& header, const std::byte* data, size_t bytes, Lent* lent = nullptr) {
    rail_to(to).send(to, header, data, bytes, lent);
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
  bool may_lend(Rank to) const;
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
  std::vector<uint32_t> turn_;  // by rank: the rail that is next
  int event_fd_ = -1;           // of several rails: an epoll descriptor over theirs
};

}  // namespace rondo::net

// Ranks on several hosts. Ranks of one host use shared memory (shm); all others use a network (net): UCX (InfiniBand,
// RoCE and others) or TCP sockets. Optionally ranks of one host use the network too.
//
//   rank 0 --shm-- rank 1        host A
//      \   \     /   |
//       `---net-----.|           messages of private FIFOs, remote_fifo.h
//      /   /     \   |
//   rank 2 --shm-- rank 3        host B
//
// The engine's driver also moves the messages: it calls progress() in every pass. While there is no driver, a poller
// thread listens, so that sent messages, departures and aborts still arrive.
//
// Devices post into their own memory without notice (transport/proxy.h): while they may, the poller polls continuously.
//
// Lost ranks are detected by the bootstrap's sockets or by the network, whichever is first. A departing rank waits
// until its peers have everything it sent them (5 s at most). Thread safety: as Transport.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/forks.h"
#include "base/thread.h"
#include "bootstrap/bootstrap.h"
#include "rondo/host_layout.h"
#include "transport/net/proxy_slots.h"
#include "transport/net/rail_set.h"
#include "transport/net/remote_fifo.h"
#include "transport/net/status_page_copy.h"
#include "transport/private_blocks.h"
#include "transport/proxy.h"
#include "transport/shm/shm.h"
#include "transport/transport.h"

namespace rondo::net {

constexpr uint64_t kMs = 1'000'000;  // ns

class RemoteTransport final : public Transport, private Sink, private Proxy {
 public:
  struct Options {
    const Network* network;  // between hosts
    bool alone = false;      // ranks of one host use it too
    bool may_pull = true;    // as ShmTransport::create
    bool encrypted = false;  // all data on the network
    std::string rails = {};  // this rank's network devices, comma-separated; empty: any
  };
  /// Collective over the Bootstrap's ranks; it must outlive the transport. `machines`: Bootstrap::hosts(). `hosts`: the
  /// hosts as schedules see them, which define the readers of kGroupHost. An error of one rank is returned to all of
  /// them, with its rank.
  static Expected<std::unique_ptr<RemoteTransport>> create(Bootstrap& bootstrap, const HostLayout& machines,
                                                           const HostLayout& hosts, const Options& options);
  ~RemoteTransport() override;
  std::string_view name() const override { return name_; }

  Expected<FifoView> open_writer(const ConnectionKey& key) override;
  std::optional<FifoView> open_reader(const ConnectionKey& key) override;
  uint32_t counter_index(const ConnectionKey& key, Rank reader) const override;
  ZeroCopySend* zero_copy_sends(const ConnectionKey& key) override;
  PostedReceive* posted_receive(const ConnectionKey& key) override;
  bool sends_by_address(const ConnectionKey& key) const override {
    return !key.inline_only && is_local(key) && local_->can_pull();
  }
  void let_go() override;
  StatusPage* page(Rank r) override;
  PairPage* pair_page(Rank r) override;
  Doorbell* bell(Rank r) override;
  void raise_abort(Rank by) override { raise(by, {}); }
  void tell_disagreement(uint64_t sequence, std::string_view text) override;
  std::optional<std::string> told_disagreement(uint64_t sequence) override;
  void tell_failure(const Status& cause) override;
  Status parting_failure(Rank r) override;
  std::optional<Rank> aborted_by() override;
  std::string abort_reason(Rank by) override;
  bool departed(Rank r) override;
  std::optional<PeerLoss> find_lost() override;
  // Ordinary memory, because no memory is accessible to all ranks.
  Expected<void*> alloc(uint64_t bytes) override { return blocks_.alloc(bytes); }
  Status free(void* ptr) override { return blocks_.free(ptr); }
  Status pull(Rank peer, const RemoteAddress&, uint64_t, void*, uint64_t) override;
  void keep(std::shared_ptr<void> what) override { kept_.push_back(std::move(what)); }
  uint64_t agreed_id() const override { return session_; }
  uint32_t longest_message_bytes() const override { return fifos_->longest_message_bytes(); }
  bool needs_progress() const override { return true; }
  bool progress() override;
  void rest() override;
  std::optional<PeersOnHost> local_peers() override;
  Proxy* proxy() override { return this; }

 private:
  // The functions of Proxy (transport/proxy.h).
  void send_from(const ConnectionKey& key, std::span<const FifoView> channels, std::span<const Rank> readers) override;
  void receive_into(const ConnectionKey& key, std::span<const FifoView> channels) override;
  void carry_slots(const ConnectionKey& key, std::byte* data, std::span<SlotFlags> flags, uint64_t slot_bytes) override;
  bool is_received(const ConnectionKey& key, Rank reader) override;
  void attend(bool on) override;
  void send_opened(const ConnectionKey& key);

  struct Remote {
    std::atomic<bool> departed = false;
    std::atomic<bool> heard = false;         // data have arrived from it over the network
    uint64_t will_have_sent = 0;             // sent when it departs
    std::atomic<uint64_t> left_here_ns = 0;  // when its departure was first seen in shared memory
    bool awaited = false;                    // this rank receives from it
    bool leaving = false;                    // it waits for this rank's answer
    bool has_all = false;                    // it has everything that this rank sent
    uint64_t pages_asked_ns = 0, pages_came_ns = 0;
    Status failure;  // reported when it departed
    StatusPageCopy mirror;
  };
  RemoteTransport(Bootstrap& bootstrap, const HostLayout& machines, const HostLayout& hosts, const Network& network);
  Status open(const Options& options, uint64_t* pool_bytes);
  Status meet(const Options& options);
  // The number of a rank among those of this host; -1: on another host.
  int index_here(Rank r) const { return machines_.same_host(r, rank_) ? machines_.local(r) : -1; }
  // Returns true if there are too many ranks to connect to all of them. The Bootstrap then sends announcements to all.
  bool are_many() const { return !bootstrap_.is_full(); }
  bool shares_memory(Rank r) const { return local_ != nullptr && index_here(r) >= 0; }
  std::vector<Rank> readers_of(const ConnectionKey& key) const;
  bool is_local(const ConnectionKey& key) const;
  ConnectionKey local_key(const ConnectionKey& key) const;
  void raise(Rank by, const std::string& reason);
  // Under the lock:
  void take_abort(Rank by, std::string reason);
  void take_disagreement(Bootstrap::Announcement events);
  void tell_abort();
  void hear_of_aborts();
  bool carry();
  bool move();
  bool answer_leavers();
  bool fresh(Rank r, bool may_connect);
  bool note_end(Rank r, std::string_view bytes);
  void leave();
  void keep_for_good();
  void poll_loop();
  void wake_poller();
  ReceiveTarget place(const Header& header, const HeaderLine& line, size_t bytes, PostedReceiveUse use) override;
  void arrived(const Header& header, const HeaderLine* line, const std::byte* data, size_t bytes) override;
  void fail_here(const Status& why) override;

  const Rank rank_;
  const int nranks_;
  Bootstrap& bootstrap_;
  const HostLayout machines_, hosts_;
  const Network& network_;
  std::string name_;                     // "shm+tcp"
  std::unique_ptr<ShmTransport> local_;  // nullptr: the only rank here, or network only
  Doorbell own_bell_{};
  StatusPage own_page_{};
  PairPage own_pair_page_{};

  std::mutex mutex_;  // guards the rails, the FIFOs' bookkeeping and the state below
  std::unique_ptr<RemoteFifos> fifos_;
  std::unique_ptr<ProxySlots> slots_;
  std::unordered_set<uint64_t> ready_readers_;  // packed keys of proxied connections
  std::unique_ptr<RailSet> rails_;
  std::vector<std::unique_ptr<Remote>> remotes_;  // by rank; empty for this one
  bool abort_untold_ = false;                     // raised by this rank while handling a message
  std::string reason_;                            // of the abort
  std::optional<Bootstrap::Announcement> disagreement_;  // found or received by this rank
  Status failure_;                                // of this rank's communicator
  uint32_t idle_passes_ = 0;
  std::atomic<int> aborted_by_ = -1;
  uint64_t session_ = 0;  // identifies the communicator
  const MadeHere made_here_;
  PrivateBlocks blocks_;
  std::vector<std::shared_ptr<void>> kept_;

  std::atomic<bool> driven_ = false;    // a driver calls progress()
  std::atomic<bool> attended_ = false;  // devices may post
  std::atomic<bool> listens_ = false;   // the poller waits for network events; set under the lock
  std::atomic<uint32_t> passes_ = 0;
  std::atomic<bool> stop_ = false;
  Fd wake_;  // eventfd
  Thread poller_;
};

}  // namespace rondo::net

// cuda_p2p: connections whose memory lies on devices, for ranks that are threads or processes of one host, on devices
// of their own or on the same one. It stands beside the communicator's host transport, which goes on to carry what does
// not touch data: boards, aborts, deaths.
//
// Where a connection's parts lie stands in layout.h. A reader makes the inbox of a unicast, a writer its counters, each
// at its first mention, in its own staging memory, and shows it on its board; the connection is ready when each has
// found the other's half. Peers of another process open the memory by IPC handle, peers of the same process have it
// mapped already. When the communicator is made every rank writes into every other's memory and reads it back: pairs
// for which that fails, or which the topology forbids, get their connections in pinned host memory that both reach, and
// describe_links() says so.
//
// Where ranks stand on several hosts all of this holds among those of one host. What crosses goes through pinned memory
// of each end, and the host transport's relay carries it between the two (transport/relay.h). A multicast to all ranks
// lies in pinned memory that the writer's host shares, and has a copy of its own on every rank of the others.
//
// A rank's memory goes back when no rank can touch it any more (Transport::keep).
//
// Thread safety: as Transport; the caller's device context is current in all calls but raise_abort, aborted_by,
// departed.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/process_name.h"
#include "device/driver/handles.h"
#include "device/p2p/board.h"
#include "device/p2p/layout.h"
#include "device/p2p/regions.h"
#include "rondo/schedule.h"
#include "transport/relay.h"
#include "transport/transport.h"

namespace rondo {

/// How two ranks' devices reach each other; src/topology says which it should be, the self-test whether it is.
struct DeviceLink {
  enum class Way : uint8_t { kSameDevice, kPeer, kHost, kRelay };
  Way way = Way::kHost;
  bool same_process = false;
  bool whole_lines = false;  // 128-byte line stores arrive whole: LL128
  double gigabytes_per_s = 0;
  std::string reason;
};

class CudaTransport final : public Transport {
 public:
  using Gather = SharedRegions::Gather;
  /// What a rank asks for; rank 0's count.
  struct Wishes {
    int32_t channels = 0;  // at most so many; 0: free choice
    int32_t engine = 0;    // 0 free choice, 1 interpreter, 2 stream
    int32_t direct = 1;    // 0: no call goes from buffer to buffer
  };
  struct Options {
    int ordinal = 0;       // CUDA's number of this rank's device
    int host_number = 0;   // which of the communicator's hosts this rank is on
    bool may_peer = true;  // false: everything that is not on one device goes through host memory
    Wishes wishes;
  };
  /// What a rank says of its device; the same bytes reach all ranks.
  struct DeviceOfRank {
    ProcessName process;
    cuda::Uuid uuid{};
    char pci_bus_id[20] = {};
    char name[64] = {};
    uint64_t process_mark = 0;  // random; a child of fork has its parent's
    int32_t host_number = 0;    // perhaps pretended
    int32_t ordinal = 0;
    int32_t multiprocessors = 0;
    int32_t capability = 0;  // 90: sm_90
    Wishes wishes;
    bool same_process(const DeviceOfRank& o) const {
      return process_mark == o.process_mark && process.pid == o.process.pid &&
             process.start_ticks == o.process.start_ticks && process.pid_namespace == o.process.pid_namespace;
    }
    bool same_device(const DeviceOfRank& o) const;
  };

  /// How two ranks' devices should be linked, as far as is known before the test.
  using ChooseLink = std::function<DeviceLink(const DeviceOfRank& a, const DeviceOfRank& b)>;

  /// Collective over all ranks; `host` must outlive it. An error of one rank is returned to all, with its rank.
  static Expected<std::unique_ptr<CudaTransport>> create(Rank rank, int nranks, Transport& host, const Options& options,
                                                         const Gather& gather, const ChooseLink& choose = nullptr);
  ~CudaTransport() override;

  std::string_view name() const override { return "cuda_p2p"; }
  const std::vector<DeviceOfRank>& devices() const { return devices_; }
  const DeviceLink& link(Rank peer) const { return links_[static_cast<size_t>(peer)]; }
  /// Of all pairs of ranks, not only this rank's; equal on all ranks.
  bool through_host_somewhere() const { return through_host_ || across_hosts_; }
  bool is_relayed_somewhere() const { return across_hosts_; }
  bool wide_lines_everywhere() const { return wide_lines_; }
  double slowest_gigabytes_per_s() const { return slowest_; }
  /// One line for each other rank: way, reason, expected bandwidth.
  std::string describe_links() const;
  const DeviceLayout& layout() const { return layout_; }
  cuda::Context context() const { return context_.get(); }
  cuda::Device device() const { return context_.device(); }
  /// For copies and fills while something is made: waited for at once, and no part of anybody's capture.
  cuda::Stream setup_stream() const { return setup_.get(); }
  bool all_in_one_process() const;
  /// The engine does not touch peers' buffers: may_be_direct() is false from now on. Equal on all ranks.
  void forbid_direct() { regions_->forbid(); }
  /// Peers reach whatever buffer this rank passes: a direct call needs no fallback. Equal on all ranks.
  bool reaches_everything() const { return regions_->reach() == SharedRegions::Reach::kAnything; }
  /// Memory that ranks have agreed on, and in which of it a buffer lies.
  SharedRegions& regions() { return *regions_; }
  /// alloc and free that tell the other ranks, where these have to be told: then collective.
  Expected<void*> alloc_shared(uint64_t bytes, const Gather& gather, const SharedRegions::Install& install);
  Status free_shared(void* ptr, const Gather& gather);
  /// Collective likewise: the caller's own memory. Errors: those of SharedRegions.
  Status register_memory(void* ptr, uint64_t bytes, const Gather& gather, const SharedRegions::Install& install);
  Status deregister_memory(void* ptr, const Gather& gather);

  /// All channels of a connection's end, once both halves are there; nothing while the other one is missing. Never
  /// blocks. Channel c is layout().view(form, inbox, counters, readers, c).
  struct Ends {
    std::byte* inbox = nullptr;
    std::byte* counters = nullptr;
    uint32_t readers = 1;  // counters of a channel
  };
  Expected<std::optional<Ends>> find_ends(const DeviceKey& connection);

  /// A slot of staging memory for the stream engine: `bytes` of the reader's, as both ends see it, and its flags.
  struct StreamSlots {
    std::byte* data = nullptr;   // count slots of slot_bytes
    SlotFlags* flags = nullptr;  // count of them, host address
    cuda::DevicePtr flags_on_device = 0;
    bool crosses = false;  // to or from another host: a writer says how long its messages are (SlotFlags::bytes)
  };
  /// Made by the reader at its first mention; nothing for the writer while the reader has not made it.
  Expected<std::optional<StreamSlots>> stream_slots(const ConnectionKey& key, Rank reader, uint32_t count,
                                                    uint64_t slot_bytes);
  /// Host: sets every flag that a stream may wait for, again and again until the caller's streams are done.
  void release_streams();
  /// Whether calls may be under way from now on: what crosses between hosts moves only while this is so.
  void attend(bool on) {
    if (Relay* const relay = across_hosts_ ? host_.relay() : nullptr; relay != nullptr) relay->attend(on);
  }

  /// Device memory of this rank that lives as long as any rank may touch it. Zeroed.
  Expected<std::byte*> take_memory(uint64_t bytes);

  // Transport. A program that is compiled names its connections; their memory is made when it is lowered (find_ends).
  Expected<FifoView> open_writer(const ConnectionKey&) override { return FifoView(); }
  std::optional<FifoView> open_reader(const ConnectionKey&) override { return std::nullopt; }
  uint32_t counter_index(const ConnectionKey& key, Rank reader) const override {
    return key.group == kUnicast || !is_here(key.writer) ? 0 : static_cast<uint32_t>(reader);
  }
  OperationBoard* board(Rank r) override { return host_.board(r); }
  PairBoard* pair_board(Rank r) override { return host_.pair_board(r); }
  Doorbell* bell(Rank r) override { return host_.bell(r); }
  void raise_abort(Rank by) override { host_.raise_abort(by); }
  std::optional<Rank> aborted_by() override { return host_.aborted_by(); }
  std::string abort_reason(Rank by) override { return host_.abort_reason(by); }
  bool departed(Rank r) override { return host_.departed(r); }
  void tell_failure(const Status& cause) override { host_.tell_failure(cause); }
  Status parting_failure(Rank r) override { return host_.parting_failure(r); }
  uint64_t agreed_id() const override { return host_.agreed_id(); }
  std::optional<PeerLoss> find_lost() override { return host_.find_lost(); }
  Expected<void*> alloc(uint64_t bytes) override;
  Status free(void* ptr) override;
  bool may_be_direct() const override;
  bool can_pull() const override { return false; }
  RemoteAddress describe(const void* ptr, uint64_t bytes) const override;
  std::byte* resolve(Rank peer, const RemoteAddress& address) const override;
  Status pull(Rank peer, const RemoteAddress&, uint64_t, void*, uint64_t) override;
  void keep(std::shared_ptr<void> what) override { host_.keep(std::move(what)); }
  uint64_t staging_bytes() const override { return staging_bytes_; }

 private:
  static constexpr uint64_t kSlabBytes = uint64_t{2} << 20;
  struct Place {
    uint32_t slab = 0;
    uint64_t offset = 0;
    std::byte* at = nullptr;
  };
  struct Rest {  // of the slab taken last
    uint32_t slab = 0;
    uint64_t offset = 0, bytes = 0;
    std::byte* at = nullptr;
  };
  struct Kept {  // what the peers may touch as long as any of them lives: by keep()
    cuda::PrimaryContext context;
    std::vector<cuda::DeviceMemory> device;
    std::vector<cuda::PinnedMemory> host;
  };
  CudaTransport(Rank rank, int nranks, Transport& host, const Options& options);
  Status open_device();
  Status make_board(std::string* mine);
  Status read_boards(const std::vector<std::string>& all);
  Status test_links(std::string* mine, const ChooseLink& choose);
  Status settle_links(const std::vector<std::string>& all);
  Status test_link(Rank peer);
  bool is_here(Rank r) const { return mates_.index.empty() || mates_.index[static_cast<size_t>(r)] >= 0; }
  bool crosses(const ConnectionKey& key) const {
    return key.group == kUnicast     ? !is_here(key.writer) || !is_here(key.reader)
           : key.group == kGroupHost ? mates_apart_
                                     : across_hosts_;
  }
  /// Of a rank that is here.
  std::byte* resolve_here(Rank r, const RemoteAddress& address) const;
  bool shares_with_processes() const { return shared_ != nullptr && shared_->name() != "inproc"; }
  /// Pinned memory of this rank that its mates reach. The contents are undefined.
  Expected<std::byte*> share_on_host(uint64_t bytes, RemoteAddress* address);
  Expected<std::optional<Ends>> relayed_ends(const DeviceKey& connection);
  Expected<std::optional<StreamSlots>> relayed_slots(const ConnectionKey& key, Rank reader, uint32_t count,
                                                     uint64_t slot_bytes);
  Expected<std::byte*> take_pinned(uint64_t bytes);
  DeviceBoard& board_of(Rank r) const { return *boards_[static_cast<size_t>(r)]; }
  /// Zeroed.
  Expected<Place> carve(uint64_t bytes, bool on_host);
  Expected<Rest> take_slab(uint64_t bytes, bool on_host);
  Expected<std::byte*> reach(Rank owner, uint32_t slab);
  void hold(cuda::DeviceMemory memory);
  /// Of this rank's half of a connection, on its board.
  static uint64_t half_name(const DeviceKey& connection, bool as_writer);
  Status publish(uint64_t key, const Place* inbox, const Place* counters);
  const HalfEntry* find(Rank owner, uint64_t key) const;
  bool through_host(const ConnectionKey& key) const;
  bool is_allocated(const void* ptr) const;
  SharedRegions::Reach choose_reach() const;
  Status make_half(const DeviceKey& connection, bool as_writer);

  const Rank rank_;
  const int nranks_;
  Transport& host_;
  const Options options_;
  cuda::PrimaryContext context_;
  cuda::OwnedStream setup_;
  std::shared_ptr<Kept> kept_;
  mutable std::mutex kept_mutex_;  // guards kept_->device (alloc and free beside calls) and relayed_streams_
  std::vector<DeviceOfRank> devices_;
  const Mates mates_;                 // empty: all ranks
  Transport* const shared_;           // among the mates; nullptr: there are none
  std::vector<DeviceBoard*> boards_;  // by rank, as mapped here; nullptr: on another host
  std::vector<cuda::DevicePtr> boards_on_device_;
  std::vector<cuda::RegisteredMemory> registered_;
  std::vector<DeviceLink> links_;
  std::vector<std::vector<std::byte*>> reached_;  // by rank and slab
  std::vector<cuda::DevicePtr> opened_;           // by IPC: closed in the end
  std::unique_ptr<SharedRegions> regions_;        // once the links are settled
  Rest device_rest_, host_rest_, pinned_rest_;
  struct Relayed {  // an end of a connection that crosses
    DeviceKey connection;
    Ends ends;
    bool ready = false;
  };
  struct RelayedStream {
    ConnectionKey key;  // with its reader, also of a multicast
    StreamSlots slots;
    std::span<SlotFlags> flags;
    bool ready = false;
  };
  std::vector<Relayed> relayed_;
  std::vector<RelayedStream> relayed_streams_;
  std::vector<uint64_t> made_;  // keys of this rank's halves
  uint32_t num_slabs_ = 0, num_halves_ = 0, num_slots_ = 0;
  uint64_t staging_bytes_ = 0;
  DeviceLayout layout_;
  bool across_hosts_ = false;  // some ranks share no memory
  bool mates_apart_ = false;   // nor do those of one host (RONDO_TRANSPORT=ucx)
  bool through_host_ = false, wide_lines_ = false;
  double slowest_ = 0;
};

}  // namespace rondo

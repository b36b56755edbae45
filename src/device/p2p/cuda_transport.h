// cuda_p2p: connections in device memory, for ranks that are threads or processes of one host, on the same device or
// different ones. The communicator's host transport still carries status pages, aborts and deaths.
//
// layout.h defines the parts of a connection. For a unicast, the reader makes the inbox and the writer its counters, at
// first use, in their own staging memory, and each publishes its half on its DevicePage. The connection is ready when
// each has found the other's half. Peers in another process open the memory by IPC handle. In the same process it is
// already mapped. When the communicator is made, kernels of every rank fill a part of every other rank's memory, and
// both ranks read it. If data is wrong, or the topology forbids the link, the pair uses pinned host memory.
//
// With several hosts this holds among the ranks of each host. Connections between hosts *cross*: they use pinned memory
// on each side, and the host transport's proxy copies between them (transport/proxy.h). It carries rings and lines, but
// cannot see when slots of LL or LL128 are full. A multicast to all ranks is in pinned memory of the writer's host,
// with a copy on every rank of the other hosts.
//
// A rank's memory is freed when no rank can touch it any more (Transport::keep).
//
// Thread safety: as Transport. The caller's device context is current in all calls except raise_abort, aborted_by,
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
#include "device/driver/kernel_loader.h"
#include "device/p2p/device_page.h"
#include "device/p2p/layout.h"
#include "device/p2p/regions.h"
#include "rondo/schedule.h"
#include "transport/proxy.h"
#include "transport/transport.h"

namespace rondo {

/// How two ranks' devices reach each other. src/topology proposes a way, and the self-test checks it.
struct DeviceLink {
  enum class Way : uint8_t { kSameDevice, kPeer, kHost, kProxy };
  Way way = Way::kHost;
  bool whole_lines = false;  // 128-byte line stores are atomic: LL128
  double gigabytes_per_s = 0;
  bool maps() const { return way == Way::kSameDevice || way == Way::kPeer; }
};

class CudaTransport final : public Transport {
 public:
  using Gather = SharedRegions::Gather;
  struct Options {
    int ordinal = 0;       // CUDA ordinal of this rank's device
    int host_number = 0;   // number of this rank's host in the communicator
    // Equal on all ranks:
    uint32_t most_channels = 0;  // upper limit; 0: free choice
    bool may_be_direct = true;   // false: no direct calls from buffer to buffer
  };
  /// A rank's description of its device. All ranks receive the same bytes.
  struct DeviceOfRank {
    ProcessName process;
    cuda::Uuid uuid{};
    char pci_bus_id[20] = {};
    char name[64] = {};
    uint64_t process_mark = 0;  // random; a forked child has its parent's
    uint64_t container = 0;     // its /dev/shm: processes of one container have the same
    int32_t host_number = 0;    // RONDO_HOSTS may override it
    int32_t ordinal = 0;
    int32_t multiprocessors = 0;
    int32_t capability = 0;  // 90: sm_90
    bool same_process(const DeviceOfRank& o) const {
      return process_mark == o.process_mark && process.pid == o.process.pid &&
             process.start_ticks == o.process.start_ticks && process.pid_namespace == o.process.pid_namespace;
    }
    bool same_device(const DeviceOfRank& o) const;
  };

  /// Chooses the link between two ranks' devices, before the self-test.
  using ChooseLink = std::function<DeviceLink(const DeviceOfRank& a, const DeviceOfRank& b)>;

  /// Copies by a kernel, as collectives do, for the self-test. Copy engines may take another way.
  using CopyByKernel =
      std::function<Status(cuda::Context, cuda::Stream, std::byte* to, const std::byte* from, uint64_t bytes)>;

  /// Collective over all ranks. `host` must outlive it. An error of one rank is returned on all ranks, with its rank.
  static Expected<std::unique_ptr<CudaTransport>> create(Rank rank, int nranks, Transport& host, const Options& options,
                                                         const Gather& gather, const ChooseLink& choose,
                                                         const CopyByKernel& copy);
  ~CudaTransport() override;

  std::string_view name() const override { return "cuda_p2p"; }
  const std::vector<DeviceOfRank>& devices() const { return devices_; }
  /// For all pairs of ranks, not only this rank's; equal on all ranks.
  bool through_host_somewhere() const { return through_host_ || across_hosts_; }
  bool has_proxy() const { return across_hosts_; }
  bool all_cross() const { return all_cross_; }
  /// For all pairs of ranks of one host.
  bool through_host_inside() const { return through_host_; }
  bool wide_lines_inside() const { return wide_lines_ && !through_host_; }
  double slowest_gigabytes_per_s() const { return slowest_; }
  const DeviceLayout& layout() const { return layout_; }
  cuda::Context context() const { return context_.get(); }
  cuda::Device device() const { return context_.device(); }
  /// The KernelLoader's.
  cuda::Stream setup_stream() const { return setup_; }
  /// True if peers can reach any buffer of this rank, so that a direct call needs no fallback. Equal on all ranks.
  bool reaches_everything() const { return regions_->reach() == SharedRegions::Reach::kAnything; }
  /// The memory that ranks have agreed on.
  SharedRegions& regions() { return *regions_; }
  /// alloc and free that inform the other ranks if necessary; then they are collective.
  Expected<void*> alloc_shared(uint64_t bytes, const Gather& gather, const SharedRegions::Install& install);
  Status free_shared(void* ptr, const Gather& gather);
  /// Also collective if necessary, for the caller's own memory. Errors: as SharedRegions.
  Status register_memory(void* ptr, uint64_t bytes, const Gather& gather, const SharedRegions::Install& install);
  Status deregister_memory(void* ptr, const Gather& gather);

  /// All channels of a connection's end; nullopt while the other half is missing. Never blocks. Channel c is
  /// layout().view(form, inbox, counters, readers, c).
  struct Ends {
    std::byte* inbox = nullptr;
    std::byte* counters = nullptr;
    uint32_t readers = 1;  // counters per channel
  };
  Expected<std::optional<Ends>> find_ends(const DeviceKey& connection);
  /// True if a connection of this rank is between hosts. Equal at all its ends.
  bool crosses(const ConnectionKey& key) const {
    return key.group == kUnicast     ? !is_here(key.writer) || !is_here(key.reader)
           : key.group == kGroupHost ? local_peers_apart_
                                     : across_hosts_;
  }
  /// The form that a connection of this rank has in a program whose protocol uses `form`. Equal at all its ends.
  ConnectionForm form_of(const ConnectionKey& key, ConnectionForm form) const {
    return crosses(key) && !DeviceLayout::has_lines(form) ? ConnectionForm::kRing : form;
  }

  /// Staging slots for the stream engine: the reader's memory, as both ends see it, and its flags.
  struct StreamSlots {
    std::byte* data = nullptr;            // kStreamSlots slots
    cuda::DevicePtr flags_on_device = 0;  // of their SlotFlags
    bool crosses = false;  // between hosts: the writer stores message lengths (SlotFlags::bytes)
  };
  /// The reader makes them at first use. Returns nullopt to the writer until then.
  Expected<std::optional<StreamSlots>> stream_slots(const ConnectionKey& key, Rank reader, uint64_t slot_bytes);
  /// On the host: sets every flag that a stream may wait for, repeatedly until the caller's streams are done.
  void release_streams();
  /// True: calls may run, and the proxy polls all the time. False: messages between hosts may be 0.1 s late.
  void attend(bool on) {
    if (Proxy* const proxy = across_hosts_ ? host_.proxy() : nullptr; proxy != nullptr) proxy->attend(on);
  }

  /// Zeroed device memory of this rank. It lives as long as any rank may touch it.
  Expected<std::byte*> take_memory(uint64_t bytes);

  // Transport. A compiled program names its connections. Their memory is made when it is lowered (find_ends).
  Expected<FifoView> open_writer(const ConnectionKey&) override { return FifoView(); }
  std::optional<FifoView> open_reader(const ConnectionKey&) override { return std::nullopt; }
  uint32_t counter_index(const ConnectionKey& key, Rank reader) const override {
    return key.group == kUnicast || !is_here(key.writer) ? 0 : static_cast<uint32_t>(reader);
  }
  StatusPage* page(Rank r) override { return host_.page(r); }
  PairPage* pair_page(Rank r) override { return host_.pair_page(r); }
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
  RemoteAddress describe(const void* ptr, uint64_t bytes) const override;
  std::byte* resolve(Rank peer, const RemoteAddress& address) const override;
  void keep(std::shared_ptr<void> what) override { host_.keep(std::move(what)); }
  /// Returns the bytes of staging memory that this rank has set up so far.
  uint64_t staging_bytes() const { return staging_bytes_; }

 private:
  static constexpr uint64_t kSlabBytes = uint64_t{2} << 20;
  struct SlabAddress {
    uint32_t slab = 0;
    uint64_t offset = 0;
    std::byte* at = nullptr;
  };
  struct SlabRemainder {  // unused rest of the last slab
    SlabAddress next;
    uint64_t bytes = 0;
    SlabAddress take(uint64_t n) {
      const SlabAddress taken = next;
      next.offset += n;
      next.at += n;
      bytes -= n;
      return taken;
    }
  };
  struct Kept {  // memory that peers may touch as long as any of them lives, by keep()
    cuda::PrimaryContext context;
    std::vector<cuda::DeviceMemory> device;
    std::vector<cuda::PinnedMemory> host;
  };
  CudaTransport(Rank rank, int nranks, Transport& host, const Options& options);
  Status open_device();
  struct Hello;   // a rank's first message
  struct Tested;  // its last
  Expected<Hello> make_page();
  Status read_pages(const std::vector<Hello>& hellos);
  void choose_links(const ChooseLink& choose);
  struct TestPart {
    uint64_t offset, bytes;
  };
  TestPart test_part(int place) const;  // place: of a local peer; -1: one more part
  int place_of(Rank r) const { return local_peers_.index.empty() ? r : local_peers_.index[r]; }
  bool is_tested(Rank peer) const { return peer != rank_ && links_[peer].maps(); }
  Status write_pattern(Rank peer, const CopyByKernel& copy);
  Status check_patterns(Rank peer, const CopyByKernel& copy);
  Tested test_links(const CopyByKernel& copy);
  Status settle_links(const std::vector<Tested>& all);
  Status share_host_memory(const Gather& gather);
  bool is_here(Rank r) const { return place_of(r) >= 0; }
  /// For a rank on this host.
  std::byte* resolve_here(Rank r, const RemoteAddress& address) const;
  bool shares_with_processes() const { return shared_ != nullptr && shared_->name() != "inproc"; }
  /// Pinned memory of this rank that its local peers can access. The contents are undefined.
  Expected<std::byte*> share_on_host(uint64_t bytes, RemoteAddress* address);
  Expected<std::optional<Ends>> proxy_ends(const DeviceKey& connection);
  Expected<std::optional<StreamSlots>> proxy_slots(const ConnectionKey& key, Rank reader, uint64_t slot_bytes);
  Expected<std::byte*> take_pinned(uint64_t bytes);
  DevicePage& page_of(Rank r) const { return *pages_[static_cast<size_t>(r)]; }
  /// Returns zeroed memory.
  Expected<SlabAddress> carve(uint64_t bytes, bool on_host);
  Expected<SlabRemainder> take_slab(uint64_t bytes);
  Expected<std::byte*> reach(Rank owner, uint32_t slab, uint64_t offset = 0);
  void hold(cuda::DeviceMemory memory);
  /// Key of this rank's half of a connection on its DevicePage.
  static uint64_t half_name(const DeviceKey& connection, bool as_writer);
  Status publish(uint64_t key, const SlabAddress* inbox, const SlabAddress* counters);
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
  std::shared_ptr<KernelLoader> loader_;
  cuda::Stream setup_ = nullptr;
  std::shared_ptr<Kept> kept_;
  mutable std::mutex kept_mutex_;  // guards kept_->device (alloc, free) and proxy_streams_
  std::vector<DeviceOfRank> devices_;
  const PeersOnHost local_peers_;     // empty: all ranks are local peers
  Transport* const shared_;           // among local peers; nullptr: none
  std::vector<DevicePage*> pages_;    // by rank, as mapped here; nullptr: on another host
  std::vector<cuda::DevicePtr> pages_on_device_;
  std::vector<cuda::RegisteredMemory> registered_;
  std::vector<DeviceLink> links_;
  std::vector<std::vector<std::byte*>> reached_;  // by rank and slab
  std::vector<cuda::DevicePtr> opened_;           // by IPC; closed at the end
  std::unique_ptr<SharedRegions> regions_;        // made after the links are known
  SlabRemainder device_rest_, host_rest_, pinned_rest_;
  struct Proxied {  // an end of a connection between hosts
    DeviceKey connection;
    Ends ends;
    bool ready = false;
  };
  struct ProxyStream {
    ConnectionKey key;  // with its reader, also for a multicast
    StreamSlots slots;
    std::span<SlotFlags> flags;
    bool ready = false;
  };
  std::vector<Proxied> proxied_;
  std::vector<ProxyStream> proxy_streams_;
  uint32_t num_slabs_ = 0, num_halves_ = 0, num_slots_ = 0;
  uint64_t staging_bytes_ = 0;
  DeviceLayout layout_;
  bool across_hosts_ = false;  // some ranks share no memory
  bool all_cross_ = false;     // no two ranks share memory
  bool local_peers_apart_ = false;  // ranks of one host share none either (RONDO_TRANSPORT without "shm+")
  bool through_host_ = false, wide_lines_ = false;
  double slowest_ = 0;
};

}  // namespace rondo

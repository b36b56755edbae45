#include "transport/net/remote.h"

#include <fmt/format.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/outcome.h"
#include "bootstrap/auth.h"
#include "rondo/schedule.h"

namespace rondo::net {
namespace {

constexpr uint64_t kAskPagesNs = 50 * kMs;     // interval of requests for a peer's status pages
constexpr uint64_t kPagesHoldNs = 1000 * kMs;  // their validity
constexpr uint64_t kCloseNs = 1000 * kMs;
constexpr uint32_t kLongAloneBytes = 2048 * 1024, kLongBesideZeroCopyBytes = 1024 * 1024,
                   kLongOverRailsBytes = 512 * 1024;
// When an operation fails: time for its zero-copy sends to finish, since their last progress and in total.
constexpr uint64_t kRecallQuietNs = 100 * kMs, kRecallNs = 1000 * kMs;

// Each rank's first message.
struct Hello {
  uint32_t shares_memory = 0;  // number of ranks that share this host's memory; 0: none
  uint64_t pool_bytes = 0;
  uint64_t session = 0;  // rank 0's is used
  Sealer::Key key = {};  // the same; seals data if encryption is on
  std::string address;
};
template <class C>
void fields(C& c, Hello& h) {
  c(h.shares_memory, h.pool_bytes, h.session, h.key, h.address);
}

// Returns the longest message: more than 128 KiB only for networks with long_messages, if the pool can hold the rings
// to and from all peers eight times. Ranks that share memory forward messages there. Without zero-copy sends these go
// through rings, which should stay in a core's cache. With several rails, the other rails are idle while the last
// message travels. Therefore it should not be long.
uint32_t longest_message(const Network& network, size_t num_rails, const std::vector<Hello>& ranks,
                         bool all_zero_copy) {
  const uint64_t wanted = 8 * 2 * ranks.size() * (kRingMessages + 1) * kLongAloneBytes;
  const bool fits = std::all_of(ranks.begin(), ranks.end(), [&](const Hello& h) {
    return h.pool_bytes >= wanted * std::max(h.shares_memory, 1u);  // ranks of one process share its pool
  });
  const bool share = std::any_of(ranks.begin(), ranks.end(), [](const Hello& h) { return h.shares_memory != 0; });
  if (!network.long_messages || !fits || (share && !all_zero_copy)) return SegmentLayout::kMostMessageBytes;
  return num_rails > 1 ? kLongOverRailsBytes : share ? kLongBesideZeroCopyBytes : kLongAloneBytes;
}

}  // namespace

Expected<std::unique_ptr<RemoteTransport>> RemoteTransport::create(Bootstrap& bootstrap, const HostLayout& machines,
                                                                   const HostLayout& hosts, const Options& options) {
  std::unique_ptr<RemoteTransport> t(new RemoteTransport(bootstrap, machines, hosts, *options.network));
  RONDO_TRY(t->meet(options));
  return t;
}

RemoteTransport::RemoteTransport(Bootstrap& bootstrap, const HostLayout& machines, const HostLayout& hosts,
                                 const Network& network)
    : rank_(bootstrap.rank()),
      nranks_(hosts.nranks()),
      bootstrap_(bootstrap),
      machines_(machines),
      hosts_(hosts),
      network_(network),
      blocks_(rank_) {}

std::vector<Rank> RemoteTransport::readers_of(const ConnectionKey& key) const {
  std::vector<Rank> readers;
  for (Rank r = 0; r < nranks_; ++r)
    if (key.group == kUnicast ? r == key.reader
                              : r != key.writer && (key.group != kGroupHost || hosts_.same_host(r, key.writer)))
      readers.push_back(r);
  return readers;
}

// True if the writer and all its readers share memory. All of them get the same answer.
bool RemoteTransport::is_local(const ConnectionKey& key) const {
  if (!shares_memory(key.writer)) return false;
  if (key.group == kUnicast) return shares_memory(key.reader);
  const std::vector<Rank> readers = readers_of(key);
  return std::all_of(readers.begin(), readers.end(), [this](Rank r) { return shares_memory(r); });
}

ConnectionKey RemoteTransport::local_key(const ConnectionKey& key) const {
  ConnectionKey k = key;
  k.writer = index_here(key.writer);
  if (key.group == kUnicast) k.reader = index_here(key.reader);
  return k;
}

uint32_t RemoteTransport::counter_index(const ConnectionKey& key, Rank reader) const {
  if (key.group == kUnicast) return 0;
  if (is_local(key)) return local_->counter_index(local_key(key), index_here(reader));
  return key.writer == rank_ ? static_cast<uint32_t>(reader) : 0;
}

Status RemoteTransport::open(const Options& options, uint64_t* pool_bytes) {
  RONDO_TRY_ASSIGN(auto pool, StagingPool::acquire());
  *pool_bytes = pool->usage().size_bytes;
  fifos_ = std::make_unique<RemoteFifos>(rank_, nranks_, std::move(pool));
  slots_ = std::make_unique<ProxySlots>(rank_, *fifos_);
  RONDO_TRY_ASSIGN(const std::vector<std::string> devices, parse_rails(options.rails));
  RONDO_TRY_ASSIGN(rails_, RailSet::create(network_, *this, devices, {rank_, nranks_, {}, bootstrap_.own_addresses()}));
  wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return make_error(StatusCode::kSystem, "eventfd: {}", strerror(errno));
  return {};
}

// Two exchanges: addresses, and readiness. A rank with an error takes part too, and all ranks get the error at once.
Status RemoteTransport::meet(const Options& options) {
  auto gather = [this](std::string_view said, std::vector<std::string>* all) {
    return bootstrap_.all_gather(said.data(), said.size(), all);
  };
  Hello mine;
  const int num_here = machines_.num_ranks(machines_.host(rank_));
  const bool shares = !options.alone && num_here > 1;
  mine.shares_memory = shares ? static_cast<uint32_t>(num_here) : 0;
  Status opened = open(options, &mine.pool_bytes);
  if (rank_ == 0 && opened.ok()) opened = random_bytes(&mine.session, sizeof mine.session);
  if (rank_ == 0 && opened.ok()) opened = random_bytes(mine.key.data(), mine.key.size());
  if (opened.ok()) mine.address = rails_->address();
  RONDO_TRY_ASSIGN(const std::vector<Hello> ranks,
                   exchange_outcomes(opened.ok() ? Expected<Hello>(mine) : opened, gather));
  const Hello& first = ranks[0];
  std::vector<PeerRoute> routes;
  for (Rank r = 0; r < nranks_; ++r)
    routes.push_back({ranks[static_cast<size_t>(r)].address, r != rank_ ? bootstrap_.address_of(r) : std::string(),
                      index_here(r) >= 0});
  RONDO_TRY(rails_->set_peers(routes, first.session));
  Status ready;
  if (options.encrypted && !rails_->seal_with(first.key, rank_, nranks_))
    ready = Status(StatusCode::kSystem, "libcrypto cannot set up AES-128-GCM");
  if (shares) {
    auto shm = ShmTransport::create(bootstrap_, machines_, options.may_pull, kLongBesideZeroCopyBytes);
    if (shm.ok()) local_ = std::move(*shm);
    else ready = make_error(shm.status().code(), "on its host: {}", shm.status().message());
  }
  // Zero-copy by address is known to work only after the host's ranks have met.
  const bool sends_zero_copy = local_ == nullptr || local_->can_pull();
  RONDO_TRY_ASSIGN(const std::vector<bool> zero_copy,
                   exchange_outcomes(ready.ok() ? Expected<bool>(sends_zero_copy) : ready, gather));
  const bool all_zero_copy = std::find(zero_copy.begin(), zero_copy.end(), false) == zero_copy.end();
  const uint32_t longest = longest_message(network_, rails_->num_rails(), ranks, all_zero_copy);
  fifos_->set_longest_message(longest);
  if (local_ != nullptr) local_->set_longest_message(longest);
  session_ = first.session | 1;
  name_ = fmt::format("{}{}", local_ != nullptr ? "shm+" : "", network_.name);
  remotes_.resize(static_cast<size_t>(nranks_));
  for (Rank r = 0; r < nranks_; ++r)
    if (r != rank_) remotes_[static_cast<size_t>(r)] = std::make_unique<Remote>();
  return poller_.start(fmt::format("rank {}: the thread of its network connections", rank_), [this] { poll_loop(); });
}

RemoteTransport::~RemoteTransport() {
  if (!made_here_) {  // a forked child: the parent's connections, and no poller thread
    if (poller_.joinable()) poller_.detach();
    keep_for_good();
    return;
  }
  if (poller_.joinable()) {
    leave();
    stop_ = true;
    wake_poller();
    poller_.join();
  }
  if (rails_ != nullptr && !rails_->close(monotonic_ns() + kCloseNs)) keep_for_good();
  rails_.reset();
  fifos_.reset();
}

// The rails refer to the FIFOs' memory and to memory that devices send from.
void RemoteTransport::keep_for_good() {
  (void)rails_.release();
  (void)fifos_.release();
  (void)slots_.release();
  (void)new std::vector<std::shared_ptr<void>>(std::move(kept_));
}

Expected<FifoView> RemoteTransport::open_writer(const ConnectionKey& key) {
  if (is_local(key)) {
    auto made = local_->open_writer(local_key(key));
    if (!made.ok()) raise(rank_, std::string(made.status().message()));
    return made;
  }
  auto made = [&] {
    std::vector<Rank> readers = readers_of(key);
    std::erase(readers, rank_);  // messages to itself stay here
    const std::lock_guard lock(mutex_);
    return fifos_->open_writer(key, readers);
  }();
  if (made.ok()) return made;
  const Status why(made.status().code(),
                   fmt::format("rank {} cannot make a connection to {}: {}", rank_,
                               key.group == kUnicast ? fmt::format("rank {}", key.reader) : "the other ranks",
                               made.status().message()));
  raise(rank_, std::string(why.message()));
  return why;
}

std::optional<FifoView> RemoteTransport::open_reader(const ConnectionKey& key) {
  if (is_local(key)) return local_->open_reader(local_key(key));
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    const auto made = fifos_->open_reader(key);
    if (key.writer != rank_) remotes_[static_cast<size_t>(key.writer)]->awaited = true;
    if (made.ok()) return *made;
    why = fmt::format("rank {} cannot make a connection from rank {}: {}", rank_, key.writer, made.status().message());
  }
  raise(rank_, why);
  return std::nullopt;
}

ZeroCopySend* RemoteTransport::zero_copy_sends(const ConnectionKey& key) {
  std::vector<Rank> readers = readers_of(key);
  std::erase(readers, rank_);
  const bool may = std::all_of(readers.begin(), readers.end(), [this](Rank r) { return rails_->may_zero_copy(r); });
  if (is_local(key) || readers.empty() || !may) return nullptr;
  const std::lock_guard lock(mutex_);
  return fifos_->zero_copy_sends(key);
}

PostedReceive* RemoteTransport::posted_receive(const ConnectionKey& key) {
  if (is_local(key) || key.writer == rank_) return nullptr;
  const std::lock_guard lock(mutex_);
  return fifos_->posted_receive(key);
}

void RemoteTransport::let_go() {
  const std::lock_guard lock(mutex_);
  fifos_->carry(*rails_);  // other operations may still succeed
  fifos_->let_go();
  if (!rails_->recall(kRecallQuietNs, monotonic_ns() + kRecallNs))
    std::fprintf(stderr, "rondo: rank %d: the network may still read buffers of a call that has failed\n", rank_);
}

Doorbell* RemoteTransport::bell(Rank r) {
  if (shares_memory(r)) return local_->bell(index_here(r));
  return r == rank_ ? &own_bell_ : nullptr;
}

// Requests a peer's status pages when they are read, which happens only in long waits. This includes ranks without a
// connection so far, because all ranks must name a rank that made another call; connecting does not block. With many
// ranks, page() asks only connected or awaited ranks: otherwise one late rank would make all ranks connect to all.
// pair_page() may connect.
bool RemoteTransport::fresh(Rank r, bool may_connect) {
  const std::lock_guard lock(mutex_);
  Remote& remote = *remotes_[static_cast<size_t>(r)];
  const uint64_t now = monotonic_ns();
  if (!may_connect && are_many() && !remote.awaited && !rails_->connected(r)) {
    if (!remote.mirror.ended()) return false;
  } else if (!remote.mirror.ended() && now - remote.pages_asked_ns > kAskPagesNs) {
    remote.pages_asked_ns = now;
    rails_->send_copy(r, {.kind = MessageKind::kPagesAsked}, nullptr, 0);
    rails_->progress();
  }
  return remote.mirror.ended() || (remote.pages_came_ns != 0 && now - remote.pages_came_ns < kPagesHoldNs);
}

std::optional<PeersOnHost> RemoteTransport::local_peers() {
  PeersOnHost m{local_.get(), {}};
  for (Rank r = 0; r < nranks_; ++r) m.index.push_back(local_ != nullptr ? index_here(r) : r == rank_ ? 0 : -1);
  return m;
}

void RemoteTransport::send_from(const ConnectionKey& key, std::span<const FifoView> channels,
                                std::span<const Rank> readers) {
  const std::lock_guard lock(mutex_);
  fifos_->adopt_writer(key, channels, readers);
}

void RemoteTransport::receive_into(const ConnectionKey& key, std::span<const FifoView> channels) {
  const std::lock_guard lock(mutex_);
  fifos_->adopt_reader(key, channels);
  send_opened(key);
}

void RemoteTransport::carry_slots(const ConnectionKey& key, std::byte* data, std::span<SlotFlags> flags,
                                  uint64_t slot_bytes) {
  const std::lock_guard lock(mutex_);
  slots_->add(key, data, flags, slot_bytes);
  if (key.writer != rank_) send_opened(key);
}

void RemoteTransport::send_opened(const ConnectionKey& key) {
  rails_->send_copy(key.writer, header_of(MessageKind::kOpened, key, 0), nullptr, 0);
  rails_->progress();
}

bool RemoteTransport::is_received(const ConnectionKey& key, Rank reader) {
  const std::lock_guard lock(mutex_);
  if (ready_readers_.contains(pack(key, reader))) return true;
  move();
  return ready_readers_.contains(pack(key, reader));
}

void RemoteTransport::attend(bool on) {
  attended_.store(on, std::memory_order_release);
  if (on) wake_poller();
}

StatusPage* RemoteTransport::page(Rank r) {
  if (shares_memory(r)) return local_->page(index_here(r));
  if (r == rank_) return &own_page_;
  return fresh(r, false) ? &remotes_[static_cast<size_t>(r)]->mirror.page() : nullptr;
}

PairPage* RemoteTransport::pair_page(Rank r) {
  if (shares_memory(r)) return local_->pair_page(index_here(r));
  if (r == rank_) return &own_pair_page_;
  return fresh(r, true) ? &remotes_[static_cast<size_t>(r)]->mirror.pairs() : nullptr;
}

Status RemoteTransport::pull(Rank peer, const RemoteAddress& address, uint64_t offset_bytes, void* to, uint64_t bytes) {
  if (shares_memory(peer)) {
    const Status read = local_->pull(index_here(peer), address, offset_bytes, to, bytes);
    return read.ok() ? read : make_error(read.code(), "rank {}: on its host: {}", rank_, read.message());
  }
  return Transport::pull(peer, address, offset_bytes, to, bytes);
}

}  // namespace rondo::net

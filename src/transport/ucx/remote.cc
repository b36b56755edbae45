#include "transport/ucx/remote.h"

#ifdef RONDO_HAVE_UCX

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rondo/schedule.h"
#include "transport/round_up.h"

namespace rondo::ucx {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kLeaveNs = 5000 * kMs;       // until the peers have what a leaving rank has sent them
constexpr uint64_t kLastWordsNs = 200 * kMs;    // until an abort is out
constexpr uint64_t kAskBoardsNs = 50 * kMs;     // a peer's boards are asked for again after that
constexpr uint64_t kBoardsHoldNs = 1000 * kMs;  // and are believed so long
constexpr uint32_t kIdlePasses = 4;             // then the peers are told of every message that was read
constexpr int kGiveWayMs = 2;                   // the poller looks that often whether somebody drives

// A board as it stands here at a moment, word by word, for the wire; and back.
template <class T>
void copy_words(const T& from, void* to) {
  static_assert(sizeof(T) % 8 == 0);
  for (size_t i = 0; i < sizeof(T) / 8; ++i) {
    const uint64_t w = std::atomic_ref(const_cast<uint64_t&>(reinterpret_cast<const uint64_t*>(&from)[i]))
                           .load(std::memory_order_acquire);
    std::memcpy(static_cast<std::byte*>(to) + 8 * i, &w, 8);
  }
}
template <class T>
void store_words(const std::byte* from, T* to) {
  for (size_t i = 0; i < sizeof(T) / 8; ++i) {
    uint64_t w;
    std::memcpy(&w, from + 8 * i, 8);
    std::atomic_ref(reinterpret_cast<uint64_t*>(to)[i]).store(w, std::memory_order_release);
  }
}

// What a rank that leaves says of itself: whoever is still in an operation has to know whether it has finished that.
struct PartingNote {
  uint64_t posted = 0, finished = 0;
};

// What each rank says before its address: whether it can take part.
struct Hello {
  int32_t error = 0;
  uint32_t pad = 0;
  uint64_t session = 0;  // rank 0's counts
};

std::string hello_of(const Status& s, uint64_t session, const std::string& rest) {
  const Hello h{static_cast<int32_t>(s.code()), 0, session};
  return std::string(reinterpret_cast<const char*>(&h), sizeof h) + (s.ok() ? rest : std::string(s.message()));
}

Status error_in(Rank r, const std::string& blob, Hello* h) {
  if (blob.size() < sizeof *h)
    return Status(StatusCode::kMismatch, fmt::format("rank {} runs another version of rondo", r));
  std::memcpy(h, blob.data(), sizeof *h);
  if (h->error == 0) return {};
  return Status(static_cast<StatusCode>(h->error), fmt::format("rank {}: {}", r, blob.substr(sizeof *h)));
}

}  // namespace

Expected<std::unique_ptr<RemoteTransport>> RemoteTransport::create(Rank rank, const HostLayout& hosts, bool ucx_alone,
                                                                   RemotePeers& peers) {
  std::unique_ptr<RemoteTransport> t(new RemoteTransport(rank, hosts, peers));
  RONDO_TRY(t->meet(ucx_alone));
  return t;
}

RemoteTransport::RemoteTransport(Rank rank, const HostLayout& hosts, RemotePeers& peers)
    : rank_(rank), nranks_(hosts.nranks()), hosts_(hosts), peers_(peers), here_(static_cast<size_t>(nranks_), -1) {
  const std::vector<Rank>& here = peers.ranks_here();
  for (size_t i = 0; i < here.size(); ++i) here_[static_cast<size_t>(here[i])] = static_cast<int>(i);
}

std::vector<Rank> RemoteTransport::readers_of(const ConnectionKey& key) const {
  std::vector<Rank> readers;
  for (Rank r = 0; r < nranks_; ++r)
    if (key.group == kUnicast ? r == key.reader
                              : r != key.writer && (key.group != kGroupHost || hosts_.same_host(r, key.writer)))
      readers.push_back(r);
  return readers;
}

// The writer and all its readers share memory: they all find the same.
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

// Two exchanges: addresses, and who is ready. A rank that cannot go on takes part, so that all hear of it at once.
Status RemoteTransport::meet(bool ucx_alone) {
  const Status opened = [&]() -> Status {
    RONDO_TRY_ASSIGN(auto pool, StagingPool::acquire());
    fifos_ = std::make_unique<RemoteFifos>(rank_, nranks_, std::move(pool));
    RONDO_TRY_ASSIGN(wire_, Wire::create(rank_, nranks_, *this));
    wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd_ < 0) return Status(StatusCode::kSystem, fmt::format("eventfd: {}", strerror(errno)));
    return {};
  }();
  uint64_t session = 0;
  if (getrandom(&session, sizeof session, 0) != sizeof session) session = monotonic_ns();
  const std::string mine = hello_of(opened, session, opened.ok() ? wire_->address() : std::string());
  std::vector<std::string> blobs;
  RONDO_TRY(peers_.all_gather(mine.data(), mine.size(), &blobs));
  for (size_t r = 0; r < blobs.size(); ++r) {
    Hello h;
    RONDO_TRY(error_in(static_cast<Rank>(r), blobs[r], &h));
    if (r == 0) session = h.session;
    blobs[r].erase(0, sizeof h);
  }
  wire_->set_peers(std::move(blobs), session);

  Status local;
  if (const auto& here = peers_.ranks_here(); !ucx_alone && here.size() > 1) {
    auto shm = ShmTransport::create(index_here(rank_), static_cast<int>(here.size()), peers_.peers_here());
    if (shm.ok()) local_ = std::move(*shm);
    else local = Status(shm.status().code(), fmt::format("on its host: {}", shm.status().message()));
  }
  const std::string verdict = hello_of(local, 0, {});
  RONDO_TRY(peers_.all_gather(verdict.data(), verdict.size(), &blobs));
  for (size_t r = 0; r < blobs.size(); ++r) {
    Hello h;
    RONDO_TRY(error_in(static_cast<Rank>(r), blobs[r], &h));
  }
  remotes_.resize(static_cast<size_t>(nranks_));
  for (Rank r = 0; r < nranks_; ++r)
    if (r != rank_ && !shares_memory(r)) remotes_[static_cast<size_t>(r)] = std::make_unique<Remote>();
  poller_ = std::thread([this] { poll_loop(); });
  return {};
}

RemoteTransport::~RemoteTransport() {
  if (poller_.joinable()) {
    leave();
    stop_ = true;
    wake_poller();
    poller_.join();
  }
  wire_.reset();  // before the memory that its messages point to
  fifos_.reset();
  if (wake_fd_ >= 0) close(wake_fd_);
  for (const auto& [at, bytes] : allocated_) munmap(at, bytes);
}

Expected<FifoView> RemoteTransport::open_writer(const ConnectionKey& key) {
  if (is_local(key)) {
    auto made = local_->open_writer(local_key(key));
    if (!made.ok()) raise(rank_, std::string(made.status().message()));
    return made;
  }
  auto made = [&] {
    std::vector<Rank> readers = readers_of(key);
    std::erase(readers, rank_);  // what a rank sends to itself stays here
    const std::lock_guard lock(mutex_);
    auto opened = fifos_->open_writer(key, readers);
    bytes_ = fifos_->bytes();
    return opened;
  }();
  if (made.ok()) return made;
  const Status why(
      made.status().code(),
      fmt::format("rank {} cannot make a connection to {}: {}", rank_,
                  key.group == kUnicast ? fmt::format("rank {}", key.reader) : "the other ranks", made.status().message()));
  raise(rank_, std::string(why.message()));
  return why;
}

std::optional<FifoView> RemoteTransport::open_reader(const ConnectionKey& key) {
  if (is_local(key)) return local_->open_reader(local_key(key));
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    const auto made = fifos_->open_reader(key);
    bytes_ = fifos_->bytes();
    if (made.ok()) return *made;
    why = fmt::format("rank {} cannot make a connection from rank {}: {}", rank_, key.writer, made.status().message());
  }
  raise(rank_, why);
  return std::nullopt;
}

Doorbell* RemoteTransport::bell(Rank r) {
  if (shares_memory(r)) return local_->bell(index_here(r));
  return r == rank_ ? &own_bell_ : nullptr;
}

// A peer's boards are asked for when somebody looks at them, which is in long waits only.
bool RemoteTransport::fresh(Rank r) {
  Remote& remote = *remotes_[static_cast<size_t>(r)];
  const uint64_t now = monotonic_ns();
  if (!remote.noted && now - remote.boards_asked_ns > kAskBoardsNs) {
    remote.boards_asked_ns = now;
    const std::lock_guard lock(mutex_);
    Header h;
    h.kind = Kind::kBoardsAsked;
    wire_->send_copy(r, h, nullptr, 0);
  }
  const uint64_t came = remote.boards_came_ns.load(std::memory_order_acquire);
  return remote.noted || (came != 0 && now - came < kBoardsHoldNs);
}

OperationBoard* RemoteTransport::board(Rank r) {
  if (shares_memory(r)) return local_->board(index_here(r));
  if (r == rank_) return &own_board_;
  return fresh(r) ? &remotes_[static_cast<size_t>(r)]->board : nullptr;
}

PairBoard* RemoteTransport::pair_board(Rank r) {
  if (shares_memory(r)) return local_->pair_board(index_here(r));
  if (r == rank_) return &own_pair_board_;
  return fresh(r) ? &remotes_[static_cast<size_t>(r)]->pair_board : nullptr;
}

// The first abort that a rank hears of is the one that counts for it.
void RemoteTransport::raise(Rank by, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    int nobody = -1;
    if (aborted_by_.compare_exchange_strong(nobody, by)) reason_ = reason;
    if (by == rank_) {
      Header h;
      h.kind = Kind::kAbort;
      for (Rank r = 0; r < nranks_; ++r)
        if (const Remote* to = remotes_[static_cast<size_t>(r)].get();
            r != rank_ && !wire_->lost(r) && !(to != nullptr && to->departed))
          wire_->send_copy(r, h, reason.data(), reason.size());
    }
    wire_->progress();
  }
  ring(*bell(rank_));
  wake_poller();
}

std::optional<Rank> RemoteTransport::aborted_by() {
  const int by = aborted_by_.load(std::memory_order_acquire);
  return by >= 0 ? std::optional<Rank>(by) : std::nullopt;
}

std::string RemoteTransport::abort_reason(Rank by) {
  const std::lock_guard lock(mutex_);
  return by == aborted_by_ ? reason_ : std::string();
}

bool RemoteTransport::departed(Rank r) {
  if (shares_memory(r)) return local_->departed(index_here(r));
  const Remote* remote = remotes_[static_cast<size_t>(r)].get();
  return remote != nullptr && (remote->departed.load(std::memory_order_acquire) || has_left(r));
}

// Of a rank that this one never spoke to: it has said goodbye through the bootstrap.
bool RemoteTransport::has_left(Rank r) {
  const auto note = peers_.parting_note(r);
  if (!note) return false;
  note_end(r, reinterpret_cast<const std::byte*>(note->data()), note->size());
  return true;
}

void RemoteTransport::note_end(Rank r, const std::byte* note, size_t bytes) {
  Remote& remote = *remotes_[static_cast<size_t>(r)];
  PartingNote n;
  if (bytes != sizeof n || remote.noted) return;
  std::memcpy(&n, note, sizeof n);
  std::atomic_ref(remote.board.posted).store(n.posted, std::memory_order_release);
  std::atomic_ref(remote.board.finished).store(n.finished, std::memory_order_release);
  remote.noted = true;
}

std::optional<PeerLoss> RemoteTransport::find_lost() {
  if (auto lost = peers_.find_lost()) return lost;
  const std::lock_guard lock(mutex_);
  const auto lost = wire_->loss();
  if (!lost || departed(lost->rank)) return std::nullopt;
  return PeerLoss{lost->rank, fmt::format("rank {} was lost: {}", lost->rank, lost->how)};
}

// No memory is reachable by all ranks, so this is memory like any other.
Expected<void*> RemoteTransport::alloc(uint64_t bytes) {
  const uint64_t whole = round_up(std::max<uint64_t>(bytes, 1), 4096);
  void* at = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return Status(StatusCode::kSystem,
                  fmt::format("rank {}: mapping of {} MiB failed: {}", rank_, whole >> 20, strerror(errno)));
  allocated_.emplace_back(at, whole);
  return at;
}

Status RemoteTransport::free(void* ptr) {
  const auto found = std::find_if(allocated_.begin(), allocated_.end(), [&](const auto& a) { return a.first == ptr; });
  if (found == allocated_.end())
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("rank {}: ptr was not made by alloc of this communicator", rank_));
  munmap(found->first, found->second);
  allocated_.erase(found);
  return {};
}

Status RemoteTransport::pull(Rank peer, const RemoteAddress&, uint64_t, void*, uint64_t) {
  return Status(StatusCode::kInternal, fmt::format("rank {}: rank {}'s memory cannot be read from here", rank_, peer));
}

bool RemoteTransport::move() {
  bool moved = fifos_->carry(*wire_);
  moved |= wire_->progress();
  moved |= answer_leavers();
  if (moved) idle_passes_ = 0;
  else if (++idle_passes_ % kIdlePasses == 0) moved = fifos_->tell(*wire_);
  return moved;
}

bool RemoteTransport::progress() {
  if (!driven_.load(std::memory_order_relaxed)) driven_.store(true, std::memory_order_relaxed);
  passes_.fetch_add(1, std::memory_order_relaxed);
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && move();
}

void RemoteTransport::rest() {
  driven_.store(false, std::memory_order_relaxed);
  bool something_left = true;
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) {
    move();
    something_left = wire_->pending() != 0 || fifos_->has_unsent();
  }
  if (something_left) wake_poller();
}

std::byte* RemoteTransport::place(const Header& header, const HeaderLine& line, size_t bytes) {
  return fifos_->place(header, line, bytes);
}

void RemoteTransport::arrived(const Header& header, const HeaderLine* line, const std::byte* data, size_t bytes) {
  Remote* remote = remotes_[static_cast<size_t>(header.from)].get();
  auto abort_as = [&](Rank by, std::string reason) {
    int nobody = -1;
    if (aborted_by_.compare_exchange_strong(nobody, by)) reason_ = std::move(reason);
  };
  switch (header.kind) {
    case Kind::kLines:
    case Kind::kData:
    case Kind::kCredit:
      if (const Status s = fifos_->arrived(header, line, data, bytes); !s.ok())
        abort_as(rank_, std::string(s.message()));
      break;
    case Kind::kAbort: abort_as(header.from, std::string(reinterpret_cast<const char*>(data), bytes)); break;
    case Kind::kLeaving:
      if (remote == nullptr) break;
      note_end(header.from, data, bytes);
      remote->will_have_sent = header.step;
      remote->leaving = true;
      break;
    case Kind::kLeft:
      if (remote != nullptr) remote->has_all = true;
      break;
    case Kind::kBoardsAsked: {
      std::string both(sizeof(OperationBoard) + sizeof(PairBoard), '\0');
      copy_words(local_ != nullptr ? *local_->board(index_here(rank_)) : own_board_, both.data());
      copy_words(local_ != nullptr ? *local_->pair_board(index_here(rank_)) : own_pair_board_,
                 both.data() + sizeof(OperationBoard));
      Header h;
      h.kind = Kind::kBoards;
      wire_->send_copy(header.from, h, both.data(), both.size());
      break;
    }
    case Kind::kBoards:
      if (remote == nullptr || remote->noted || bytes != sizeof(OperationBoard) + sizeof(PairBoard)) break;
      store_words(data, &remote->board);
      store_words(data + sizeof(OperationBoard), &remote->pair_board);
      remote->boards_came_ns.store(monotonic_ns(), std::memory_order_release);
      break;
  }
  ring(*bell(rank_));
}

// Whoever leaves is told when all that it sent has come; from then on it counts as departed.
bool RemoteTransport::answer_leavers() {
  bool any = false;
  for (Rank r = 0; r < nranks_; ++r) {
    Remote* remote = remotes_[static_cast<size_t>(r)].get();
    if (remote == nullptr || !remote->leaving || fifos_->received(r) < remote->will_have_sent) continue;
    remote->leaving = false;
    remote->departed.store(true, std::memory_order_release);
    Header h;
    h.kind = Kind::kLeft;
    wire_->send_copy(r, h, nullptr, 0);
    any = true;
  }
  return any;
}

// The peers that this rank has spoken to get all that it has sent. After an abort only that has to be out.
void RemoteTransport::leave() {
  const uint64_t since = monotonic_ns();
  const bool aborted = aborted_by_ >= 0;
  std::vector<Rank> waiting;
  OperationBoard& mine = *board(rank_);
  const PartingNote note{mine.last_posted(), mine.last_finished()};
  peers_.part(std::string(reinterpret_cast<const char*>(&note), sizeof note));
  {
    const std::lock_guard lock(mutex_);
    fifos_->carry(*wire_);
    for (Rank r = 0; r < nranks_ && !aborted; ++r)
      if (const Remote* to = remotes_[static_cast<size_t>(r)].get();
          to != nullptr && wire_->connected(r) && !to->departed) {
        Header h;
        h.kind = Kind::kLeaving;
        h.step = fifos_->sent(r);
        wire_->send_copy(r, h, &note, sizeof note);
        waiting.push_back(r);
      }
  }
  const uint64_t limit = aborted ? kLastWordsNs : kLeaveNs;
  for (uint32_t pass = 0;; ++pass) {
    bool moved = false, pending = false;
    {
      const std::lock_guard lock(mutex_);
      moved = move();
      pending = wire_->pending() != 0;
      // Who has departed before us needs nothing any more, and whoever is lost cannot answer.
      std::erase_if(waiting, [&](Rank r) { return remotes_[static_cast<size_t>(r)]->has_all || wire_->lost(r); });
    }
    if (pass % 64 == 0 && !waiting.empty()) {
      const auto lost = peers_.find_lost();
      std::erase_if(waiting, [&](Rank r) { return (lost && lost->rank == r) || peers_.parting_note(r).has_value(); });
    }
    if ((waiting.empty() && !pending) || monotonic_ns() - since > limit) return;
    if (!moved) sched_yield();
  }
}

void RemoteTransport::wake_poller() {
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof one);
}

// Listens while nobody drives. A driver is noticed by its passes, so one that stops without a word is not waited for.
void RemoteTransport::poll_loop() {
  uint32_t seen = passes_;
  pollfd fds[2] = {{wake_fd_, POLLIN, 0}, {wire_->event_fd(), POLLIN, 0}};
  while (!stop_) {
    uint64_t woken;
    (void)!read(wake_fd_, &woken, sizeof woken);
    if (const uint32_t now = passes_; driven_ && now != seen) {
      seen = now;
      ::poll(fds, 1, kGiveWayMs);
      continue;
    }
    bool quiet = false;
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) {
      while (move() || fifos_->tell(*wire_)) {
      }
      quiet = wire_->arm();
    }
    if (quiet) ::poll(fds, 2, 100);
    else sched_yield();
  }
}

}  // namespace rondo::ucx

#endif

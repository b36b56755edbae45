#include "support/fault_transport.h"

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "protocol/memory.h"
#include "support/pages.h"
#include "support/shared.h"

namespace rondo::testing {
namespace {

// Long enough for the next message to arrive, if there is one.
constexpr double kReorderDeadlineS = 0.02;

constexpr uint64_t with_step(uint64_t flag, uint64_t step) { return (flag & ~kStepMask) | ((step + 1) & kStepMask); }

}  // namespace

const char* fault_name(Fault f) {
  constexpr const char* kNames[] = {"none",  "delay",      "stop",       "kill", "freeze",    "abort",
                                    "fingerprint", "other step", "lost", "reordered", "twice", "memory", "descriptors"};
  return kNames[static_cast<int>(f)];
}

void FaultControl::at_message(Fault fault, uint64_t number, uint32_t delay_us) {
  fault_ = fault;
  delay_us_ = delay_us;
  due_message_.store(number, std::memory_order_release);
}

void FaultControl::delay_each(uint32_t most_us, uint32_t seed) {
  random_.seed(seed);
  most_us_.store(most_us, std::memory_order_release);
}

void FaultControl::delay_message() {
  if (const uint32_t most = most_us_.load(std::memory_order_acquire); most != 0) usleep(random_() % most);
}

// Occasionally longer than a connection's lines take to be reused.
double FaultControl::some_delay_s() {
  const uint32_t most = most_us_.load(std::memory_order_acquire);
  return most == 0 ? 0 : random_() % 8 != 0 ? 0 : static_cast<double>(random_() % (200 * most)) * 1e-6;
}

void FaultControl::at_opening(Fault fault, uint64_t number) {
  fault_ = fault;
  due_opening_.store(num_openings_ + number, std::memory_order_release);
}

void FaultControl::now(Fault fault) {
  moment_->at_s.store(now_s(), std::memory_order_release);
  switch (fault) {
    case Fault::kKill: kill(getpid(), SIGKILL); break;
    case Fault::kFreeze: stopped_ = true; kill(getpid(), SIGSTOP); break;
    case Fault::kStop: stopped_ = true; break;
    case Fault::kMemory: fill_pool(); break;
    case Fault::kDescriptors: {
      rlimit limit{};
      getrlimit(RLIMIT_NOFILE, &limit);
      const int next = dup(0);
      close(next);
      limit.rlim_cur = static_cast<rlim_t>(next);
      setrlimit(RLIMIT_NOFILE, &limit);
      break;
    }
    default: break;
  }
}

void FaultControl::fill_pool() {
  const std::lock_guard lock(hoard_mutex_);
  auto pool = StagingPool::acquire();
  if (!pool.ok()) std::abort();
  pool_ = *pool;
  for (const auto use : {StagingPool::Use::kData, StagingPool::Use::kSmall})
    for (uint64_t bytes = uint64_t{16} << 30; bytes >= 4096; bytes /= 2)
      for (auto r = pool_->take(bytes, use); r.ok(); r = pool_->take(bytes, use)) hoard_.push_back(*r);
}

void FaultControl::free_memory() {
  const std::lock_guard lock(hoard_mutex_);
  if (pool_ != nullptr) pool_->give_back(hoard_);
  hoard_.clear();
  pool_.reset();
}

Fault FaultControl::count_message(Rank writer) {
  if (num_messages_.fetch_add(1, std::memory_order_acq_rel) + 1 != due_message_.load(std::memory_order_acquire))
    return Fault::kNone;
  moment_->writer = writer;
  now(fault_);
  return fault_;
}

Fault FaultControl::count_opening(Rank writer) {
  if (num_openings_.fetch_add(1) + 1 != due_opening_.load(std::memory_order_acquire)) return Fault::kNone;
  moment_->writer = writer;
  now(fault_);
  return fault_;
}

struct FaultTransport::Proxy {
  Proxy(const ConnectionKey& k, const FifoView& real_view, bool sends, uint32_t counters, int nranks)
      : key(k),
        real(real_view),
        sent(sends),
        num_counters(counters),
        room(static_cast<size_t>(nranks)),
        pages(real.num_lines * sizeof(HeaderLine) + real.data_bytes + sizeof(ReadCounter) * room) {
    own = real;
    own.lines = reinterpret_cast<HeaderLine*>(pages.at(0));
    own.counters = reinterpret_cast<ReadCounter*>(pages.at(real.num_lines * sizeof(HeaderLine)));
    if (real.data != nullptr)
      own.data = pages.at(real.num_lines * sizeof(HeaderLine) + sizeof(ReadCounter) * room);
  }
  uint32_t line(uint64_t s) const { return static_cast<uint32_t>(s & (real.num_lines - 1)); }
  const FifoView& from() const { return sent ? own : real; }
  const FifoView& to() const { return sent ? real : own; }

  const ConnectionKey key;
  const FifoView real;
  const bool sent;              // by this rank; else it reads
  const uint32_t num_counters;  // if sent: number of readers; else index of this rank's counter
  const size_t room;            // counters of the private FIFO
  const Pages pages;
  FifoView own;
  // Uses an odd address, as a network may do.
  bool land(const std::byte* data, uint32_t bytes, uint64_t flag) {
    if (zero_copy_sends.empty()) return false;
    arrived.resize(bytes + 1);
    std::memcpy(arrived.data() + 1, data, bytes);
    return posted_receive.put(arrived.data() + 1, bytes, flag);
  }

  std::vector<ZeroCopySend> zero_copy_sends;  // by line; empty: no zero-copy sends
  struct Late {
    ZeroCopySend* zero_copy_send;
    double due_s;
    const std::byte* data;
    std::vector<std::byte> as_sent;
  };
  std::vector<Late> late;
  PostedReceive posted_receive;
  std::vector<std::byte> arrived;
  uint64_t step = 0;  // the next to be carried
  struct Held {
    uint64_t step = 0, flag = 0;
    double since_s = 0;
    bool after_next = false;  // one is held
  } held;
};

FaultTransport::FaultTransport(Rank rank, int nranks, std::unique_ptr<Transport> real,
                               std::shared_ptr<FaultControl> control)
    : ForwardingTransport(std::move(real)), rank_(rank), nranks_(nranks), control_(std::move(control)), thread_([this] {
        run();
      }) {}

FaultTransport::~FaultTransport() {
  ending_ = true;
  thread_.join();
}

void FaultTransport::ring_bell(Rank r) {
  if (Doorbell* bell = real_->bell(r)) ring(*bell);
}

FifoView FaultTransport::add(const ConnectionKey& key, const FifoView& real) {
  const bool sent = key.writer == rank_;
  const uint32_t counters = !sent ? real_->counter_index(key, rank_) : key.group == 0 ? 1 : static_cast<uint32_t>(nranks_);
  const std::lock_guard lock(mutex_);
  proxies_.push_back(std::make_unique<Proxy>(key, real, sent, counters, nranks_));
  if (control_->sends_zero_copy_ && real.data != nullptr)
    proxies_.back()->zero_copy_sends = std::vector<ZeroCopySend>(real.num_lines);
  return proxies_.back()->own;
}

FaultTransport::Proxy* FaultTransport::find_zero_copy(const ConnectionKey& key, bool sent) {
  const std::lock_guard lock(mutex_);
  for (const auto& proxy : proxies_)
    if (proxy->key == key && proxy->sent == sent && !proxy->zero_copy_sends.empty()) return proxy.get();
  return nullptr;
}

ZeroCopySend* FaultTransport::zero_copy_sends(const ConnectionKey& key) {
  Proxy* proxy = find_zero_copy(key, true);
  return proxy != nullptr ? proxy->zero_copy_sends.data() : nullptr;
}

PostedReceive* FaultTransport::posted_receive(const ConnectionKey& key) {
  Proxy* proxy = find_zero_copy(key, false);
  return proxy != nullptr ? &proxy->posted_receive : nullptr;
}

void FaultTransport::let_go() {
  const std::lock_guard lock(mutex_);
  has_let_go_ = true;
  for (const auto& proxy : proxies_)  // send what was posted
    while (!control_->stopped_ && carry_message(*proxy)) {
    }
  for (const auto& proxy : proxies_)
    for (ZeroCopySend& l : proxy->zero_copy_sends)
      if (l.let_go()) ++control_->num_let_go_;
  for (const auto& proxy : proxies_) proxy->late.clear();
}

Expected<FifoView> FaultTransport::open_writer(const ConnectionKey& key) {
  if (control_->count_opening(key.writer) == Fault::kAbort) real_->raise_abort(rank_);
  RONDO_TRY_ASSIGN(const FifoView view, real_->open_writer(key));
  return add(key, view);
}

std::optional<FifoView> FaultTransport::open_reader(const ConnectionKey& key) {
  const std::optional<FifoView> view = real_->open_reader(key);
  if (!view) return std::nullopt;
  if (control_->count_opening(key.writer) == Fault::kAbort) real_->raise_abort(rank_);
  return add(key, *view);
}

void FaultTransport::run() {
  for (int idle = 0; !ending_;) {
    if (carry_all()) idle = 0;
    else if (++idle < 50) sched_yield();
    else usleep(50);
  }
  while (carry_all()) {
  }
}

bool FaultTransport::carry_all() {
  const std::lock_guard lock(mutex_);
  bool moved = false;
  for (const auto& proxy : proxies_) {
    while (!control_->stopped_ && carry_message(*proxy)) moved = true;
    std::erase_if(proxy->late, [&](const auto& l) {
      if (control_->stopped_ || (now_s() < l.due_s && !ending_)) return false;
      if (std::memcmp(l.data, l.as_sent.data(), l.as_sent.size()) != 0) ++control_->num_changed_;
      l.zero_copy_send->give_back();
      return true;
    });
    if (!control_->stopped_ && carry_counters(*proxy)) moved = true;
  }
  return moved;
}

bool FaultTransport::carry_message(Proxy& proxy) {
  const FifoView &from = proxy.from(), &to = proxy.to();
  auto publish = [&](uint64_t step, uint64_t flag) { HostMem::store_release(&to.lines[proxy.line(step)].flag, flag); };
  Proxy::Held& held = proxy.held;
  if (held.after_next && (ending_ || now_s() > held.since_s + kReorderDeadlineS)) {
    publish(held.step, held.flag);
    held.after_next = false;
  }
  const uint64_t step = proxy.step;
  const uint32_t line = proxy.line(step);
  uint64_t flag = HostMem::load_acquire(&from.lines[line].flag);
  if (!same_step(flag, step)) return false;
  control_->delay_message();
  const Fault fault = control_->count_message(proxy.key.writer);
  if (control_->stopped_) return false;
  if (fault == Fault::kDelay) usleep(control_->delay_us_);
  if (fault == Fault::kAbort) real_->raise_abort(rank_);
  std::memcpy(to.lines[line].payload, from.lines[line].payload, kLinePayloadBytes);
  if (from.data != nullptr) {
    DataPlace place;
    std::memcpy(&place, from.lines[line].payload, sizeof place);
    ZeroCopySend* zero_copy_send =
        proxy.sent && !proxy.zero_copy_sends.empty() ? &proxy.zero_copy_sends[line] : nullptr;
    const std::byte* zero_copy = zero_copy_send != nullptr ? zero_copy_send->data(step) : nullptr;
    const std::byte* data = zero_copy != nullptr ? zero_copy : from.data + place.offset;
    if (!proxy.sent && !has_let_go_ && proxy.land(data, place.bytes, flag)) ++control_->num_landed_;
    else std::memcpy(to.data + place.offset, data, place.bytes);
    if (zero_copy != nullptr) {
      ++control_->num_zero_copy_;
      proxy.late.push_back(
          {zero_copy_send, now_s() + control_->some_delay_s(), zero_copy, {zero_copy, zero_copy + place.bytes}});
    }
  }
  ++proxy.step;
  if (fault == Fault::kFingerprint) flag ^= kStepMask + 1;
  if (fault == Fault::kOtherStep)
    flag = with_step(flag, step >= proxy.real.num_lines ? step - proxy.real.num_lines : step + proxy.real.num_lines);
  if (fault == Fault::kReordered || fault == Fault::kTwice) {
    if (fault == Fault::kTwice) publish(step, flag);
    held = {step, flag, now_s(), true};
  } else if (fault != Fault::kLost) {
    publish(step, flag);
    if (held.after_next) publish(held.step, held.flag);
    held.after_next = false;
  }
  if (!proxy.sent) ring_bell(rank_);
  else if (proxy.key.group == 0) ring_bell(proxy.key.reader);
  else
    for (Rank r = 0; r < nranks_; ++r) ring_bell(r);
  return true;
}

bool FaultTransport::carry_counters(Proxy& proxy) {
  bool moved = false;
  auto carry = [&](uint32_t i, const FifoView& from, const FifoView& to, Rank whose_bell) {
    const uint64_t steps = HostMem::load_acquire(&from.counters[i].steps);
    if (steps == HostMem::load_relaxed(&to.counters[i].steps)) return;
    HostMem::store_release(&to.counters[i].steps, steps);
    ring_bell(whose_bell);
    moved = true;
  };
  if (!proxy.sent) carry(proxy.num_counters, proxy.own, proxy.real, proxy.key.writer);
  for (uint32_t i = 0; proxy.sent && i < proxy.num_counters; ++i) carry(i, proxy.real, proxy.own, rank_);
  return moved;
}

}  // namespace rondo::testing

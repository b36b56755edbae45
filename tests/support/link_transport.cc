#include "support/link_transport.h"

#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "protocol/memory.h"
#include "support/pages.h"
#include "support/shared.h"

namespace rondo::testing {
namespace {

// Posting and polling are not fenced (protocol/spin.h): a missed wake-up costs this much.
constexpr double kLongestSleepS = 500e-6;
constexpr double kNever = 1e300;

}  // namespace

struct LinkTransport::Proxy {
  Proxy(const ConnectionKey& k, const FifoView& real_view)
      : key(k), real(real_view), pages(real.num_lines * sizeof(HeaderLine)), own(real) {
    own.lines = reinterpret_cast<HeaderLine*>(pages.at(0));
  }
  size_t line(uint64_t step) const { return static_cast<size_t>(step & (real.num_lines - 1)); }
  uint64_t bytes(uint64_t posted_step) const {
    DataPlace place;
    if (real.data != nullptr) std::memcpy(&place, own.lines[line(posted_step)].payload, sizeof place);
    return sizeof(HeaderLine) + place.bytes;
  }

  const ConnectionKey key;
  const FifoView real;
  const Pages pages;
  FifoView own;              // data and counters are the real ones; lines show what has arrived
  uint64_t step = 0;         // the next to arrive
  std::deque<double> due_s;  // of `step` and the later ones on the line
};

LinkTransport::LinkTransport(Rank rank, int nranks, std::unique_ptr<Transport> real, const Line& line)
    : ForwardingTransport(std::move(real)), rank_(rank), nranks_(nranks), line_(line), thread_([this] { run(); }) {}

LinkTransport::~LinkTransport() {
  ending_ = true;
  thread_.join();
}

Expected<FifoView> LinkTransport::open_writer(const ConnectionKey& key) {
  RONDO_TRY_ASSIGN(const FifoView view, real_->open_writer(key));
  const std::lock_guard lock(mutex_);
  proxies_.push_back(std::make_unique<Proxy>(key, view));
  return proxies_.back()->own;
}

void LinkTransport::run() {
  take_short_turns();
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default of 50000 is as long as a short latency
  std::atomic_ref<uint32_t> asleep(posted_.asleep);
  for (;;) {
    const bool last = ending_;  // messages posted earlier are still carried
    const bool rung = asleep.exchange(1, std::memory_order_seq_cst) == 0;
    const bool found = admit_posted();
    if (rung && !found) ring_peers(nullptr);  // it was freed room
    const double due_s = carry_due();
    if (last && !found && due_s == kNever) return;
    const double sleep_s = std::min(due_s - now_s(), kLongestSleepS);
    if (sleep_s <= 0 || (found && due_s == kNever)) continue;
    const timespec t{.tv_sec = 0, .tv_nsec = static_cast<long>(sleep_s * 1e9)};
    // While the line is busy, posted messages queue until an earlier one has arrived.
    if (due_s == kNever) syscall(SYS_futex, &posted_.asleep, FUTEX_WAIT, 1, &t, nullptr, 0);
    else nanosleep(&t, nullptr);
  }
}

bool LinkTransport::admit_posted() {
  const std::lock_guard lock(mutex_);
  bool found = false;
  for (const auto& proxy : proxies_) {
    for (;;) {
      const uint64_t next = proxy->step + proxy->due_s.size();
      if (proxy->due_s.size() == proxy->real.num_lines ||
          !same_step(HostMem::load_acquire(&proxy->own.lines[proxy->line(next)].flag), next))
        break;
      const uint64_t bytes = proxy->bytes(next) * (proxy->key.group == 0 ? 1 : static_cast<uint64_t>(nranks_ - 1));
      free_at_s_ = std::max(free_at_s_, now_s()) + static_cast<double>(bytes) / line_.bytes_per_us * 1e-6;
      proxy->due_s.push_back(free_at_s_ + line_.latency_us * 1e-6);
      bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
      found = true;
    }
  }
  return found;
}

double LinkTransport::carry_due() {
  const std::lock_guard lock(mutex_);
  double next_s = kNever;
  for (const auto& proxy : proxies_) {
    while (!proxy->due_s.empty() && proxy->due_s.front() <= now_s()) publish(*proxy);
    if (!proxy->due_s.empty()) next_s = std::min(next_s, proxy->due_s.front());
  }
  return next_s;
}

void LinkTransport::publish(Proxy& proxy) {
  const size_t line = proxy.line(proxy.step);
  std::memcpy(proxy.real.lines[line].payload, proxy.own.lines[line].payload, kLinePayloadBytes);
  HostMem::store_release(&proxy.real.lines[line].flag, HostMem::load_relaxed(&proxy.own.lines[line].flag));
  proxy.due_s.pop_front();
  ++proxy.step;
  ring_peers(&proxy.key);
}

void LinkTransport::ring_peers(const ConnectionKey* key) {
  for (Rank r = 0; r < nranks_; ++r)
    if (r != rank_ && (key == nullptr || key->group != 0 || key->reader == r))
      if (Doorbell* bell = real_->bell(r)) ring(*bell);
}

TransportDecorator behind_line(const Line& line) {
  return [line](Rank rank, int nranks, std::unique_ptr<Transport> real) {
    return std::make_unique<LinkTransport>(rank, nranks, std::move(real), line);
  };
}

}  // namespace rondo::testing

#include "transport/net/remote_fifo.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "protocol/memory.h"
#include "rondo/schedule.h"

namespace rondo::net {
namespace {

constexpr uint32_t kMostLines = 16;  // in one message

uint32_t line_of(const FifoView& v, uint64_t step) { return static_cast<uint32_t>(step & (v.num_lines - 1)); }

bool posted(const FifoView& v, uint64_t step) {
  return same_step(HostMem::load_acquire(&v.lines[line_of(v, step)].flag), step);
}

}  // namespace

Header header_of(MessageKind kind, const ConnectionKey& k, uint64_t step) {
  return {
      .step = step, .tag = k.tag, .group = k.group, .kind = kind, .inline_only = k.inline_only, .channel = k.channel};
}

Expected<std::byte*> RemoteFifos::carve(StagingPool::Use use, uint64_t bytes) {
  RONDO_TRY_ASSIGN(const uint64_t offset,
                   cutter_.cut(use, bytes, [&](uint64_t range_bytes) -> Expected<StagingPool::Range> {
                     RONDO_TRY_ASSIGN(const StagingPool::Range taken, pool_->take(range_bytes, use));
                     taken_.push_back(taken);
                     return taken;
                   }));
  RONDO_TRY_ASSIGN(std::byte * base, pool_->base());
  return base + offset;
}

Expected<FifoView> RemoteFifos::make(const ConnectionKey& key, uint32_t num_counters) {
  FifoView v;
  v.num_lines = key.inline_only ? SegmentLayout::kLinesPerConnection : layout_.data_lines;
  const uint64_t lines = sizeof(HeaderLine) * v.num_lines;
  RONDO_TRY_ASSIGN(std::byte * small, carve(StagingPool::Use::kSmall, lines + sizeof(ReadCounter) * num_counters));
  v.lines = reinterpret_cast<HeaderLine*>(small);
  v.counters = reinterpret_cast<ReadCounter*>(small + lines);
  if (!key.inline_only) {
    v.data_bytes = layout_.data_bytes();
    RONDO_TRY_ASSIGN(v.data, carve(StagingPool::Use::kData, v.data_bytes));
  }
  return v;
}

Expected<FifoView> RemoteFifos::open_writer(const ConnectionKey& key, const std::vector<Rank>& readers) {
  RONDO_TRY_ASSIGN(const FifoView v, make(key, key.group == 0 ? 1 : static_cast<uint32_t>(nranks_)));
  if (key.reader == rank_) to_itself_[pack(key, rank_)] = v;
  ZeroCopySend* zero_copy_sends = nullptr;
  if (!key.inline_only) {
    std::vector<ZeroCopySend>& made = zero_copy_sends_[pack(key, key.reader)] = std::vector<ZeroCopySend>(v.num_lines);
    for (ZeroCopySend& l : made) l.set_readers(static_cast<uint32_t>(readers.size()));
    zero_copy_sends = made.data();
  }
  for (const Rank reader : readers) add_outgoing(key, reader, v, zero_copy_sends);
  return v;
}

void RemoteFifos::add_outgoing(const ConnectionKey& key, Rank reader, const FifoView& view,
                               ZeroCopySend* zero_copy_sends) {
  auto made = std::make_unique<SendState>(SendState{key, reader, view});
  made->zero_copy_sends = zero_copy_sends;
  if (!key.inline_only) made->headers.resize(view.num_lines);
  by_reader_[pack(key, reader)] = made.get();
  outgoing_.push_back(std::move(made));
}

void RemoteFifos::adopt_writer(ConnectionKey key, std::span<const FifoView> channels, std::span<const Rank> readers) {
  for (const FifoView& view : channels) {
    ++key.channel;
    for (const Rank reader : readers) add_outgoing(key, reader, view, nullptr);
  }
}

void RemoteFifos::adopt_reader(ConnectionKey key, std::span<const FifoView> channels) {
  for (const FifoView& view : channels) {
    ++key.channel;
    add_replica(key, view);
  }
}

RemoteFifos::Replica* RemoteFifos::add_replica(const ConnectionKey& key, const FifoView& view) {
  auto& made = replicas_[pack(key, key.writer)] = std::make_unique<Replica>();
  made->key = key;
  made->view = view;
  return made.get();
}

Expected<RemoteFifos::Replica*> RemoteFifos::replica(const ConnectionKey& key) {
  const auto found = replicas_.find(pack(key, key.writer));
  if (found != replicas_.end()) return found->second.get();
  if (key.channel != 0)
    return make_error(StatusCode::kInternal, "rank {}: rank {} sends before its receiver has memory (tag {})", rank_,
                      key.writer, key.tag);
  RONDO_TRY_ASSIGN(const FifoView v, make(key, 1));
  return add_replica(key, v);
}

Expected<std::optional<FifoView>> RemoteFifos::open_reader(const ConnectionKey& key) {
  if (key.writer == rank_) {
    const auto found = to_itself_.find(pack(key, rank_));
    return found != to_itself_.end() ? std::optional(found->second) : std::nullopt;
  }
  RONDO_TRY_ASSIGN(Replica * r, replica(key));
  return std::optional(r->view);
}

ZeroCopySend* RemoteFifos::zero_copy_sends(const ConnectionKey& key) {
  const auto found = zero_copy_sends_.find(pack(key, key.reader));
  return found != zero_copy_sends_.end() ? found->second.data() : nullptr;
}

PostedReceive* RemoteFifos::posted_receive(const ConnectionKey& key) {
  const auto found = replicas_.find(pack(key, key.writer));
  return found == replicas_.end() || key.inline_only ? nullptr : &found->second->posted_receive;
}

bool RemoteFifos::carry_lines(SendState& o, RailSet& rails) {
  bool any = false;
  while (posted(o.view, o.step)) {
    const uint32_t first = line_of(o.view, o.step);
    const uint32_t most = std::min(kMostLines, o.view.num_lines - first);
    uint32_t n = 1;
    while (n < most && posted(o.view, o.step + n)) ++n;
    Header h = header_of(MessageKind::kLines, o.key, o.step);
    h.num_lines = static_cast<uint16_t>(n);
    rails.send_copy(o.reader, h, o.view.lines + first, sizeof(HeaderLine) * n);
    o.step += n;
    sent_[static_cast<size_t>(o.reader)] += n;
    any = true;
  }
  return any;
}

bool RemoteFifos::carry_data(SendState& o, RailSet& rails) {
  bool any = false;
  while (posted(o.view, o.step)) {
    const HeaderLine& line = o.view.lines[line_of(o.view, o.step)];
    ZeroCopySend* zero_copy = o.zero_copy_sends != nullptr ? &o.zero_copy_sends[line_of(o.view, o.step)] : nullptr;
    const std::byte* zero_copy_data = zero_copy != nullptr ? zero_copy->data(o.step) : nullptr;
    DataPlace place;
    std::memcpy(&place, line.payload, sizeof place);
    DataHeader& h = o.headers[line_of(o.view, o.step)];
    h.header = header_of(MessageKind::kData, o.key, o.step);
    h.header.session = rails.session();
    h.header.from = rank_;
    std::memcpy(static_cast<void*>(&h.line), &line, sizeof line);
    if (zero_copy_data != nullptr) rails.send(o.reader, h, zero_copy_data, place.bytes, zero_copy);
    else rails.send(o.reader, h, o.view.data + place.offset, place.bytes);
    ++o.step;
    ++sent_[static_cast<size_t>(o.reader)];
    any = true;
  }
  return any;
}

bool RemoteFifos::carry(RailSet& rails) {
  bool any = send_credits(rails, Credits::kDue);
  for (const auto& o : outgoing_) any |= o->key.inline_only ? carry_lines(*o, rails) : carry_data(*o, rails);
  return any;
}

// A credit costs as much as a short message. Therefore it is sent late: without a ring after half of the lines, with a
// ring after kRingMessages, or when the writer may have no space. If data go to the same rank, it travels with them and
// is sent after half as many messages. It is sent at once after a message of kRestartBytes or more that used the ring:
// writer and reader should then reuse the same part of the ring, which is in their caches.
bool RemoteFifos::send_credits(RailSet& rails, Credits which) {
  has_data_for_.assign(has_data_for_.size(), false);
  for (const auto& o : outgoing_)
    if (posted(o->view, o->step)) has_data_for_[static_cast<size_t>(o->reader)] = true;
  bool any = false;
  for (auto& [key, r] : replicas_) {
    const uint64_t read = HostMem::load_acquire(&r->view.counters[0].steps);
    if (read == r->credited_steps) continue;
    const bool at_once = which == Credits::kAll || (r->last_bytes >= kRestartBytes && !r->used_posted_receive);
    const uint32_t late = r->key.inline_only ? r->view.num_lines / 2 : kRingMessages;
    const bool with_data = has_data_for_[static_cast<size_t>(r->key.writer)];
    if (!at_once && read - r->credited_steps < (with_data ? late / 2 : late) && !r->writer_may_lack_space(read))
      continue;
    rails.send_copy(r->key.writer, header_of(MessageKind::kCredit, r->key, read), nullptr, 0);
    r->credited_steps = read;
    any = true;
  }
  return any;
}

// The ring has space for kRingMessages + 1 of the longest messages, in at most two pieces. In a ring algorithm a rank
// sends its next messages before it reads. Therefore a credit is due when four ninths of the ring are uncredited. A
// writer that has gone back to the ring's beginning has only the space before the first uncredited message. That should
// be enough for two messages.
bool RemoteFifos::Replica::writer_may_lack_space(uint64_t read) const {
  if (view.data == nullptr) return false;
  const auto place_of = [&](uint64_t step) {
    DataPlace at;
    std::memcpy(&at, view.lines[line_of(view, step)].payload, sizeof at);
    return at;
  };
  const DataPlace first = place_of(credited_steps), last = place_of(read - 1);
  if (last.offset < first.offset) return true;
  const uint32_t bytes = place_bytes(last.bytes), uncredited = last.offset - first.offset + bytes;
  return (first.offset != 0 && first.offset < 2 * bytes) || uncredited >= view.data_bytes / (kRingMessages + 1) * 4;
}

bool RemoteFifos::has_unsent() const {
  return std::any_of(outgoing_.begin(), outgoing_.end(), [](const auto& o) { return posted(o->view, o->step); });
}

Expected<ReceiveTarget> RemoteFifos::place(const Header& header, const HeaderLine& line, size_t bytes,
                                           PostedReceiveUse use) {
  if (header.inline_only != 0) return malformed(rank_, header, bytes);
  RONDO_TRY_ASSIGN(Replica * r, replica(key_of(header, header.from, rank_)));
  DataPlace at;
  std::memcpy(&at, line.payload, sizeof at);
  if (at.bytes != bytes || at.offset > r->view.data_bytes || bytes > r->view.data_bytes - at.offset)
    return malformed(rank_, header, bytes);
  const bool claimed = use != PostedReceiveUse::kNo && !let_go_ && r->posted_receive.claim(bytes, line.flag);
  // Let the message wait: its reader will soon post a receive, and the next attempt may find it.
  const bool waits = use == PostedReceiveUse::kSoon && r->used_posted_receive && !claimed && !let_go_;
  if (use != PostedReceiveUse::kComplete) r->used_posted_receive = claimed || waits;
  if (claimed) return ReceiveTarget{r->posted_receive.place(), &r->posted_receive};
  return waits ? ReceiveTarget{.later = true} : ReceiveTarget{r->view.data + at.offset};
}

Status RemoteFifos::arrived(const Header& header, const HeaderLine* line, const std::byte* data, size_t bytes) {
  if (header.kind == MessageKind::kCredit) {
    const auto found = by_reader_.find(pack(key_of(header, rank_, header.from), header.from));
    if (found == by_reader_.end()) return malformed(rank_, header, bytes);
    uint64_t& steps = found->second->view.counters[found->second->counter()].steps;
    const uint64_t before = HostMem::load_relaxed(&steps);
    if (header.step <= before) return {};  // a later credit came first
    if (header.step - before > found->second->view.num_lines) return malformed(rank_, header, bytes);
    HostMem::store_release(&steps, header.step);
    return {};
  }
  RONDO_TRY_ASSIGN(Replica * r, replica(key_of(header, header.from, rank_)));
  const FifoView& v = r->view;
  auto store = [&](const std::byte* from, uint64_t step) {
    HeaderLine& to = v.lines[line_of(v, step)];
    uint64_t flag;
    std::memcpy(&flag, from + kLinePayloadBytes, sizeof flag);
    std::memcpy(to.payload, from, kLinePayloadBytes);
    HostMem::store_release(&to.flag, flag);
  };
  if (header.kind == MessageKind::kData) {
    if (line == nullptr || header.inline_only != 0 || bytes == 0) return malformed(rank_, header, bytes);
    r->last_bytes = bytes;
    store(reinterpret_cast<const std::byte*>(line), header.step);
    ++received_[static_cast<size_t>(header.from)];
    return {};
  }
  const uint32_t n = header.num_lines;
  if (header.inline_only == 0 || n == 0 || n > v.num_lines || bytes != sizeof(HeaderLine) * n)
    return malformed(rank_, header, bytes);
  for (uint32_t i = 0; i < n; ++i) store(data + sizeof(HeaderLine) * i, header.step + i);
  received_[static_cast<size_t>(header.from)] += n;
  return {};
}

}  // namespace rondo::net

#include "engine/matcher.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/error.h"
#include "engine/queue.h"

namespace rondo {
namespace {

bool fits(const Operation& op, Rank from, const Envelope& envelope) {
  const uint16_t peer = op.program->operation.root;
  return op.tag == envelope.tag && (peer == kAnyPeer || peer == from);
}

std::string size_text(uint64_t count_elems, Dtype dtype) {
  return fmt::format("{} {} ({} B)", count_elems, dtype_name(dtype), count_elems * dtype_bytes(dtype));
}

void tell_source(const Operation& op, Rank from) {
  if (op.source != nullptr) *op.source = from;
}

}  // namespace

Matcher::Sender& Matcher::sender(Rank r) {
  if (senders_.empty()) senders_.resize(static_cast<size_t>(queue_.nranks()));
  return senders_[static_cast<size_t>(r)];
}

void Matcher::post(Operation& op, Planner& planner) {
  planner_ = &planner;
  longest_deadline_ns_ = std::max(longest_deadline_ns_, op.deadline_ns);
  for (Message& m : unexpected_) {
    if (m.taken_by != nullptr || !fits(op, m.from, m.envelope)) continue;
    m.taken_by = &op;
    ++num_taken_;
    if (agrees(op, m.from, m.envelope)) deliver_unexpected();
    return;
  }
  posted_.push_back(&op);
  count_posted(op, 1);
}

void Matcher::count_posted(const Operation& op, int change) {
  const uint16_t peer = op.program->operation.root;
  (peer == kAnyPeer ? num_posted_from_any_ : sender(peer).num_posted) += static_cast<uint32_t>(change);
}

bool Matcher::step() {
  bool moved = num_taken_ != 0 && deliver_unexpected();
  for (Rank r = 0; r < queue_.nranks() && !posted_.empty(); ++r)
    if (is_awaited(r)) moved |= take_envelope(r);
  if (queue_.needs_progress_ && queue_.active_.empty()) moved |= queue_.transport_.progress();
  constexpr uint64_t kCheckNs = 1'000'000;
  if (++passes_ % 64 != 0) return moved;  // if other operations always move, only this checks the receives
  const uint64_t now = monotonic_ns();
  if (now - checked_ns_ >= kCheckNs) {
    checked_ns_ = now;
    queue_.check_receives(0);
  }
  return moved;
}

// False also if an earlier message on its connection has not arrived.
bool Matcher::has_envelope(Rank from) {
  Sender& s = sender(from);
  PortTable& ports = queue_.ports();
  if (s.envelopes == nullptr) s.envelopes = ports.reader({from, kTagMatched, kUnicast}, true);
  ReadPort& port = *s.envelopes;
  if (port.fifo.step() < port.reserved || (!port.connected && !ports.try_connect(port))) return false;
  const uint32_t fingerprint = fingerprint_at(kEnvelopeFingerprint, call_index(s.num_taken + 1));
  return port.fifo.arrived(1, fingerprint) == Arrival::kReady;
}

bool Matcher::take_envelope(Rank from) {
  if (!has_envelope(from)) return false;
  Sender& s = sender(from);
  Envelope envelope;
  std::memcpy(&envelope, s.envelopes->fifo.line(0), sizeof envelope);
  s.envelopes->release(1);
  ++s.num_taken;
  take_message(from, envelope);
  return true;
}

void Matcher::take_message(Rank from, const Envelope& envelope) {
  const auto found = std::ranges::find_if(posted_, [&](const Operation* op) { return fits(*op, from, envelope); });
  if (found == posted_.end()) return keep(from, envelope);
  Operation& op = **found;
  if (!agrees(op, from, envelope)) return;
  count_posted(op, -1);
  if (!plan(op, from, envelope)) return;
  posted_.erase(found);
  tell_source(op, from);
  queue_.start_at_once(op);
}

// Receives an unexpected message.
void Matcher::keep(Rank from, const Envelope& envelope) {
  const bool is_valid = static_cast<int>(envelope.dtype) < kNumDtypes && envelope.count_elems <= UINT64_MAX / 16;
  const uint64_t bytes = is_valid ? envelope.count_elems * dtype_bytes(envelope.dtype) : UINT64_MAX;
  Message& m = unexpected_.emplace_back(Message{from, envelope, nullptr, nullptr});
  if (bytes <= PTRDIFF_MAX) m.data.reset(new (std::nothrow) std::byte[bytes]);
  if (m.data == nullptr)
    return queue_.fail(make_error(
        StatusCode::kExhausted,
        "rank {}: no memory for an unexpected message of {} B with tag {} from rank {}: call recv for it earlier",
        queue_.rank(), bytes, envelope.tag, from));
  m.arrival = std::make_shared<Operation>(posted_.front()->backend);
  m.arrival->out = m.data.get();
  m.arrival->out_bytes = bytes;
  m.arrival->tag = envelope.tag;
  m.arrival->deadline_ns = longest_deadline_ns_;
  if (!plan(*m.arrival, from, envelope)) return;
  queue_.outstanding_.fetch_add(1, std::memory_order_relaxed);
  queue_.start_at_once(*m.arrival);
}

// Checks that both ends have equal sizes and types. Fails the queue otherwise.
bool Matcher::agrees(const Operation& op, Rank from, const Envelope& envelope) {
  const OperationShape& mine = op.program->operation;
  if (mine.count_elems == envelope.count_elems && mine.dtype == envelope.dtype) return true;
  queue_.fail(make_error(
      StatusCode::kMismatch,
      "message with tag {} from rank {} to rank {}: the ranks disagree on {}: rank {} sends {}, rank "
      "{} receives {}; pass the same count_elems and dtype to both calls",
      envelope.tag, from, queue_.rank(), mine.count_elems != envelope.count_elems ? "count_elems" : "dtype", from,
      size_text(envelope.count_elems, envelope.dtype), queue_.rank(), size_text(mine.count_elems, mine.dtype)));
  return false;
}

// Gives the operation the program that receives this message. If there is none, fails the queue and returns false.
bool Matcher::plan(Operation& op, Rank from, const Envelope& envelope) {
  CallShape shape{Collective::kRecv, envelope.count_elems, from, envelope.dtype};
  shape.matched = true;
  const auto planned = planner_->plan(shape);
  if (!planned.ok()) {
    queue_.fail(planned.status());
    return false;
  }
  op.plan = *planned.value();
  op.program = planned.value()->get()->program.get();
  op.sequence = sender(from).num_taken;
  op.call_index = call_index(op.sequence);
  return true;
}

bool Matcher::deliver_unexpected() {
  bool moved = false;
  for (auto m = unexpected_.begin(); m != unexpected_.end();) {
    if (m->taken_by == nullptr || !m->arrival->done.load(std::memory_order_relaxed)) {
      ++m;
      continue;
    }
    Operation& op = *m->taken_by;
    if (op.out_bytes != 0) std::memcpy(op.out, m->data.get(), op.out_bytes);
    tell_source(op, m->from);
    m = unexpected_.erase(m);
    --num_taken_;
    queue_.outstanding_.fetch_sub(1, std::memory_order_relaxed);
    queue_.complete(op, {});
    moved = true;
  }
  return moved;
}

std::vector<Operation*> Matcher::receives() const {
  std::vector<Operation*> all = posted_;
  for (const Message& m : unexpected_)
    if (m.taken_by != nullptr) all.push_back(m.taken_by);
  return all;
}

std::vector<std::shared_ptr<Operation>> Matcher::arriving() const {
  std::vector<std::shared_ptr<Operation>> found;
  for (const Message& m : unexpected_) found.push_back(m.arrival);
  return found;
}

std::vector<Operation*> Matcher::give_up() {
  std::vector<Operation*> all = receives();
  posted_.clear();
  num_posted_from_any_ = 0;
  for (Sender& s : senders_) s.num_posted = 0;
  unexpected_.clear();
  num_taken_ = 0;
  return all;
}

bool Matcher::is_arriving(const Operation& op) const {
  return std::ranges::any_of(unexpected_, [&](const Message& m) { return m.taken_by == &op; });
}

std::string Matcher::describe_unexpected() const {
  constexpr size_t kMost = 8;
  std::string text;
  size_t num = 0;
  for (const Message& m : unexpected_)
    if (m.taken_by == nullptr && ++num <= kMost)
      text += fmt::format("{}{} with tag {} from rank {}", num == 1 ? "" : ", ",
                          size_text(m.envelope.count_elems, m.envelope.dtype), m.envelope.tag, m.from);
  return num > kMost ? fmt::format("{} and {} more", text, num - kMost) : text;
}

}  // namespace rondo

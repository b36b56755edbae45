#include "transport/ports.h"

#include "base/no_cancel.h"

namespace rondo {
namespace {

// Returns a FIFO with one line that never arrives. A reader uses it until the writer has made the connection.
FifoView never() {
  alignas(64) static HeaderLine line{};  // never written
  FifoView v;
  v.lines = &line;
  v.num_lines = 1;
  return v;
}

ConnectionKey key_of(Rank writer, Rank reader, const Port& p, bool inline_only) {
  return {writer, p.group == kUnicast ? reader : -1, p.tag, p.group, inline_only};
}

}  // namespace

Expected<WritePort*> PortTable::writer(const std::vector<Port>& readers, bool inline_only) {
  const ConnectionKey key = key_of(rank_, readers[0].peer, readers[0], inline_only);
  std::unique_ptr<WritePort>& slot = writers_[key];
  if (slot != nullptr) return slot.get();
  const NoCancel no_cancel;
  RONDO_TRY_ASSIGN(const FifoView view, transport_.open_writer(key));
  auto port = std::make_unique<WritePort>();
  port->key = key;
  for (const Port& r : readers) {
    port->counters.push_back(transport_.counter_index(key, r.peer));
    if (Doorbell* bell = transport_.bell(r.peer)) port->reader_bells.push_back(bell);
  }
  port->fifo = {view, port->counters.data(), static_cast<uint32_t>(port->counters.size())};
  port->zero_copy_sends = transport_.zero_copy_sends(key);
  port->sends_by_address = transport_.sends_by_address(key);
  slot = std::move(port);
  return slot.get();
}

ReadPort* PortTable::reader(const Port& from, bool inline_only) {
  const ConnectionKey key = key_of(from.peer, rank_, from, inline_only);
  std::unique_ptr<ReadPort>& slot = readers_[key];
  if (slot == nullptr) {
    slot = std::make_unique<ReadPort>();
    slot->key = key;
    slot->fifo = {never(), 0};
    slot->writer_bell = transport_.bell(from.peer);
    try_connect(*slot);
  }
  return slot.get();
}

void OpenSends::add(const Send& s) {
  constexpr size_t kMany = 64;
  if (sends_.size() % kMany == kMany - 1) forget_complete();  // in case no step overwrites data
  if (!s.by_address()) s.port->zero_copy_send(s.step).send_zero_copy(s.data, s.step);
  sends_.push_back(s);
}

void OpenSends::reclaim_refused() {
  reclaim([](const Send& s) { return s.port->fifo.is_refused(s.step); });
  reclaim([](const Send& s) { return !s.port->sends_by_address; });  // they would be refused too
}

void OpenSends::cancel(Transport& transport) {
  reclaim([](const Send&) { return true; });
  transport.let_go();
  sends_.clear();
}

bool PortTable::try_connect(ReadPort& port) {
  const NoCancel no_cancel;
  const std::optional<FifoView> view = transport_.open_reader(port.key);
  if (!view) return false;
  port.fifo = {*view, transport_.counter_index(port.key, rank_)};
  port.posted_receive = transport_.posted_receive(port.key);
  port.pulls = transport_.sends_by_address(port.key);
  port.connected = true;
  return true;
}

}  // namespace rondo

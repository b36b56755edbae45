#include "transport/net/status_page_copy.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string_view>

#include "protocol/spin.h"

namespace rondo::net {
namespace {

uint64_t load(uint64_t& w) { return std::atomic_ref(w).load(std::memory_order_acquire); }
void store_word(uint64_t& w, uint64_t v) { std::atomic_ref(w).store(v, std::memory_order_release); }

// Copies word by word, because the owner continues to write.
template <class T>
void copy_words(T& from, T* to) {
  static_assert(sizeof(T) % 8 == 0);
  auto* words = reinterpret_cast<uint64_t*>(&from);
  for (size_t i = 0; i < sizeof(T) / 8; ++i) {
    const uint64_t w = load(words[i]);
    std::memcpy(reinterpret_cast<std::byte*>(to) + 8 * i, &w, 8);
  }
}

// The first word, the number that readers look for, is 0 while the others change.
void store_record(const OperationRecord& from, OperationRecord& to) {
  const auto* words = reinterpret_cast<const uint64_t*>(&from);
  auto* there = reinterpret_cast<uint64_t*>(&to);
  store_word(there[0], 0);
  for (size_t i = 1; i < sizeof from / 8; ++i) store_word(there[i], words[i]);
  store_word(there[0], words[0]);
}

}  // namespace

// Omits a record that its owner was writing: its number is 0, or has changed.
std::string StatusPageCopy::encode(StatusPage& page, PairPage& pairs) {
  StatusPage b;
  PairPage p;
  copy_words(page, &b);
  copy_words(pairs, &p);
  for (size_t i = 0; i < StatusPage::kRecords; ++i)
    if (load(page.records[i].sequence) != b.records[i].sequence) b.records[i].sequence = 0;
  for (size_t i = 0; i < PairPage::kRecords; ++i)
    if (load(pairs.records[i].sequence) != p.records[i].sequence) p.records[i].sequence = 0;
  if (b.waits_noted_ns != StatusPage::kForGood) {
    const uint64_t now = monotonic_ns();
    b.waits_noted_ns = now - std::min(now, b.waits_noted_ns);  // sent as an age
  }
  std::string bytes(sizeof b + sizeof p, '\0');
  std::memcpy(bytes.data(), &b, sizeof b);
  std::memcpy(bytes.data() + sizeof b, &p, sizeof p);
  return bytes;
}

bool StatusPageCopy::store(const std::byte* bytes, size_t num_bytes, bool same_host) {
  if (num_bytes != sizeof(StatusPage) + sizeof(PairPage)) return false;
  if (ended_) return true;
  auto& [operations, pairs] = pages();
  StatusPage b;
  PairPage p;
  std::memcpy(static_cast<void*>(&b), bytes, sizeof b);
  std::memcpy(static_cast<void*>(&p), bytes + sizeof b, sizeof p);
  for (size_t i = 0; i < StatusPage::kRecords; ++i) store_record(b.records[i], operations.records[i]);
  for (size_t i = 0; i < PairPage::kRecords; ++i) store_record(p.records[i], pairs.records[i]);
  for (size_t i = 0; i < StatusPage::kWaits; ++i) store_word(operations.waits[i], b.waits[i]);
  const uint64_t now = monotonic_ns();
  store_word(operations.waits_noted_ns,
             b.waits_noted_ns == StatusPage::kForGood ? StatusPage::kForGood : now - std::min(now, b.waits_noted_ns));
  store_word(operations.owner_pid, b.owner_pid);
  store_word(operations.owner_pid_namespace, same_host ? b.owner_pid_namespace : 0);
  store_word(pairs.posted, p.posted);
  store_word(operations.finished, std::max(load(operations.finished), b.finished));
  store_word(operations.posted, std::max(load(operations.posted), b.posted));
  return true;
}

void StatusPageCopy::end(const PartingNote& note) {
  if (ended_) return;
  ended_ = true;
  StatusPage& operations = pages().operations;
  store_word(operations.finished, note.finished);
  store_word(operations.posted, note.posted);
}

}  // namespace rondo::net

#include "transport/net/status_page_copy.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "protocol/spin.h"

namespace rondo::net {
namespace {

uint64_t load(uint64_t& w) { return std::atomic_ref(w).load(std::memory_order_acquire); }
void store_word(uint64_t& w, uint64_t v) { std::atomic_ref(w).store(v, std::memory_order_release); }

// Copies a page while its owner writes to `from` and others read `to`. The number of a record, its first word, is 0
// while the rest changes. A record that its owner was writing is left out. The numbers before the records, such as
// `posted`, are read first and stored last, so every counted record is there.
template <class Page>
void copy_page(Page& from, Page& to) {
  auto* source = reinterpret_cast<uint64_t*>(&from);
  auto* target = reinterpret_cast<uint64_t*>(&to);
  constexpr size_t kHead = offsetof(Page, records) / 8, kRecord = sizeof from.records[0] / 8;
  std::array<uint64_t, kHead> head;
  for (size_t i = 0; i < kHead; ++i) head[i] = load(source[i]);
  for (size_t first = kHead; first < sizeof(Page) / 8; first += kRecord) {
    const uint64_t number = load(source[first]);
    store_word(target[first], 0);
    for (size_t i = first + 1; i < first + kRecord; ++i) store_word(target[i], load(source[i]));
    if (load(source[first]) == number) store_word(target[first], number);
  }
  for (size_t i = 0; i < kHead; ++i) store_word(target[i], head[i]);
}

// A point in time as its age, and the reverse.
uint64_t age(uint64_t ns) {
  const uint64_t now = monotonic_ns();
  return ns == StatusPage::kForGood ? ns : now - std::min(now, ns);
}

}  // namespace

std::string encode_pages(StatusPage& page, PairPage& pairs) {
  StatusPages copy;
  copy_page(page, copy.operations);
  copy_page(pairs, copy.pairs);
  copy.operations.waits_noted_ns = age(copy.operations.waits_noted_ns);
  return {reinterpret_cast<const char*>(&copy), sizeof copy};
}

bool StatusPageCopy::store(std::string_view bytes, bool same_host) {
  StatusPages came;
  if (bytes.size() != sizeof came) return false;
  if (ended_) return true;
  std::memcpy(static_cast<void*>(&came), bytes.data(), sizeof came);
  StatusPage& page = came.operations;
  StatusPage& before = pages().operations;
  page.waits_noted_ns = age(page.waits_noted_ns);
  if (!same_host) page.owner_pid_namespace = 0;
  page.posted = std::max(load(before.posted), page.posted);  // an earlier message may come later
  page.finished = std::max(load(before.finished), page.finished);
  copy_page(page, before);
  copy_page(came.pairs, pages().pairs);
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

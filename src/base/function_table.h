// FunctionTable: the functions of a library that is opened at first use, or a test's replacement. A failure is final:
// the library is not tried again.
// Thread safety: any thread; replace before the first use.
#pragma once

#include <atomic>
#include <string>

namespace rondo {

/// kOpen fills a Table, and returns the reason if it cannot.
template <class Table, std::string (*kOpen)(Table&)>
class FunctionTable {
 public:
  /// nullptr: not available; why_not() gives the reason.
  static const Table* get() {
    if (const Table* table = replacement_.load(std::memory_order_acquire); table != nullptr) return table;
    return opened().why_not.empty() ? &opened().table : nullptr;
  }
  static std::string why_not() {
    return replacement_.load(std::memory_order_acquire) != nullptr ? std::string() : opened().why_not;
  }
  /// For tests: uses this table from now on; nullptr: the library's again.
  static void replace(const Table* table) { replacement_.store(table, std::memory_order_release); }

 private:
  struct Opened {
    Table table;
    std::string why_not;
  };
  static const Opened& opened() {
    static const Opened* const result = [] {
      auto* o = new Opened;  // never freed: destructors that run late still call its functions
      o->why_not = kOpen(o->table);
      return o;
    }();
    return *result;
  }
  static inline std::atomic<const Table*> replacement_{nullptr};
};

}  // namespace rondo

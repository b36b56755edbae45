// RangeList: the free ranges of an address space. First fit; adjacent ranges are joined when one is freed.
//
// Not for the fast path: O(free ranges). Thread safety: the owner's.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

namespace rondo {

class RangeList {
 public:
  /// The range must not overlap a free one.
  void give(uint64_t offset, uint64_t bytes) {
    auto after = free_.lower_bound(offset);
    if (after != free_.end() && offset + bytes == after->first) {
      bytes += after->second;
      after = free_.erase(after);
    }
    if (after != free_.begin())
      if (auto before = std::prev(after); before->first + before->second == offset) {
        before->second += bytes;
        return;
      }
    free_.emplace_hint(after, offset, bytes);
  }

  /// The lowest free range of `bytes` at a multiple of `align`, a power of two.
  std::optional<uint64_t> take(uint64_t bytes, uint64_t align) {
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const auto [begin, length] = *it;
      const uint64_t at = (begin + align - 1) & ~(align - 1);
      if (at - begin > length || length - (at - begin) < bytes) continue;
      free_.erase(it);
      if (at != begin) free_.emplace(begin, at - begin);
      if (const uint64_t end = at + bytes; end != begin + length) free_.emplace(end, begin + length - end);
      return at;
    }
    return std::nullopt;
  }

 private:
  std::map<uint64_t, uint64_t> free_;  // offset, bytes
};

}  // namespace rondo

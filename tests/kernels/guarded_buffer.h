// A buffer for kernel tests: its payload begins at a chosen offset in a 64-byte line, with guard bytes on both sides
// that must not change after place().
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace rondo {

class GuardedBuffer {
 public:
  static constexpr uint64_t kGuardBytes = 64;
  explicit GuardedBuffer(uint64_t max_payload_bytes) : bytes_(max_payload_bytes + 4 * kGuardBytes) {}
  /// Begins a test: misalignment_bytes < 64; the payload must not exceed the constructor's limit.
  void place(uint64_t misalignment_bytes, uint64_t payload_bytes) {
    const uint64_t address = reinterpret_cast<uint64_t>(bytes_.data()) + kGuardBytes;
    first_ = kGuardBytes + (64 - address % 64) % 64 + misalignment_bytes;
    payload_bytes_ = payload_bytes;
    std::fill(bytes_.begin(), bytes_.end(), uint8_t{0xa5});
  }
  uint8_t* data() { return bytes_.data() + first_; }
  bool guards_intact() const {
    const auto good = [](uint8_t b) { return b == 0xa5; };
    return std::all_of(bytes_.begin(), bytes_.begin() + static_cast<int64_t>(first_), good) &&
           std::all_of(bytes_.begin() + static_cast<int64_t>(first_ + payload_bytes_), bytes_.end(), good);
  }

 private:
  std::vector<uint8_t> bytes_;
  uint64_t first_ = 0;
  uint64_t payload_bytes_ = 0;
};

}  // namespace rondo

// Writes plain values to bytes and reads them back with bounds checks, little endian.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace rondo {

class ByteWriter {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// After a read past the end ok() is false, and every value read is zero.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}
  bool ok() const { return ok_; }
  void fail() { ok_ = false; }
  size_t position() const { return position_; }
  size_t left() const { return ok_ ? bytes_.size() - position_ : 0; }

  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const std::string_view from = get_bytes(sizeof value);
    if (from.size() == sizeof value) std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  std::string_view get_bytes(size_t count) {
    if (count > left()) {
      ok_ = false;
      return {};
    }
    position_ += count;
    return bytes_.substr(position_ - count, count);
  }
  std::string get_text() { return std::string(get_bytes(get<uint32_t>())); }
  /// A count of items that take at least `least_bytes` each. An impossible count fails the reader.
  size_t get_count(size_t least_bytes) {
    const auto count = get<uint32_t>();
    if (count > left() / least_bytes) ok_ = false;
    return ok_ ? count : 0;
  }

 private:
  std::string_view bytes_;
  size_t position_ = 0;
  bool ok_ = true;
};

}  // namespace rondo

// Encodes and decodes messages between ranks, and trace files: little endian, numbers of fixed width, lists and texts
// after their length. A message states its fields once, for both directions:
//
//     template <class C> void fields(C& c, PeerInfo& p) { c(p.host, p.pid, p.addresses); }
//
//     std::string bytes = encode(peer);
//     std::optional<PeerInfo> peer = decode<PeerInfo>(bytes);     nothing: damaged, cut off, or too long
//
// The decoder never reads beyond its bytes. If the remaining bytes cannot hold the announced number of items, it
// allocates nothing. After an overrun every value is zero or empty and ok() is false. The bytes may come from an
// unauthenticated connection.
//
// Thread safety: values.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace rondo {

static_assert(std::endian::native == std::endian::little, "numbers travel as they lie in memory");

template <class T>
constexpr bool is_std_array = false;
template <class T, size_t kSize>
constexpr bool is_std_array<std::array<T, kSize>> = true;

/// Values that travel as they lie in memory: numbers, enums, and arrays of trivially copyable values.
template <class T>
concept CodecPacked = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_bounded_array_v<T> || is_std_array<T>;

class Encoder {
 public:
  static constexpr bool kDecodes = false;

  template <class... T>
  Encoder& operator()(const T&... values) {
    (one(const_cast<T&>(values)), ...);  // fields() serves both directions, and changes nothing here
    return *this;
  }
  Encoder& raw(std::string_view bytes) {
    bytes_.append(bytes);
    return *this;
  }
  /// A large value without pointers or padding, as it is in memory.
  template <class T>
  void packed(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    raw({reinterpret_cast<const char*>(&value), sizeof value});
  }
  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::move(bytes_); }

 private:
  void one(std::string_view& text) { (*this)(static_cast<uint32_t>(text.size())).raw(text); }
  void one(std::string& text) { (*this)(std::string_view(text)); }
  template <CodecPacked T>
  void one(T& value) {
    packed(value);
  }
  template <class T>
  void one(std::vector<T>& list) {
    (*this)(static_cast<uint32_t>(list.size()));
    for (const auto& item : list) (*this)(static_cast<const T&>(item));
  }
  template <class T>
  void one(std::optional<T>& value) {
    (*this)(value.has_value());
    if (value) (*this)(*value);
  }
  template <class T>
  void one(T& message) {
    fields(*this, message);
  }

  std::string bytes_;
};

template <class T>
std::string encode(const T& message) {
  Encoder e;
  e(message);
  return e.take();
}

class Decoder {
 public:
  static constexpr bool kDecodes = true;

  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}

  template <class... T>
  Decoder& operator()(T&... values) {
    (one(values), ...);
    return *this;
  }
  template <class T>
  T get() {
    T value{};
    one(value);
    return value;
  }
  std::string_view raw(size_t num_bytes) {
    if (num_bytes > left()) fail();
    if (!ok_) return {};
    position_ += num_bytes;
    return bytes_.substr(position_ - num_bytes, num_bytes);
  }
  std::string_view text() { return raw(get<uint32_t>()); }
  template <class T>
  void packed(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::string_view from = raw(sizeof value);
    if (from.size() == sizeof value) std::memcpy(static_cast<void*>(&value), from.data(), sizeof value);
  }
  /// Reads the number of items that follow. Fails if so many items cannot be in the bytes left.
  size_t count(size_t least_bytes) {
    const auto number = get<uint32_t>();
    if (number > left() / least_bytes) fail();
    return ok_ ? number : 0;
  }

  void fail() { ok_ = false; }
  bool ok() const { return ok_; }
  size_t position() const { return position_; }
  size_t left() const { return ok_ ? bytes_.size() - position_ : 0; }
  /// Everything was read, and nothing is left.
  bool finished() const { return ok_ && left() == 0; }

 private:
  void one(std::string& value) { value = text(); }
  void one(bool& value) { value = get<uint8_t>() != 0; }
  template <CodecPacked T>
  void one(T& value) {
    std::memset(static_cast<void*>(&value), 0, sizeof value);
    packed(value);
  }
  template <class T>
  void one(std::vector<T>& list) {
    static const size_t least = encode(T{}).size();  // texts and lists are empty in it
    list.clear();
    for (size_t left = count(least); left > 0 && ok_; --left) list.push_back(get<T>());
  }
  template <class T>
  void one(std::optional<T>& value) {
    value.reset();
    if (get<bool>()) value = get<T>();
  }
  template <class T>
  void one(T& message) {
    fields(*this, message);
  }

  std::string_view bytes_;
  size_t position_ = 0;
  bool ok_ = true;
};

/// Nothing unless all bytes are read and make one T.
template <class T>
std::optional<T> decode(std::string_view bytes) {
  Decoder d(bytes);
  T message = d.get<T>();
  if (!d.finished()) return std::nullopt;
  return message;
}

}  // namespace rondo

// Little-endian encoding of the bootstrap's messages: fixed-width integers and length-prefixed strings.
//
// The reader never reads beyond its bytes: after an overrun every value is zero or empty and ok() is false. A caller
// decodes a whole message and checks once. The bytes may come from an unauthenticated connection.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status_from_peer.h"
#include "rondo/status.h"

namespace rondo::wire {

class Writer {
 public:
  template <class T>
  Writer& put(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
    return *this;
  }
  Writer& raw(std::string_view s) {
    bytes_.append(s);
    return *this;
  }
  Writer& str(std::string_view s) { return put<uint32_t>(static_cast<uint32_t>(s.size())).raw(s); }
  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  T get() {
    const std::string_view s = raw(sizeof(T));
    uint64_t v = 0;
    for (size_t i = 0; i < s.size(); ++i) v |= static_cast<uint64_t>(static_cast<uint8_t>(s[i])) << (8 * i);
    return static_cast<T>(v);
  }
  std::string_view raw(size_t bytes) {
    if (bytes > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const std::string_view s = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return s;
  }
  std::string_view str() { return raw(get<uint32_t>()); }
  bool ok() const { return ok_; }
  /// True if everything was read without error.
  bool finished() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace rondo::wire

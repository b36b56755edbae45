// JSON as text, written piece by piece: escaping, and a sink that hands full buffers to a file or keeps them.
//
// No document is ever held in memory, so that a trace of millions of records can be exported.
//
// Thread safety: values.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>

namespace rondo {

/// The text in quotes, with what JSON wants escaped.
inline std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\', out += c;
    else if (static_cast<unsigned char>(c) < 0x20) out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else out += c;
  }
  return out += '"';
}

/// Nanoseconds as a number of microseconds with three decimals, without rounding.
inline std::string json_us(int64_t ns) {
  const uint64_t magnitude = ns < 0 ? -static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", magnitude / 1000, magnitude % 1000);
}

class TextSink {
 public:
  /// Writes to `file`, which stays the caller's.
  explicit TextSink(std::FILE* file) : file_(file) {}
  ~TextSink() { (void)flush(); }
  TextSink(const TextSink&) = delete;
  TextSink& operator=(const TextSink&) = delete;
  template <class... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
    if (buffer_.size() >= kFullBytes) (void)flush();
  }
  /// False when some of the text could not be written.
  bool flush() {
    good_ = good_ && std::fwrite(buffer_.data(), 1, buffer_.size(), file_) == buffer_.size() && std::fflush(file_) == 0;
    buffer_.clear();
    return good_;
  }

 private:
  static constexpr size_t kFullBytes = 1 << 18;
  std::FILE* file_;
  fmt::memory_buffer buffer_;
  bool good_ = true;
};

}  // namespace rondo

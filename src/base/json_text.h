// JSON text written piece by piece: escaping, and a sink that writes full buffers to a file.
//
// No document is held in memory, therefore a trace of millions of records can be exported.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>

namespace rondo {

/// Bytes of the UTF-8 character at the start of a non-empty text; 0 if it is invalid.
inline size_t utf8_bytes(std::string_view text) {
  const auto at = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = at(0);
  if (first < 0x80) return 1;
  const size_t bytes = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (bytes == 0 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i)
    if ((at(i) & 0xC0) != 0x80) return 0;
  const unsigned second = at(1);  // overlong, half a UTF-16 pair, or beyond the last character
  const bool wrong = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                     (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
  return wrong ? 0 : bytes;
}

/// The text in quotes, escaped for JSON. An invalid UTF-8 byte (in a path, for example) becomes U+FFFD.
inline std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const char c = text[0];
    const size_t bytes = utf8_bytes(text);
    if (bytes == 0) out += "\\ufffd";
    else if (c == '"' || c == '\\') out += '\\', out += c;
    else if (static_cast<unsigned char>(c) < 0x20) out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else out += text.substr(0, bytes);
    text.remove_prefix(bytes == 0 ? 1 : bytes);
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
  /// Writes to `file`, which the caller owns.
  explicit TextSink(std::FILE* file) : file_(file) {}
  ~TextSink() { (void)flush(); }
  TextSink(const TextSink&) = delete;
  TextSink& operator=(const TextSink&) = delete;
  template <class... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
    if (buffer_.size() >= kFullBytes) (void)flush();
  }
  /// False if some of the text could not be written.
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

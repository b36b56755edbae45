// Text of a record as members of a JSON object, for both exporters, and a sink that writes full buffers to a file: no
// document is held in memory, therefore a trace of millions of records can be exported.
//
// Thread safety: pure functions; a sink belongs to one thread.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <utility>

#include "base/json_text.h"
#include "trace/trace_file.h"

namespace rondo {

/// Members of a plan: "operation":"all_reduce","count_elems":..., without braces.
std::string plan_members(const TracedPlan& plan);
/// Members of the step at `index`: "sequence":1,"lane":0,..., without braces and times.
std::string step_members(const TraceFile& file, size_t index);

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

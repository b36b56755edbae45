// What NCCL_DEBUG asks to be told: lines on stderr or in NCCL_DEBUG_FILE.
//
// A log of its own, because programs look for NCCL's variables; rondo's errors are the same sentences as ever.
// Thread safety: any thread; a line is one write.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

namespace rondo::nccl {

enum class LogLevel : int { kNone = 0, kVersion = 1, kWarn = 2, kInfo = 3 };

/// "host-%h.%p" with this host's name and this process's number; %% is a percent sign.
std::string expand_file_name(std::string_view pattern);

class Log {
 public:
  /// An empty file: stderr. A file that cannot be opened is said there, once.
  void configure(LogLevel level, const std::string& file);
  void version(std::string_view text) { write(LogLevel::kVersion, "VERSION", text); }
  void warn(std::string_view text) { write(LogLevel::kWarn, "WARN", text); }
  void info(std::string_view text) { write(LogLevel::kInfo, "INFO", text); }
  /// Whatever the level: what the user must not miss.
  void always(std::string_view text) { write(LogLevel::kNone, "WARN", text); }
  bool has(LogLevel level) const { return level_.load(std::memory_order_relaxed) >= static_cast<int>(level); }

 private:
  void write(LogLevel level, std::string_view name, std::string_view text);
  std::atomic<int> level_{0};
  std::atomic<int> fd_{2};
};

}  // namespace rondo::nccl

// The log of NCCL_DEBUG: lines on stderr or in NCCL_DEBUG_FILE. It is separate because programs use NCCL's variables.
// The error texts are rondo's. Thread safety: any thread; a line is one write.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

namespace rondo::nccl {

enum class LogLevel : int { kNone = 0, kVersion = 1, kWarn = 2, kInfo = 3 };

/// Expands "host-%h.%p" with this host's name and this process's number; %% is a percent sign.
std::string expand_file_name(std::string_view pattern);

class Log {
 public:
  /// An empty file name means stderr. An error on opening the file is printed there once.
  void configure(LogLevel level, const std::string& file);
  void version(std::string_view text) { write(LogLevel::kVersion, "VERSION", text); }
  void warn(std::string_view text) { write(LogLevel::kWarn, "WARN", text); }
  void info(std::string_view text) { write(LogLevel::kInfo, "INFO", text); }
  /// Writes at every level: messages that the user must see.
  void always(std::string_view text) { write(LogLevel::kNone, "WARN", text); }
  bool has(LogLevel level) const { return level_.load(std::memory_order_relaxed) >= static_cast<int>(level); }

 private:
  void write(LogLevel level, std::string_view name, std::string_view text);
  std::atomic<int> level_{0};
  std::atomic<int> fd_{2};
};

}  // namespace rondo::nccl

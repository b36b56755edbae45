// Reads small files: settings, and the kernel's files in /proc and /sys.
#pragma once

#include <optional>
#include <string>

namespace rondo {

/// The first `most_bytes` of a file; nothing if it cannot be read: see errno.
std::optional<std::string> read_file(const std::string& path, size_t most_bytes = 4096);
/// The same up to the end of the first line; empty if the file cannot be read.
std::string first_line_of(const std::string& path);

}  // namespace rondo

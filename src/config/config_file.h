// Parser of configuration files: lines of "key = value". It accepts any bytes as input.
//
//   file    = line, { newline, line }
//   line    = blanks | blanks "#" anything | blanks key blanks "=" blanks value blanks
//   key     = letters, digits and "_"; not case-sensitive, stored in lower case
//   value   = any text up to the end of the line or to a "#" that follows a blank; may be empty
//
// Blanks are spaces, tabs and carriage returns. Other control characters are errors. Bytes above 127 are text.
//
// Thread safety: plain functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.h"

namespace rondo {

struct ConfigEntry {
  int line = 0;  // from 1
  std::string key;
  std::string value;
};

constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr size_t kMaxConfigLineBytes = 4096;

/// Removes the blanks at both ends.
std::string_view trim(std::string_view s);

/// Returns all entries in their order. Errors: kInvalidArgument "<name>:<line>: ..." for the first line of another form
/// or of more than kMaxConfigLineBytes, and for a key that occurs twice; "<name>: ..." for more than kMaxConfigBytes.
/// O(bytes * log lines).
Expected<std::vector<ConfigEntry>> parse_config(std::string_view text, std::string_view name);

}  // namespace rondo

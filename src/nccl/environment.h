// The NCCL_* variables of a process: the supported ones, and the reasons why others are ignored. A pure function of the
// variables; process.h reads it once. docs/nccl.md has the table for users. Thread safety: values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/setting_table.h"
#include "nccl/log.h"

namespace rondo::nccl {

struct IgnoredVariable {
  std::string name;
  std::string why;  // a sentence
};

struct Environment {
  LogLevel level = LogLevel::kNone;
  std::string log_file;  // NCCL_DEBUG_FILE, expanded
  std::string comm_id;   // NCCL_COMM_ID
  setting::Blocks blocks;  // NCCL_MIN_CTAS, NCCL_MAX_CTAS
  std::string settings;  // lines for set_default_settings
  std::vector<IgnoredVariable> ignored;

  /// All ignored variables in one line, for ncclParamGet's key kIgnoredKey. Empty if there are none.
  std::string ignored_text() const;
};

/// Keys of ncclParam*: the variables that rondo reads, and this one.
inline constexpr const char* kIgnoredKey = "RONDO_NCCL_IGNORED";
/// Ends with nullptr.
extern const char* const kParameterKeys[];
/// The entry of kParameterKeys; nullptr if there is none.
const char* const* find_parameter(std::string_view name);

/// `variables`: "NAME=value" strings, ending with nullptr, as in environ.
Environment read_environment(const char* const* variables);

/// NCCL's names are not case-sensitive.
std::string lower(std::string_view text);

}  // namespace rondo::nccl

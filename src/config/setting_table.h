// The settings that a user may make, in one table: it drives the environment, the configuration file, the text in a
// rondo_config, `rondo info --config`, and is compared with docs/settings.md by a test.
//
// A setting is RONDO_NAME in the environment and "name" in a file. Where it may come from, the strongest first:
//
//   struct       Config's deadlines, then Config::settings (rondo_config.settings)
//   environment  RONDO_*
//   file         RONDO_CONFIG alone if it is set (empty: none), else ~/.config/rondo.conf, then /etc/rondo.conf
//   default      set_default_settings (communicator.h), then the table's
//
// Thread safety: the table is constant; SettingValues are values.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.h"

namespace rondo {

struct SettingRow {
  enum class Kind : uint8_t {
    kSeconds,    // a positive number
    kNumber,     // a whole number from least to most
    kChoice,     // one of choices
    kAlgorithm,  // the name of a registered algorithm
    kSimd,       // baseline, avx2 or avx512, as far as the processor has it
    kText,
  };
  enum Flag : uint8_t {
    kEnvironmentOnly = 1,  // of one process or one start: has no place in a file
    kConfidential = 2,     // never printed
  };
  std::string_view key;
  Kind kind;
  uint64_t least, most;       // kNumber
  std::string_view choices;   // kChoice: separated by |
  std::string_view fallback;  // the default, for people
  std::string_view meaning;
  uint8_t flags = 0;
};

std::span<const SettingRow> setting_rows();
/// nullptr when there is no such key.
const SettingRow* find_setting(std::string_view key);
/// "RONDO_TIMEOUT_S" of "timeout_s".
std::string variable_of(std::string_view key);
/// "a positive number of seconds": what a value has to be.
std::string expected_form(const SettingRow& row);
/// kInvalidArgument "<where>: expected ...", where `where` shows the setting as it was written.
Status check_setting(const SettingRow& row, std::string_view value, std::string_view where);
/// The key of the table that was most likely meant; empty when none is near.
std::string_view similar_setting(std::string_view key);

struct SettingValue {
  std::string key;
  std::string text;
  std::string from;  // "environment", "/etc/rondo.conf:3", "struct"
};

/// getenv-like: nullptr when the variable is not set.
using EnvLookup = std::function<const char*(const char* name)>;
/// The bytes of a file; nothing when there is none, an error when there is one and it cannot be read.
using FileLookup = std::function<Expected<std::optional<std::string>>(const std::string& path)>;

/// Which settings are made, and where. What is not in it has its default.
class SettingValues {
 public:
  /// From this process's environment and files.
  static Expected<SettingValues> load();
  /// The same from anywhere: everything comes from the two functions. Errors: kInvalidArgument naming the variable or
  /// file:line, the key and the expected form; kSystem (a file that cannot be read). Keys that the table lacks are no
  /// errors: see unknown().
  static Expected<SettingValues> load(const EnvLookup& environment, const FileLookup& files);
  /// Lines as in a file, stronger than all before. Errors as load.
  Status add_struct(std::string_view text);
  /// One setting, stronger than all before; the value is taken as it is.
  void set(std::string_view key, std::string text, std::string from);

  /// nullptr when it is not set.
  const SettingValue* find(std::string_view key) const;
  /// The text, or empty.
  std::string text(std::string_view key) const;
  /// Of a setting whose value has been checked; the fallback when it is not set.
  double number_or(std::string_view key, double fallback) const;
  /// "/etc/rondo.conf:3: unknown key algoritm (algo?)", one for each unknown key of a file.
  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  Status add_lines(std::string_view text, const std::string& name, const std::string& from);
  std::vector<SettingValue> values_;
  std::vector<std::string> unknown_;
};

/// RONDO_* variables that are set and that the table lacks, as sentences. RONDO_TEST_* and RONDO_PERF_* are left out.
std::vector<std::string> unknown_variables(char** environment);

/// The text of one setting from this process's environment and files; empty when it is not set. Errors as load.
Expected<std::string> read_setting(std::string_view key);

/// A table for people: each setting, its value in force, and where it comes from. Confidential ones are not shown.
std::string describe_settings(const SettingValues& values);

}  // namespace rondo

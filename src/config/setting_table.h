// The settings that a user may make: the rows of config/settings.def, and where their values come from, the strongest
// first:
//
//   struct       Config's deadlines, then Config::settings (rondo_config.settings)
//   environment  RONDO_*
//   file         RONDO_CONFIG alone if it is set (empty: none), else ~/.config/rondo.conf, then /etc/rondo.conf
//   default      set_default_settings (communicator.h), then the table's
//
// Thread safety: the table is constant; SettingValues and SettingFields are values.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.h"

namespace rondo {

namespace setting {  // what a row's kind is as a field
using Seconds = double;
using Number = uint64_t;
using Bytes = uint64_t;
using Switch = bool;
using Choice = std::string;
using Text = std::string;
using Secret = std::string;
using Algorithm = std::string;
struct Blocks {
  uint32_t least = 0, most = 0;  // 0: not said
  std::string text() const;      // "4-16"
};
}  // namespace setting

struct SettingRow {
  enum class Kind : uint8_t { kSeconds, kNumber, kBytes, kBlocks, kSwitch, kChoice, kText, kSecret, kAlgorithm };
  enum class Where : uint8_t { kProcess, kAnywhere };
  enum class Ranks : uint8_t { kOwn, kFirst, kEqual };
  std::string_view key;
  Kind kind;
  std::string_view range, fallback;
  Where where;
  Ranks ranks;
  std::string_view meaning;
  /// The value, unless it is a secret: for errors and reports.
  std::string_view shown(std::string_view value) const { return kind == Kind::kSecret ? "..." : value; }
};
/// A name of before.
struct OldSetting {
  std::string_view key, now, hint;  // now: the key that took its place; empty: none did
  /// "p2p is now p2p_level (loc for what 0 was)", as keys or as variables.
  std::string what_now(bool as_variable) const;
};

/// Every setting in force, as its kind: what is set, else the default. Where that is in words: 0 or empty.
struct SettingFields {
#define SETTING(name, kind, range, fallback, where, ranks, meaning) setting::kind name{};
#include "config/settings.def"
};

std::span<const SettingRow> setting_rows();
std::span<const OldSetting> old_settings();
/// nullptr when there is no such key.
const SettingRow* find_setting(std::string_view key);
/// "RONDO_TIMEOUT_S" of "timeout_s".
std::string variable_of(std::string_view key);
/// "a positive number of seconds": what a value has to be.
std::string expected_form(const SettingRow& row);
/// kInvalidArgument "<where>: expected ...", where `where` shows the setting as it was written.
Status check_setting(const SettingRow& row, std::string_view value, std::string_view where);
/// For an unknown name, " (is algo meant?)" with the key that is nearest to it; empty when none is near.
std::string similar_setting(std::string_view key, bool as_variable);

struct SettingValue {
  std::string key;
  std::string text;
  std::string from;  // "environment", "/etc/rondo.conf:3", "struct"
};
/// What travels: where a value is from is its own rank's matter.
template <class C>
void fields(C& c, SettingValue& v) {
  c(v.key, v.text);
}

/// getenv-like: nullptr when the variable is not set.
using EnvLookup = std::function<const char*(const char* name)>;
/// The bytes of a file; nothing when there is none, an error when there is one and it cannot be read.
using FileLookup = std::function<Expected<std::optional<std::string>>(const std::string& path)>;

/// Which settings are made, and where. What is not in it has its default. All values have been checked.
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
  /// What a Config says: its lines, then its deadlines; 0: not set.
  Status add_config(std::string_view lines, double deadline_s, double init_deadline_s);
  /// One setting, stronger than all before; the value is taken as it is.
  void set(std::string_view key, std::string text, std::string from);
  void unset(std::string_view key);

  /// nullptr when it is not set.
  const SettingValue* find(std::string_view key) const;
  /// The text, the default where that is a value, or empty.
  std::string_view text(std::string_view key) const;
  /// Everything in force.
  SettingFields fields() const;
  const std::vector<SettingValue>& all() const { return values_; }
  /// "/etc/rondo.conf:3: unknown key algoritm (algo?)", one for each unknown key of a file.
  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  Status add_lines(std::string_view text, const std::string& name, const std::string& from);
  std::vector<SettingValue> values_;
  std::vector<std::string> unknown_;
};

/// RONDO_* variables that are set and that the table lacks, as sentences. RONDO_TEST_* and RONDO_PERF_* are left out.
std::vector<std::string> unknown_variables(char** environment);

/// What is in force for this process, from its environment and files. Errors as load.
Expected<SettingFields> read_process_settings();

/// A table for people: each setting, its value in force, and where it comes from. Secrets are not shown.
std::string describe_settings(const SettingValues& values);

}  // namespace rondo

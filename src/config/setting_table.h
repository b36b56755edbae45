// The settings of users: the rows of config/settings.def, and the sources of their values, the strongest first:
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

namespace setting {  // the field type of each kind of setting
using Seconds = double;
using Number = uint64_t;
using Bytes = uint64_t;
using Switch = bool;
using Choice = std::string;
using Text = std::string;
using Secret = std::string;
using Algorithm = std::string;
struct Blocks {
  uint32_t least = 0, most = 0;  // 0: not set
  std::string text() const;      // "4-16"
};
}  // namespace setting

struct SettingRow {
  enum class Kind : uint8_t { kSeconds, kNumber, kBytes, kBlocks, kSwitch, kChoice, kText, kSecret, kAlgorithm };
  enum class Where : uint8_t { kProcess, kFile, kAnywhere };
  enum class Ranks : uint8_t { kOwn, kFirst, kEqual };
  std::string_view key;
  Kind kind;
  std::string_view range, fallback;
  Where where;
  Ranks ranks;
  std::string_view meaning;
  /// Returns the value for errors and reports, "..." for a secret.
  std::string_view shown(std::string_view value) const { return kind == Kind::kSecret ? "..." : value; }
};

/// The value of every setting, or its default if it has no value. If the default is a description, the field is 0 or
/// empty.
struct SettingFields {
#define SETTING(name, kind, range, fallback, where, ranks, meaning) setting::kind name{};
#include "config/settings.def"
};

std::span<const SettingRow> setting_rows();
/// Returns nullptr if there is no such key.
const SettingRow* find_setting(std::string_view key);
/// Returns "RONDO_TIMEOUT_S" for "timeout_s".
std::string variable_of(std::string_view key);
/// Returns the form of a valid value, for example "a positive number of seconds".
std::string expected_form(const SettingRow& row);
/// Checks a value. Errors: kInvalidArgument "<where>: expected ...". `where` is the setting as the user wrote it.
Status check_setting(const SettingRow& row, std::string_view value, std::string_view where);
/// Returns " (is algo meant?)" with the key that is most similar to an unknown name, or an empty text.
std::string similar_setting(std::string_view key, bool as_variable);

struct SettingValue {
  std::string key;
  std::string text;
  std::string from;  // "environment", "/etc/rondo.conf:3", "struct"
};
/// The fields that ranks exchange. `from` concerns only its own rank.
template <class C>
void fields(C& c, SettingValue& v) {
  c(v.key, v.text);
}

/// Like getenv: returns nullptr if the variable is not set.
using EnvLookup = std::function<const char*(const char* name)>;
/// Returns the bytes of a file, nothing if there is no file, and an error if it cannot be read.
using FileLookup = std::function<Expected<std::optional<std::string>>(const std::string& path)>;

/// The settings that have a value, with its source. Other settings have their defaults. All values have been checked.
class SettingValues {
 public:
  /// Reads this process's environment and files.
  static Expected<SettingValues> load();
  /// Reads all input through the two functions. Errors: kInvalidArgument naming the variable or file:line, the key and
  /// the expected form; kSystem (a file cannot be read). An unknown key is not an error, see unknown().
  static Expected<SettingValues> load(const EnvLookup& environment, const FileLookup& files);
  /// Adds lines of a file called `name`. They replace earlier values. An empty `from` stands for "name:line". Errors:
  /// those of load.
  Status add_lines(std::string_view text, const std::string& name, const std::string& from);
  /// Adds the lines of a rondo_config. Errors: those of load, and a setting that only files may contain.
  Status add_struct(std::string_view text);
  /// Adds the values of a Config: its lines, then its deadlines (0: not set).
  Status add_config(std::string_view lines, double deadline_s, double init_deadline_s);
  /// Sets one value, without a check. It replaces the earlier one.
  void set(std::string_view key, std::string text, std::string from);
  void unset(std::string_view key);

  /// Returns nullptr if the key has no value.
  const SettingValue* find(std::string_view key) const;
  /// Returns the value, or the default if that is a value, or an empty text.
  std::string_view text(std::string_view key) const;
  /// Returns the values and defaults of all settings.
  SettingFields fields() const;
  const std::vector<SettingValue>& all() const { return values_; }
  /// Returns a sentence with file, line and key for each unknown key.
  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  std::vector<SettingValue> values_;
  std::vector<std::string> unknown_;
};

/// Returns a sentence for each RONDO_* variable that is set and not in the table, except RONDO_TEST_* and RONDO_PERF_*.
std::vector<std::string> unknown_variables(char** environment);

/// Returns the settings of this process from its environment and files. Errors: those of load.
Expected<SettingFields> read_process_settings();

}  // namespace rondo

// The sources of settings: environment, files, a struct. Declared in config/setting_table.h.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <mutex>

#include "base/error.h"
#include "base/limits.h"
#include "base/read_file.h"
#include "config/config_file.h"
#include "config/setting_table.h"
#include "rondo/communicator.h"

namespace rondo {
namespace {

constexpr const char* kStruct = "struct";  // the source of a rondo_config's values
constexpr const char* kSystemFile = "/etc/rondo.conf";
constexpr const char* kUserFile = "/.config/rondo.conf";  // below HOME

Expected<std::optional<std::string>> read_whole(const std::string& path) {
  auto text = read_file(path, kMaxConfigBytes + 1);  // the parser refuses a longer one
  if (text || errno == ENOENT || errno == ENOTDIR) return text;
  return make_error(StatusCode::kSystem, "configuration file {}: {}", path, errno_reason(errno));
}

// The lines of set_default_settings. One for the process, because unique ids and listeners also belong to the process.
struct DefaultLines {
  std::mutex mutex;
  std::string lines, from;
};
DefaultLines& default_lines() {
  static DefaultLines all;
  return all;
}

}  // namespace

Expected<SettingValues> SettingValues::load() {
  RONDO_TRY_ASSIGN(SettingValues values,
                   load([](const char* name) -> const char* { return std::getenv(name); }, read_whole));
  SettingValues weaker;
  {
    const std::lock_guard guard(default_lines().mutex);
    RONDO_TRY(weaker.add_lines(default_lines().lines, default_lines().from, default_lines().from));
  }
  for (SettingValue& v : weaker.values_)
    if (values.find(v.key) == nullptr) values.values_.push_back(std::move(v));
  return values;
}

Status set_default_settings(const std::string& lines, const std::string& from) {
  SettingValues tried;
  RONDO_TRY(tried.add_lines(lines, from, from));
  if (!tried.unknown().empty()) return Status(StatusCode::kInvalidArgument, tried.unknown().front());
  const std::lock_guard guard(default_lines().mutex);
  default_lines().lines = lines;
  default_lines().from = from;
  return {};
}

Expected<SettingValues> SettingValues::load(const EnvLookup& environment, const FileLookup& files) {
  SettingValues v;
  std::vector<std::string> paths;  // a later one is stronger
  const char* named = environment("RONDO_CONFIG");
  const char* home = environment("HOME");
  if (named == nullptr) {
    paths.emplace_back(kSystemFile);
    if (home != nullptr && *home != '\0') paths.push_back(std::string(home) + kUserFile);
  } else if (*named != '\0') {
    paths.emplace_back(named);
  }
  for (const std::string& path : paths) {
    RONDO_TRY_ASSIGN(const std::optional<std::string> text, files(path));
    if (text) {
      RONDO_TRY(v.add_lines(*text, path, ""));
    } else if (named != nullptr) {
      return invalid_argument("RONDO_CONFIG={}: expected the path of a configuration file; there is none", named);
    }
  }
  for (const SettingRow& row : setting_rows()) {
    const std::string name = variable_of(row.key);
    const char* value = environment(name.c_str());
    if (value == nullptr || (*value == '\0' && row.key != "config")) continue;
    RONDO_TRY(check_setting(row, value, fmt::format("{}={}", name, row.shown(value))));
    v.set(row.key, value, "environment");
  }
  return v;
}

Status SettingValues::add_struct(std::string_view text) { return add_lines(text, "config.settings", kStruct); }

Status SettingValues::add_config(std::string_view lines, double deadline_s, double init_deadline_s) {
  RONDO_TRY(add_struct(lines));
  if (deadline_s > 0) set("timeout_s", fmt::format("{}", deadline_s), kStruct);
  if (init_deadline_s > 0) set("init_timeout_s", fmt::format("{}", init_deadline_s), kStruct);
  return {};
}

Status SettingValues::add_lines(std::string_view text, const std::string& name, const std::string& from) {
  RONDO_TRY_ASSIGN(const std::vector<ConfigEntry> entries, parse_config(text, name));
  for (const ConfigEntry& e : entries) {
    const std::string place = fmt::format("{}:{}", name, e.line);
    const SettingRow* row = find_setting(e.key);
    if (row == nullptr) {
      unknown_.push_back(fmt::format("{}: rondo has no setting {}{}", place, e.key, similar_setting(e.key, false)));
      continue;
    }
    if (row->where == SettingRow::Where::kProcess)
      return invalid_argument("{}: {} is a setting of the process: set {} in the environment", place, e.key,
                              variable_of(e.key));
    if (row->where == SettingRow::Where::kFile && from == kStruct)
      return invalid_argument(
          "{}: {} is needed before a communicator has a config: set {} in the environment, or {} in "
          "a configuration file",
          place, e.key, variable_of(e.key), e.key);
    RONDO_TRY(check_setting(*row, e.value, fmt::format("{}: {} = {}", place, e.key, row->shown(e.value))));
    set(e.key, e.value, from.empty() ? place : from);
  }
  return {};
}

void SettingValues::set(std::string_view key, std::string text, std::string from) {
  unset(key);
  values_.push_back({std::string(key), std::move(text), std::move(from)});
}

void SettingValues::unset(std::string_view key) {
  std::erase_if(values_, [&](const SettingValue& v) { return v.key == key; });
}

const SettingValue* SettingValues::find(std::string_view key) const {
  const auto v = std::find_if(values_.begin(), values_.end(), [&](const SettingValue& s) { return s.key == key; });
  return v != values_.end() ? &*v : nullptr;
}

std::vector<std::string> unknown_variables(char** environment) {
  std::vector<std::string> found;
  for (char** e = environment; *e != nullptr; ++e) {
    const std::string_view entry(*e), name = entry.substr(0, entry.find('='));
    if (!name.starts_with("RONDO_") || name.starts_with("RONDO_TEST_") || name.starts_with("RONDO_PERF_")) continue;
    std::string key;
    for (const char c : name.substr(6)) key.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
    if (find_setting(key) == nullptr || variable_of(key) != name)
      found.push_back(fmt::format("{} is set but rondo has no such variable{}", name, similar_setting(key, true)));
  }
  return found;
}

Expected<SettingFields> read_process_settings() {
  RONDO_TRY_ASSIGN(const SettingValues values, SettingValues::load());
  return values.fields();
}

}  // namespace rondo

#include "plan/calibration.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "algorithms/registry.h"
#include "base/error.h"
#include "base/forks.h"
#include "base/read_file.h"
#include "config/config_file.h"
#include "config/setting_table.h"
#include "plan/machine_file.h"

namespace rondo {
namespace {

template <class T>
std::optional<T> number(std::string_view s) {
  T value{};
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return value;
}

std::string spread_name(size_t term) { return fmt::format("spread.{}", kCostTerms[term].name); }
std::string oversubscribed_name(size_t term) { return fmt::format("crowded.{}", kCostTerms[term].name); }

constexpr std::string_view kForms[] = {"inline", "short", "long", "whole"}, kDirectForms[] = {"copied", "mapped"};

std::span<const std::string_view> forms_of(const Algorithm& a) {
  if (a.direct) return kDirectForms;
  return kForms;
}

std::optional<CostForm> form_named(const Algorithm* a, std::string_view name) {
  if (a == nullptr) return std::nullopt;
  const auto forms = forms_of(*a);
  const auto at = std::ranges::find(forms, name);
  if (at == forms.end()) return std::nullopt;
  return static_cast<CostForm>(at - forms.begin());
}

/// Reads a file line by line.
class Parser {
 public:
  Expected<Calibration> parse(std::string_view text) {
    for (size_t line = 1; !text.empty(); ++line) {
      const size_t end = text.find('\n');
      const std::string_view content = trim(text.substr(0, end));
      text = end == text.npos ? std::string_view() : text.substr(end + 1);
      if (content.empty() || content[0] == '#') continue;
      if (const Status s = take(content); !s.ok()) return make_error(s.code(), "line {}: {}", line, s.message());
      if (result_.version != kCalibrationVersion) return result_;
    }
    RONDO_TRY(complete());
    return result_;
  }

 private:
  Status take(std::string_view line) {
    const size_t equals = line.find('=');
    if (equals == line.npos) return invalid_argument("no '=': lines are \"name = value\"");
    const std::string_view name = trim(line.substr(0, equals)), value = trim(line.substr(equals + 1));
    if (names_.empty()) {
      const std::optional<int> version = number<int>(value);
      if (name != "rondo_calibration" || !version)
        return invalid_argument("a calibration begins with rondo_calibration = VERSION");
      result_.version = *version;
    }
    if (!names_.emplace(name).second) return invalid_argument("{} appears twice", name);
    if (names_.size() == 1) return {};
    if (name == "cpu") return take_text(name, value, result_.cpu);
    if (name == "date") return take_text(name, value, result_.date);
    if (name == "machine") return take_text(name, value, result_.machine);
    if (name == "near_bytes") return take_bytes(name, value, result_.costs.near_bytes);
    if (name == "huge_bytes") return take_bytes(name, value, result_.costs.huge_bytes);
    if (std::ranges::count(name, '.') == 3) return take_correction(name, value);
    for (size_t t = 0; t < kNumCostTerms; ++t) {
      if (name == spread_name(t)) return take_constant(name, value, result_.costs.spread[t]);
      if (name == oversubscribed_name(t)) return take_constant(name, value, result_.costs.oversubscribed[t]);
    }
    return invalid_argument("unknown constant \"{}\"", name);
  }

  static Status take_text(std::string_view name, std::string_view value, std::string& to) {
    if (value.empty()) return invalid_argument("{} has no value", name);
    to = value;
    return {};
  }
  static Status take_bytes(std::string_view name, std::string_view value, uint64_t& to) {
    const std::optional<uint64_t> bytes = number<uint64_t>(value);
    if (!bytes || *bytes == 0) return invalid_argument("{} is not a number of bytes above 0", name);
    to = *bytes;
    return {};
  }
  static Status take_constant(std::string_view name, std::string_view value, double& to) {
    const std::optional<double> ns = number<double>(value);
    if (!ns || !(*ns >= 0 && *ns <= 1e9))
      return invalid_argument("{} is not a number of nanoseconds from 0 to 10^9", name);
    to = *ns;
    return {};
  }

  Status take_correction(std::string_view name, std::string_view value) {
    std::string_view words[4], rest = name;
    for (std::string_view& word : words) {
      const size_t dot = rest.find('.');
      word = rest.substr(0, dot);
      rest = dot == rest.npos ? std::string_view() : rest.substr(dot + 1);
    }
    constexpr auto& kWorlds = CostCorrections::kWorldNames;
    const auto world = std::ranges::find(kWorlds, words[0]) - std::begin(kWorlds);
    const Algorithm* algorithm = nullptr;
    for (const Algorithm& a : all_algorithms())
      if (words[1] == collective_name(a.collective) && words[2] == a.name) algorithm = &a;
    if (world == std::ssize(kWorlds)) return invalid_argument("unknown constant \"{}\"", name);
    if (algorithm == nullptr) return {};  // from another build or a plugin
    const size_t row = algorithm_index(*algorithm);
    const std::optional<CostForm> form = form_named(algorithm, words[3]);
    if (row >= CostCorrections::kRows || !form) return invalid_argument("unknown candidate \"{}\"", name);
    for (int8_t& to : result_.corrections.sixteenths[world][row][static_cast<size_t>(*form)]) {
      const size_t space = value.find(' ');
      const std::optional<double> ratio = number<double>(value.substr(0, space));
      constexpr double kRounded = 1.01;  // tolerance for printed values
      if (!ratio || !(*ratio * kRounded >= 1 / CostCorrections::kMost && *ratio <= CostCorrections::kMost * kRounded))
        return invalid_argument("{} must have {} factors from 1/{:g} to {:g}", name, CostCorrections::kSizes,
                                CostCorrections::kMost, CostCorrections::kMost);
      to = CostCorrections::encode(*ratio);
      value = space == value.npos ? std::string_view() : trim(value.substr(space));
    }
    if (!value.empty()) return invalid_argument("{} has more than {} factors", name, CostCorrections::kSizes);
    result_.corrections.note_known(static_cast<size_t>(world), row, *form);
    return {};
  }

  Status complete() const {
    std::vector<std::string> required{"rondo_calibration", "cpu", "near_bytes", "huge_bytes"};
    // (Calls on one host do not use the terms between hosts: the built-in values replace missing ones.)
    for (size_t t = 0; t < static_cast<size_t>(kFirstHostTerm); ++t)
      required.insert(required.end(), {spread_name(t), oversubscribed_name(t)});
    for (const std::string& name : required)
      if (!names_.contains(name)) return invalid_argument("{} is missing", name);
    return {};
  }

  Calibration result_;
  std::set<std::string, std::less<>> names_;  // all that appeared
};

constexpr size_t kMostBytes = 256 * 1024;

}  // namespace

Expected<Calibration> parse_calibration(std::string_view text) { return Parser().parse(text); }

std::string format_calibration(const Calibration& c) {
  std::string text = fmt::format(
      "rondo_calibration = {}\ncpu = {}\ndate = {}\n{}near_bytes = {}\nhuge_bytes = {}\n# ns, or ns per byte "
      "(docs/planner.md)\n",
      c.version, c.cpu, c.date, c.machine.empty() ? "" : fmt::format("machine = {}\n", c.machine), c.costs.near_bytes,
      c.costs.huge_bytes);
  // Optional terms come first, so that a truncated file lacks a required one.
  constexpr auto kFirst = static_cast<size_t>(kFirstHostTerm);
  for (size_t k = 0, t = kFirst; k < kNumCostTerms; ++k, t = (kFirst + k) % kNumCostTerms)
    text += fmt::format("{} = {}\n{} = {}\n", spread_name(t), c.costs.spread[t], oversubscribed_name(t),
                        c.costs.oversubscribed[t]);
  for (size_t world = 0; world < CostCorrections::kWorlds; ++world) {
    for (size_t row = 0; row < std::min(CostCorrections::kRows, all_algorithms().size()); ++row) {
      const Algorithm& a = all_algorithms()[row];
      const auto forms = forms_of(a);
      for (size_t form = 0; form < forms.size(); ++form) {
        const auto& sixteenths = c.corrections.sixteenths[world][row][form];
        if (!c.corrections.knows(world, row, static_cast<CostForm>(form))) continue;
        text += fmt::format("{}.{}.{}.{} =", CostCorrections::kWorldNames[world], collective_name(a.collective), a.name,
                            forms[form]);
        for (const int8_t s : sixteenths) text += fmt::format(" {:.3g}", CostCorrections::decode(s));
        text += '\n';
      }
    }
  }
  return text;
}

void sign(Calibration& c) {
  c.cpu = processor_name();
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &parts));
  c.date = date;
}

std::string processor_name() {
  const std::string text = read_file("/proc/cpuinfo").value_or("");  // the first processor's entry is enough
  const size_t at = text.find("model name");
  if (at == text.npos) return "unknown processor";
  const size_t colon = text.find(':', at), end = text.find('\n', at);
  if (colon == text.npos || end == text.npos || colon > end) return "unknown processor";
  return std::string(trim(std::string_view(text).substr(colon + 1, end - colon - 1)));
}

std::string default_calibration_path() {
  if (const char* xdg = std::getenv("XDG_CONFIG_HOME"); xdg != nullptr && *xdg != '\0')
    return fmt::format("{}/rondo/calibration", xdg);
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return fmt::format("{}/.config/rondo/calibration", home);
  return "";
}

void report_once(const std::string& sentence) {
  struct Reported {
    std::mutex mutex;
    std::set<std::string> sentences;
  };
  auto& reported = of_this_process<Reported>();
  const std::lock_guard lock(reported.mutex);
  if (reported.sentences.insert(sentence).second) std::fprintf(stderr, "rondo: %s\n", sentence.c_str());
}

// Reads a calibration file. Nothing: it must not be used, and *why is the reason, or there is none at the default path.
static Expected<std::optional<CostsInForce>> read_calibration(const std::string& path, bool is_named,
                                                              std::string* why) {
  const std::optional<std::string> text = path.empty() ? std::nullopt : read_file(path, kMostBytes);
  if (!text && is_named)
    return invalid_argument(
        "RONDO_CALIBRATION={}: cannot read this file; `rondo calibrate -o FILE` makes one, `off` means the built-in "
        "constants",
        path);
  if (!text) return std::optional<CostsInForce>();
  const Expected<Calibration> c = parse_calibration(*text);
  if (!c.ok() && is_named) return invalid_argument("RONDO_CALIBRATION={}: {}", path, c.status().message());
  if (!c.ok()) *why = fmt::format("{} is malformed: {}", path, c.status().message());
  else if (c->version != kCalibrationVersion)
    *why = fmt::format("{} has version {} and this build reads version {}: run `rondo calibrate` again", path,
                       c->version, kCalibrationVersion);
  else if (c->cpu != processor_name())
    *why = fmt::format("{} was measured on \"{}\" and this is \"{}\": run `rondo calibrate` here", path, c->cpu,
                       processor_name());
  if (!why->empty()) return std::optional<CostsInForce>();
  return std::optional(CostsInForce{c->costs, c->corrections});
}

Expected<std::optional<CostsInForce>> calibrated_costs(std::string* from, bool report) {
  RONDO_TRY_ASSIGN(const SettingFields settings, read_process_settings());
  std::string why, source = "built in";
  std::optional<CostsInForce> found;
  if (settings.calibration == "off") {
    found = CostsInForce{};
  } else {
    const bool is_named = !settings.calibration.empty();
    const std::string path = is_named ? settings.calibration : default_calibration_path();
    RONDO_TRY_ASSIGN(found, read_calibration(path, is_named, &why));
    if (found) source = path;
    else if (!settings.probe) found = CostsInForce{};
  }
  if (!why.empty() && report) report_once(fmt::format("the planner does not use a file: {}", why));
  if (from != nullptr) *from = why.empty() ? source : fmt::format("{}, because {}", source, why);
  return found;
}

Expected<std::optional<CostsInForce>> known_costs(std::string* from) {
  RONDO_TRY_ASSIGN(std::optional<CostsInForce> found, calibrated_costs(from, false));
  if (found) return found;
  const std::string path = machine_file_path();
  const auto measured = read_machine_file(path);
  if (measured.ok() && *measured) {
    *from = path;
    return std::optional(CostsInForce{**measured, {}});
  }
  *from += "; the next communicator measures this machine";
  if (!measured.ok()) *from += fmt::format(", because {}", measured.status().message());
  return found;
}

}  // namespace rondo

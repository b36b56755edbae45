// libFuzzer: an environment, one NAME=value per line: the settings, and the launcher's variables.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "launch/launch.h"
#include "plan/settings.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace rondo;
  std::map<std::string, std::string> variables;
  for (std::string_view left(reinterpret_cast<const char*>(data), bytes); !left.empty();) {
    const size_t end = left.find('\n');
    const std::string line(left.substr(0, end));
    if (const size_t equals = line.find('='); equals != line.npos)
      variables[line.substr(0, equals)] = line.substr(equals + 1);
    left = end == left.npos ? std::string_view() : left.substr(end + 1);
  }
  const EnvLookup lookup = [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  const auto launch = launch_from_lookup(lookup, 77);
  if (!launch.ok() && launch.status().message().empty()) std::abort();
  if (launch.ok()) {
    if (launch->nranks < 1 || launch->rank < 0 || launch->rank >= launch->nranks || launch->how.empty()) std::abort();
    if (launch->local_rank < 0 || launch->local_nranks < 0 || launch->launcher.empty()) std::abort();
  }
  const auto no_files = [](const std::string&) -> Expected<std::optional<std::string>> { return {std::nullopt}; };
  auto values = SettingValues::load(lookup, no_files);
  if (!values.ok()) return 0;
  // The same text again as a caller's settings lines.
  if (const Status s = values->add_struct({reinterpret_cast<const char*>(data), bytes}); !s.ok() && s.message().empty())
    std::abort();
  const auto settings = settings_from(*values);
  if (!settings.ok()) std::abort();
  for (const double s : {settings->timeout_s, settings->init_timeout_s})
    if (!(s > 0) || !std::isfinite(s)) std::abort();
  return 0;
}

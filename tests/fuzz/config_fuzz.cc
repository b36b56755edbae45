// libFuzzer: a configuration file of any bytes, from the parser to the settings of a communicator.
#include <cstdlib>
#include <string_view>

#include "config/config_file.h"
#include "config/describe_settings.h"
#include "plan/settings.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace rondo;
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  if (const auto entries = parse_config(text, "fuzz"); !entries.ok() && entries.status().message().empty()) std::abort();
  const auto values = SettingValues::load(
      [](const char* name) -> const char* { return std::string_view(name) == "RONDO_CONFIG" ? "/fuzz" : nullptr; },
      [text](const std::string&) -> Expected<std::optional<std::string>> { return std::optional<std::string>(text); });
  if (!values.ok()) return 0;
  const auto settings = settings_from(*values);
  if (!settings.ok() || !(settings->timeout_s > 0) || !(settings->init_timeout_s > 0)) std::abort();
  if (describe_settings(*values).empty()) std::abort();
  return 0;
}

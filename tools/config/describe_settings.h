// The settings in force as a table, for `rondo info --config`. Pure function.
#pragma once

#include <string>

#include "config/setting_table.h"

namespace rondo {

/// Each setting, its value and the value's source. Secrets are not shown.
std::string describe_settings(const SettingValues& values);

}  // namespace rondo

#pragma once

#include <memory>
#include <vector>

#include "plan/settings.h"

namespace rondo::testing {

/// Copies the settings of each rank into the form that agree() reads.
inline AllSettings ranks_settings(const std::vector<Settings>& all) {
  AllSettings copies;
  for (const Settings& s : all) copies.push_back(std::make_shared<const Settings>(s));
  return copies;
}

}  // namespace rondo::testing

// The name of a row of the registry in the tests' output.
#pragma once

#include <string>

#include "rondo/algorithm.h"

namespace rondo {

inline std::string row_label(const Algorithm& a) {
  return std::string(a.name) + "_" + std::string(collective_name(a.collective));
}

}  // namespace rondo

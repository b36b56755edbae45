// Calibration: the planner's constants as measured by `rondo calibrate`, and their file.
//
//     rondo_calibration = 2                 version; other versions are reported and not used
//     cpu = Intel(R) Xeon(R) Processor      on another processor the file is reported and not used
//     date = 2026-11-21 13:00:00            for information
//     near_bytes = 1048576
//     huge_bytes = 50331648
//     spread.handover = 112.4               one line for each constant of cost_model.h, in nanoseconds, twice:
//     oversubscribed.handover = 655.0              one rank per core, and oversubscribed cores
//                                           (constants from kFirstHostTerm on are optional)
//     spread_2.reduce.ring.short = 1.1 ...  measured corrections of cost_corrections.h: a factor for each size
//
// Empty lines and lines that begin with # are ignored. Pure functions, except the last two.
#pragma once

#include <string>
#include <string_view>

#include "plan/cost_corrections.h"
#include "plan/cost_model.h"
#include "rondo/status.h"

namespace rondo {

inline constexpr int kCalibrationVersion = 2;

struct Calibration {
  int version = kCalibrationVersion;
  std::string cpu, date;
  CostModel costs = built_in_costs();
  CostCorrections corrections;
};

/// The constants, and corrections of forecasts made with them.
struct CostsInForce {
  CostModel costs = built_in_costs();
  CostCorrections corrections;
};

/// Errors: kInvalidArgument naming the line or the missing field. A version other than kCalibrationVersion is no error:
/// only the version, which must come first, is read from such a file.
Expected<Calibration> parse_calibration(std::string_view text);
std::string format_calibration(const Calibration& calibration);

/// The processor's name as written to the files.
std::string processor_name();
/// $XDG_CONFIG_HOME/rondo/calibration, or ~/.config/rondo/calibration; empty if neither variable is set.
std::string default_calibration_path();

/// This process's constants; `from` gets their source ("built in", a path, "built in, because ..."). RONDO_CALIBRATION:
/// a file, which must exist and be readable; `off`: built in; unset: the default file, if there is one. A file of
/// another version or machine is not used, nor is a malformed default file; both are reported on stderr if `report`.
/// Errors: kInvalidArgument naming the variable, the file and the line.
Expected<CostsInForce> costs_in_force(std::string* from, bool report);

}  // namespace rondo

// Calibration: the planner's constants as `rondo calibrate` measured them on a machine, and the small file that keeps
// them.
//
//     rondo_calibration = 2                 version; other versions are reported and not used
//     cpu = Intel(R) Xeon(R) Processor      on another processor the file is reported and not used
//     date = 2026-11-21 13:00:00            for people
//     near_bytes = 1048576
//     huge_bytes = 50331648
//     spread.handover = 112.4               one line for each constant of cost_model.h, in nanoseconds, twice:
//     crowded.handover = 655.0              ranks with a core each, and ranks that share cores
//                                           (those of kFirstHostTerm and behind it may be left out)
//     spread_2.reduce.ring.short = 1.1 ...  what of cost_corrections.h was measured: a factor for each of its sizes
//
// Empty lines and lines that begin with # count as nothing. Pure functions, but for the last two.
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

/// The constants, and what is to be corrected of forecasts made with them.
struct CostsInForce {
  CostModel costs = built_in_costs();
  CostCorrections corrections;
};

/// Errors: kInvalidArgument naming the line, or what is missing. A version other than kCalibrationVersion is no error:
/// of such a file only the version is read, and it must stand first.
Expected<Calibration> parse_calibration(std::string_view text);
std::string format_calibration(const Calibration& calibration);

/// The processor's name, as the files have it.
std::string processor_name();
/// $XDG_CONFIG_HOME/rondo/calibration, or ~/.config/rondo/calibration; empty where neither variable is set.
std::string default_calibration_path();

/// The constants in force for this process, and in `from` where they are from ("built in", a path, "built in, since
/// ..."). RONDO_CALIBRATION: a file, which must be there and be readable; `off`: built in; not set: the default file,
/// if there is one. A file of another version or machine is not used; neither is a malformed default file: both are
/// reported on stderr where `report`. Errors: kInvalidArgument naming the variable, the file and the line.
Expected<CostsInForce> costs_in_force(std::string* from, bool report);

}  // namespace rondo

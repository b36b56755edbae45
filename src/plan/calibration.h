// Calibration: the planner's constants as measured by `rondo calibrate`, and their file.
//
//     rondo_calibration = 5                 version; other versions are reported and not used
//     cpu = Intel(R) Xeon(R) Processor      on another processor the file is reported and not used
//     date = 2026-11-21 13:00:00            for information
//     machine = ...                         only in machine files (plan/machine_file.h)
//     near_bytes = 1048576
//     huge_bytes = 50331648
//     spread.handover = 112.4               a constant of cost_model.h for one rank per core, in ns or ns/byte
//     crowded.handover = 655.0              the same constant for oversubscribed cores
//                                           (constants from kFirstHostTerm on are optional)
//     spread_2.reduce.ring.short = 1.1 ...  measured corrections of cost_corrections.h: a factor for each size
//
// Empty lines and lines that begin with # are ignored. parse_calibration and format_calibration are pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "plan/cost_corrections.h"
#include "plan/cost_model.h"
#include "rondo/status.h"

namespace rondo {

inline constexpr int kCalibrationVersion = 5;

struct Calibration {
  int version = kCalibrationVersion;
  std::string cpu, date, machine;
  CostModel costs = built_in_costs();
  CostCorrections corrections;
};

/// The constants that the planner uses, and the corrections of forecasts that were made with these constants.
struct CostsInForce {
  CostModel costs = built_in_costs();
  CostCorrections corrections;
};

/// Parses the text of a calibration file. Errors: kInvalidArgument naming the line or the missing field. Another
/// version than kCalibrationVersion is no error. From such a file it reads only the version, which must come first.
Expected<Calibration> parse_calibration(std::string_view text);
std::string format_calibration(const Calibration& calibration);
/// Sets the processor and the date.
void sign(Calibration& calibration);

/// Returns the processor's name as calibration files contain it.
std::string processor_name();
/// Returns $XDG_CONFIG_HOME/rondo/calibration, or else $HOME/.config/rondo/calibration, or an empty text if neither
/// variable is set.
std::string default_calibration_path();

/// Returns the constants of this process. Returns nothing if they come from a machine file or a measurement
/// (api/machine_probe.h). `from` gets their source ("built in", a path; and why another file is not used).
/// RONDO_CALIBRATION names a file, which must exist and be readable. If it is `off`, the constants are built in. If it
/// is not set, they come from the default file, or else, with RONDO_PROBE=off, they are built in. A file of another
/// version or processor is not used, and neither is a malformed default file. Both are reported on stderr, once in a
/// process, if `report` is true. Errors: kInvalidArgument naming the variable, the file and the line.
Expected<std::optional<CostsInForce>> calibrated_costs(std::string* from, bool report);
/// The same, or those of the machine file. Returns nothing if a communicator would measure them.
Expected<std::optional<CostsInForce>> known_costs(std::string* from);
/// Prints "rondo: <sentence>" on stderr, each sentence once in a process.
void report_once(const std::string& sentence);

}  // namespace rondo

// What the ways of `rondo calibrate` share: those of one host (cmd_calibrate.cc) and of several (calibrate_network.cc).
#pragma once

#include <string>

#include "plan/calibration.h"

namespace rondo::tools {

/// Says why and ends the program with status 1.
[[noreturn]] void fail_calibrate(const std::string& message);

/// Dates it, names the processor, puts it there whole, and says so.
void write_calibration(const std::string& path, Calibration calibration);

/// Of every rank of a launcher's job on several hosts. Times every candidate of a few calls and fits the constants that
/// count between hosts; the others are those of the file, if it is there, else the built-in ones. Rank 0 writes. The
/// program's status. force: writes whatever why_unfit says.
int calibrate_network(const std::string& path, bool force);

}  // namespace rondo::tools

// Shared by the two modes of `rondo calibrate`: one host (cmd_calibrate.cc) and several (calibrate_network.cc).
#pragma once

#include <string>

#include "plan/calibration.h"

namespace rondo::tools {

/// Prints the message and exits with status 1.
[[noreturn]] void fail_calibrate(const std::string& message);

/// Adds date and processor, writes the whole file, and prints its path.
void write_calibration(const std::string& path, Calibration calibration);

/// Runs on every rank of a launcher's job on several hosts. Times every candidate of a few calls and fits the constants
/// for traffic between hosts. The other constants come from the file if it exists, else they are the built-in ones.
/// Rank 0 writes the file. Returns the exit status. force: write even if why_unfit refuses.
int calibrate_network(const std::string& path, bool force);

}  // namespace rondo::tools

// Flags of nccl-tests for which `rondo perf` has no use. They are taken, so that command lines written for nccl-tests
// run, and answered: what the flag does there, and why not here. A flag that would measure something else is refused.
//
// Thread safety: belongs to the command line.
#pragma once

#include <string>
#include <vector>

#include "commands.h"

namespace rondo::tools {

class NcclFlags {
 public:
  NcclFlags();
  void add_to(CLI::App& command);
  /// One line for each flag that was given a value other than 0.
  std::vector<std::string> answers() const;
  /// Why the command line cannot be run; empty when it can.
  std::string refusal() const;

 private:
  std::vector<int> values_;  // by rows of the table
};

}  // namespace rondo::tools

// nccl-tests' flags that `rondo perf` does not support. They are accepted, so that command lines for nccl-tests run.
// For each, `rondo perf` prints its effect there and the reason why it has none here. A flag that would change the
// measurement is refused. Thread safety: used by the command line only.
#pragma once

#include <string>
#include <vector>

#include "commands.h"

namespace rondo::tools {

class NcclFlags {
 public:
  NcclFlags();
  void add_to(CLI::App& command);
  /// One line for each flag with a value other than 0.
  std::vector<std::string> answers() const;
  /// The reason why the command line cannot run, or an empty string.
  std::string refusal() const;

 private:
  std::vector<int> values_;  // by row of the table
};

}  // namespace rondo::tools

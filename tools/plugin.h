// Loads algorithms from shared objects: --plugin FILE.so.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace rondo::tools {

/// The --plugin option of one command. The command must call `load` first.
class Plugins {
 public:
  void add_to(CLI::App& command);
  /// Opens each file and registers its algorithms, without a proof if `unproven`. On failure prints the reason on
  /// stderr and throws exit status 2.
  void load(std::string_view command, bool unproven = false) const;

 private:
  std::vector<std::string> files_;
};

}  // namespace rondo::tools

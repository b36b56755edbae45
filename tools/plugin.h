// Algorithms from outside of the library on the command line: --plugin FILE.so, or RONDO_PLUGIN.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace rondo::tools {

/// The option of one command; `load` is the first thing that the command does.
class Plugins {
 public:
  void add_to(CLI::App& command);
  /// Opens each file and lets it register its algorithms, without a proof if `unproven`. Says on stderr what fails and
  /// throws exit status 2.
  void load(std::string_view command, bool unproven = false) const;

 private:
  std::vector<std::string> files_;
};

}  // namespace rondo::tools

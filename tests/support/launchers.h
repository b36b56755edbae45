// The launchers of both MPIs, which may be installed together: presence, command lines, output.
#pragma once

#include <stdio.h>

#include <cstdlib>
#include <ostream>
#include <string>

namespace rondo::testing {

/// True if the shell finds the program.
inline bool installed(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
}

struct Launched {
  int exit_status = -1;
  std::string output;  // of both streams
};

/// Runs a shell command to its end.
inline Launched run_command(const std::string& command) {
  Launched result;
  FILE* pipe = ::popen(("(" + command + ") 2>&1").c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  while (const size_t n = ::fread(buffer, 1, sizeof(buffer), pipe)) result.output.append(buffer, n);
  result.exit_status = ::pclose(pipe);
  return result;
}

struct MpiLauncher {
  std::string name;        // as rondo calls it
  std::string short_name;  // suffix of Debian's files
  std::string program;     // the specific name: `mpirun` may belong to either
  std::string ranks(int nranks) const {
    return program + " -n " + std::to_string(nranks) +
           (short_name == "openmpi" ? " --allow-run-as-root --oversubscribe" : "");
  }
  friend void PrintTo(const MpiLauncher& mpi, std::ostream* out) { *out << mpi.name; }
};
inline const MpiLauncher kOpenMpi = {"Open MPI", "openmpi", "mpirun.openmpi"};
inline const MpiLauncher kMpich = {"MPICH", "mpich", "mpiexec.hydra"};

}  // namespace rondo::testing

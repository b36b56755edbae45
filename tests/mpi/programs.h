// The programs that mpi.cmake has built for each MPI, and the reason if there are none.
#pragma once

#include <string>

#include "support/launchers.h"

namespace rondo::testing {

inline std::string mpi_program(const std::string& name, const MpiLauncher& mpi) {
  return std::string(RONDO_MPI_PROGRAMS) + "/" + name + "_" + mpi.short_name;
}

/// Empty if programs of this MPI can run.
inline std::string why_no_programs(const MpiLauncher& mpi) {
  if (!installed(mpi.program)) return mpi.name + "'s " + mpi.program + " is not installed";
  const std::string why = mpi.short_name == "mpich" ? RONDO_WHY_NO_MPICH : RONDO_WHY_NO_OPENMPI;
  return why.empty() ? why : "no programs of " + mpi.name + " were built: " + why;
}

}  // namespace rondo::testing

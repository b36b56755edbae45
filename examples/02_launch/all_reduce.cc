// One program for every launcher: rank, number of ranks and meeting place come from the environment set by mpirun,
// mpiexec, srun or torchrun. It needs no MPI.
#include "report.h"

int main() {
  auto comm = rondo::Communicator::init_env();
  if (!comm.ok()) return fail(comm.status());
  const rondo::Status status = report(**comm);
  return status.ok() ? 0 : fail(status);
}

// An MPI program that makes rondo communicators from MPI's: one of the world, and one of the ranks of each host.
#include <rondo/mpi.h>

#include "report.h"

namespace {

// Makes a communicator of the ranks that share memory according to MPI.
rondo::Status sum_on_host(MPI_Comm world) {
  int rank = 0;
  MPI_Comm_rank(world, &rank);
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
  auto made = rondo::mpi::make_communicator(host);
  MPI_Comm_free(&host);  // rondo no longer needs it
  if (!made.ok()) return made.status();
  rondo::Communicator& comm = **made;
  int ranks_here = 1;
  RONDO_TRY(comm.all_reduce(&ranks_here, &ranks_here, 1, rondo::Dtype::kInt32, rondo::Op::kSum));
  if (comm.rank() == 0) std::printf("host of rank %d: %d ranks\n", rank, ranks_here);
  return {};
}

rondo::Status run() {
  RONDO_TRY_ASSIGN(const auto comm, rondo::mpi::make_communicator(MPI_COMM_WORLD));
  RONDO_TRY(report(*comm));
  return sum_on_host(MPI_COMM_WORLD);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const rondo::Status status = run();
  if (!status.ok()) {
    fail(status);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}

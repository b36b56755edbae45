// Launch: reads this process's rank, the number of ranks and their meeting point from a launcher's environment.
//
// The launchers are tried in this order. The first whose rank is set is used (of rondo: any of the three). PMI_RANK
// beside SLURM_PROCID counts as MPICH's only with MPI_LOCALNRANKS. If it is incomplete, the error names the missing
// variables:
//
//   rondo     RONDO_RANK, RONDO_NRANKS, RONDO_UNIQUE_ID (256 hex digits)        the id itself
//   torchrun  RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT                       the agent's TCPStore, or a derived id
//   Open MPI  OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE            one host: Unix socket; else derived id
//   MPICH     PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS             same as Open MPI
//   Slurm     SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_JOB_ID  same as Open MPI
//
// A process with none of these variables is a single rank. With RONDO_STORE ranks of any launcher meet through a file
// (launch/file_store.h). A derived id contains an address that all ranks know (MASTER_ADDR and a port) and a secret
// from RONDO_SECRET or, less secure, from the job's name. See docs/launch.md.
// Thread safety: reads the environment; everything else is free of shared state.
#pragma once

#include <memory>
#include <string>

#include "bootstrap/bootstrap.h"
#include "config/setting_table.h"
#include "rondo/rondo.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

struct LaunchInfo {
  enum class Meeting : uint8_t {
    kUniqueId,     // unique_id is complete
    kTorchStore,   // rank 0 publishes its id in the TCPStore at master_addr:master_port, under `job`
    kLocalSocket,  // rank 0 passes its id over an abstract Unix socket named by `job`
    kFileStore,    // rank 0 writes its id to a file in `directory`, named by `job`
    kAlone,        // a single rank without a launcher
    kDerivedId,    // rank 0 listens at master_addr:master_port; the id's secret comes from `secret`
  };
  Rank rank = 0;
  int nranks = 0;
  int local_rank = 0;
  int local_nranks = 0;   // 0: unknown
  std::string launcher;   // "torchrun", "Open MPI", "MPICH", "Slurm", "rondo"; "none"
  Meeting meeting = Meeting::kUniqueId;
  std::string job;        // identifies this run of this launcher on its hosts
  std::string directory;
  std::string master_addr;
  uint16_t master_port = 0;
  std::string secret;     // input of the derived id's secret
  rondo_unique_id unique_id = {};
  std::string how;        // a sentence: the deciding variables and the meeting point
};

/// Finds the launch. A pure function: all input comes from `lookup` and `launcher_pid`, which identifies an MPICH job
/// on its host. Errors: kInvalidArgument, naming the missing or wrong variables.
Expected<LaunchInfo> launch_from_lookup(const EnvLookup& lookup, int launcher_pid);
/// Finds the launch from this process's environment.
Expected<LaunchInfo> launch_from_environment();

/// Collective. Calls launch_from_environment and join_launch. Errors: those of Bootstrap::join. May be called
/// several times in a row, in the same order on all ranks.
Expected<std::unique_ptr<Bootstrap>> join_from_environment(const BootstrapOptions& options = {});
/// Collective. Meets the other ranks and joins.
Expected<std::unique_ptr<Bootstrap>> join_launch(const LaunchInfo& info, const BootstrapOptions& options = {});

/// Implements Communicator::unique_id_at.
Expected<rondo_unique_id> unique_id_at(const std::string& host_port, const std::string& secret, bool open);

/// Converts the 128 bytes to 256 lower-case hex digits for RONDO_UNIQUE_ID, and back (kInvalidArgument).
std::string unique_id_to_hex(const rondo_unique_id& id);
Expected<rondo_unique_id> unique_id_from_hex(const std::string& hex);

}  // namespace rondo

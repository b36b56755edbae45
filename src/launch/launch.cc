#include "launch/launch.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "base/error.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/unique_id.h"
#include "launch/file_store.h"

namespace rondo {
namespace {

// Reads variables and collects their errors, so that one message names all of them.
class Environment {
 public:
  explicit Environment(const EnvLookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> text(const char* name) const {
    const char* value = lookup_(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  }
  bool has(const char* name) const { return text(name).has_value(); }
  std::string need_text(const char* name, std::string_view advice = "") {
    auto value = text(name);
    if (!value) complain(fmt::format("{} is not set{}", name, advice));
    return value.value_or("");
  }
  int need_number(const char* name, int least, int most) {
    const auto value = text(name);
    if (!value) return complain(fmt::format("{} is not set", name)), least;
    return number(name, *value, least, most);
  }
  int number_or(const char* name, int fallback, int least, int most) {
    const auto value = text(name);
    return value ? number(name, *value, least, most) : fallback;
  }
  void complain(std::string what) { problems_ += (problems_.empty() ? "" : ", ") + what; }
  Status status(std::string_view launcher) const {
    if (problems_.empty()) return {};
    return invalid_argument(
        "the environment looks like {}'s, but {}; set the missing variables, or unset the others for a single rank",
        launcher, problems_);
  }

 private:
  int number(const char* name, const std::string& value, int least, int most) {
    int n = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
    if (error == std::errc() && end == value.data() + value.size() && n >= least && n <= most) return n;
    complain(fmt::format("{}='{}' is not a number from {} to {}", name, value, least, most));
    return least;
  }

  const EnvLookup& lookup_;
  std::string problems_;
};

constexpr int kMaxPort = 65535;

void read_rank(Environment* env, const char* rank_name, const char* nranks_name, LaunchInfo* info) {
  info->nranks = env->need_number(nranks_name, 1, kMaxRanks);
  info->rank = env->need_number(rank_name, 0, kMaxRanks - 1);
  if (info->rank >= info->nranks)
    env->complain(fmt::format("{}={} is not below {}={}", rank_name, info->rank, nranks_name, info->nranks));
}

// Returns RONDO_PORT, or the port after MASTER_PORT (torch's store may use MASTER_PORT), or a port derived from the
// job.
uint16_t derived_port(Environment* env, const LaunchInfo& info) {
  if (env->has("RONDO_PORT")) return static_cast<uint16_t>(env->need_number("RONDO_PORT", 1, kMaxPort));
  if (const int master = env->number_or("MASTER_PORT", 0, 1, kMaxPort); master > 0)
    return static_cast<uint16_t>(master < kMaxPort ? master + 1 : master - 1);
  return static_cast<uint16_t>(20000 + fnv1a(info.job) % 10000);
}

// Returns true if RONDO_STORE defines the meeting point. Then no other variable is needed.
bool meet_at_store(Environment* env, LaunchInfo* info) {
  const auto url = env->text("RONDO_STORE");
  if (!url) return false;
  auto directory = store_directory(*url);
  if (!directory.ok()) env->complain(std::string(directory.status().message()));
  info->meeting = LaunchInfo::Meeting::kFileStore;
  if (const auto job = env->text("RONDO_JOB_ID")) info->job = info->launcher + " " + *job;
  info->directory = directory.ok() ? *directory : "";
  info->how = fmt::format("{}: rank 0 puts its id into a file in {} (RONDO_STORE), named by '{}'", info->launcher,
                          info->directory, info->job);
  return true;
}

void meet_at_master(Environment* env, LaunchInfo* info) {
  info->meeting = LaunchInfo::Meeting::kDerivedId;
  info->master_addr = env->need_text(
      "MASTER_ADDR", info->launcher == "Slurm"
                         ? " (the host of rank 0: $(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1))"
                         : " (the host of rank 0)");
  info->master_port = derived_port(env, *info);
  const auto secret = env->text("RONDO_SECRET");
  info->secret = secret ? "user " + *secret : fmt::format("job {} {}", info->job, info->nranks);
  info->how = fmt::format("{}: rank 0 listens at {}:{}, secret from {}", info->launcher, info->master_addr,
                          info->master_port, secret ? "RONDO_SECRET" : "the job's name (RONDO_SECRET is not set)");
}

// For mpirun and srun: ranks of one host meet at an abstract socket. Ranks of several hosts need an address.
void meet_by_job(Environment* env, bool one_host, LaunchInfo* info) {
  if (meet_at_store(env, info)) return;
  if (const auto job = env->text("RONDO_JOB_ID")) info->job = info->launcher + " " + *job;
  if (!one_host) return meet_at_master(env, info);
  info->meeting = LaunchInfo::Meeting::kLocalSocket;
  info->how = fmt::format("{}: {} ranks on one host meet at an abstract socket named by '{}'", info->launcher,
                          info->nranks, info->job);
}

Status from_rondo(Environment* env, LaunchInfo* info) {
  info->launcher = "rondo";
  read_rank(env, "RONDO_RANK", "RONDO_NRANKS", info);
  info->local_rank = env->number_or("RONDO_LOCAL_RANK", info->rank, 0, kMaxRanks);
  info->job = "rondo";
  if (!env->has("RONDO_UNIQUE_ID") && meet_at_store(env, info)) return env->status("rondo's own launcher");
  const std::string hex = env->need_text("RONDO_UNIQUE_ID");
  info->how = "rondo: RONDO_UNIQUE_ID holds the unique id";
  RONDO_TRY(env->status("rondo's own launcher"));
  RONDO_TRY_ASSIGN(info->unique_id, unique_id_from_hex(hex));
  return {};
}

Status from_torchrun(Environment* env, LaunchInfo* info) {
  info->launcher = "torchrun";
  read_rank(env, "RANK", "WORLD_SIZE", info);
  info->local_rank = env->number_or("LOCAL_RANK", 0, 0, kMaxRanks);
  info->local_nranks = env->number_or("LOCAL_WORLD_SIZE", 0, 1, kMaxRanks);
  info->job = fmt::format("torchrun {} {}", env->text("TORCHELASTIC_RUN_ID").value_or("none"),
                          env->text("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  if (meet_at_store(env, info)) return env->status("torchrun");
  if (env->text("TORCHELASTIC_USE_AGENT_STORE") == "True" && !env->has("RONDO_PORT")) {
    info->meeting = LaunchInfo::Meeting::kTorchStore;
    info->master_addr = env->need_text("MASTER_ADDR");
    info->master_port = static_cast<uint16_t>(env->need_number("MASTER_PORT", 1, kMaxPort));
    info->how = fmt::format("torchrun: rank 0 publishes its id in the agent's store at {}:{}", info->master_addr,
                            info->master_port);
  } else {
    if (!env->has("RONDO_PORT")) env->need_number("MASTER_PORT", 1, kMaxPort);
    meet_at_master(env, info);
  }
  return env->status("torchrun");
}

Status from_open_mpi(Environment* env, LaunchInfo* info) {
  info->launcher = "Open MPI";
  read_rank(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", info);
  info->local_rank = env->number_or("OMPI_COMM_WORLD_LOCAL_RANK", 0, 0, kMaxRanks);
  info->local_nranks = env->number_or("OMPI_COMM_WORLD_LOCAL_SIZE", 0, 1, kMaxRanks);
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})
    if (info->job.empty() && env->has(name)) info->job = "Open MPI " + *env->text(name);
  if (info->job.empty() && !env->has("RONDO_JOB_ID"))
    env->complain("none of PMIX_NAMESPACE, OMPI_MCA_ess_base_jobid and RONDO_JOB_ID is set");
  meet_by_job(env, info->local_nranks == info->nranks, info);
  return env->status("Open MPI's mpirun");
}

Status from_mpich(Environment* env, int launcher_pid, LaunchInfo* info) {
  info->launcher = "MPICH";
  read_rank(env, "PMI_RANK", "PMI_SIZE", info);
  info->local_rank = env->number_or("MPI_LOCALRANKID", 0, 0, kMaxRanks);
  info->local_nranks = env->number_or("MPI_LOCALNRANKS", 0, 1, kMaxRanks);
  const bool one_host = info->local_nranks == info->nranks;
  // Hydra provides no job name. On one host the id of its proxy, the common ancestor, serves as one.
  info->job = one_host ? fmt::format("MPICH {}", launcher_pid) : "MPICH";
  meet_by_job(env, one_host, info);
  if (!one_host && !env->has("RONDO_STORE") && !env->has("RONDO_SECRET") && !env->has("RONDO_JOB_ID"))
    env->complain("across hosts MPICH names no job: RONDO_SECRET (or RONDO_JOB_ID) is not set");
  return env->status("MPICH's mpiexec");
}

Status from_slurm(Environment* env, LaunchInfo* info) {
  info->launcher = "Slurm";
  const char* nranks_name = env->has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  read_rank(env, "SLURM_PROCID", nranks_name, info);
  info->local_rank = env->number_or("SLURM_LOCALID", 0, 0, kMaxRanks);
  const std::string job = env->need_text("SLURM_JOB_ID");
  // sbatch sets SLURM_PROCID for the script itself. Only srun's steps have a step id.
  const std::string step = env->need_text("SLURM_STEP_ID", " (start the program with srun)");
  info->job = fmt::format("Slurm {}.{}", job, step);
  const char* nodes_name = env->has("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
  const bool one_host = env->number_or(nodes_name, 0, 1, kMaxRanks) == 1;
  if (one_host) info->local_nranks = info->nranks;
  meet_by_job(env, one_host, info);
  return env->status("a Slurm job");
}

Status find_launch(Environment* env, int launcher_pid, LaunchInfo* info) {
  if (env->has("RONDO_RANK") || env->has("RONDO_NRANKS") || env->has("RONDO_UNIQUE_ID")) return from_rondo(env, info);
  if (env->has("RANK")) return from_torchrun(env, info);
  if (env->has("OMPI_COMM_WORLD_RANK")) return from_open_mpi(env, info);
  if (env->has("PMI_RANK") && (env->has("MPI_LOCALNRANKS") || !env->has("SLURM_PROCID")))
    return from_mpich(env, launcher_pid, info);
  if (env->has("SLURM_PROCID")) return from_slurm(env, info);
  // No launcher has set a rank. If any other launcher variable is set, the error names the missing ones.
  if (env->has("PMIX_RANK"))  // PMIx puts a rank's number into the environment, but not the number of ranks
    return Status(
        StatusCode::kInvalidArgument,
        "PMIX_RANK is set, but no variable with the number of ranks: start the program with mpirun instead of "
        "prterun or prun, or make the communicator from an MPI_Comm (rondo/mpi.h)");
  if (env->has("OMPI_COMM_WORLD_SIZE")) return from_open_mpi(env, info);
  if (env->has("PMI_SIZE")) return from_mpich(env, launcher_pid, info);
  if (env->has("SLURM_JOB_ID")) return from_slurm(env, info);
  for (const char* name : {"WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    if (env->has(name)) return from_torchrun(env, info);
  if (env->has("RONDO_LOCAL_RANK")) return from_rondo(env, info);
  info->nranks = info->local_nranks = 1;
  info->launcher = info->job = "none";
  info->meeting = LaunchInfo::Meeting::kAlone;
  info->how = "no launcher's variables are set: a single rank";
  return {};
}

}  // namespace

Expected<LaunchInfo> launch_from_lookup(const EnvLookup& lookup, int launcher_pid) {
  Environment env(lookup);
  LaunchInfo info;
  RONDO_TRY(find_launch(&env, launcher_pid, &info));
  return info;
}

std::string unique_id_to_hex(const rondo_unique_id& id) {
  std::string hex;
  for (const char c : id.bytes) hex += fmt::format("{:02x}", static_cast<uint8_t>(c));
  return hex;
}

Expected<rondo_unique_id> unique_id_from_hex(const std::string& hex) {
  rondo_unique_id id = {};
  bool good = hex.size() == 2 * sizeof(id.bytes);
  for (size_t i = 0; good && i < sizeof(id.bytes); ++i) {
    uint8_t byte = 0;
    const char* const digits = hex.data() + 2 * i;
    const auto [end, error] = std::from_chars(digits, digits + 2, byte, 16);
    good = error == std::errc() && end == digits + 2;
    id.bytes[i] = static_cast<char>(byte);
  }
  if (!good)
    return invalid_argument(
        "RONDO_UNIQUE_ID has {} characters, or characters other than hex digits; it must have {} hex digits",
        hex.size(), 2 * sizeof(id.bytes));
  return id;
}

}  // namespace rondo

#include "ranks.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace plain {
namespace {

using rondo::Communicator;
using rondo::Config;
using rondo::Expected;
using rondo::Status;
using rondo::StatusCode;
using rondo::UniqueId;

// Deadlines for a hanging rank. A lost rank is detected at once.
const Config kConfig = {.deadline_s = 60, .init_deadline_s = 30};

Status failed(const char* what) { return {StatusCode::kSystem, std::string(what) + ": " + std::strerror(errno)}; }

// Runs in a child. Reads the id from the pipe (128 bytes are written and read at once).
Expected<Ranks> join_parent(int nranks, int rank, int read_end) {
  UniqueId id;
  const ssize_t got = ::read(read_end, &id, sizeof(id));
  ::close(read_end);
  if (got != sizeof(id)) return failed("no unique id from rank 0");
  RONDO_TRY_ASSIGN(auto comm, Communicator::init_rank(nranks, id, rank, kConfig));
  return Ranks{std::move(comm), {}};
}

// Rank 0 makes the id after the forks, because that starts a thread.
Expected<Ranks> join_as_parent(int nranks, int write_end, std::vector<pid_t> children) {
  const auto id = Communicator::make_unique_id();
  bool told = id.ok();
  for (size_t i = 0; i < children.size() && told; ++i) told = ::write(write_end, &*id, sizeof(*id)) == sizeof(*id);
  if (!told) return id.ok() ? failed("cannot send the unique id") : id.status();
  RONDO_TRY_ASSIGN(auto comm, Communicator::init_rank(nranks, *id, 0, kConfig));
  return Ranks{std::move(comm), std::move(children)};
}

}  // namespace

Expected<Ranks> start_ranks(int nranks) {
  if (nranks == 0) {
    RONDO_TRY_ASSIGN(auto comm, Communicator::init_env(kConfig));
    return Ranks{std::move(comm), {}};
  }
  int ends[2];
  if (::pipe(ends) != 0) return failed("pipe");
  const pid_t parent = ::getpid();
  std::vector<pid_t> children;
  for (int rank = 1; rank < nranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid < 0) {  // the children so far see the end of the pipe and exit
      const Status status = failed("fork");
      ::close(ends[0]), ::close(ends[1]);
      return status;
    }
    if (pid == 0) {
      ::close(ends[1]);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      return join_parent(nranks, rank, ends[0]);
    }
    children.push_back(pid);
  }
  auto ranks = join_as_parent(nranks, ends[1], std::move(children));
  ::close(ends[0]), ::close(ends[1]);
  return ranks;
}

bool join_ranks(const Ranks& ranks) {
  bool all_well = true;
  for (const pid_t pid : ranks.children) {
    int status = 0;
    if (::waitpid(pid, &status, 0) != pid || status != 0) all_well = false;
  }
  return all_well;
}

}  // namespace plain

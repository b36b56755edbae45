#include "ranks.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

namespace rondo::bench {

namespace {

// Sleeps while the word has the value, at most 50 ms. A rank that yielded instead would take CPU time from the others.
void sleep_while(const std::atomic<uint32_t>& word, uint32_t value) {
  const timespec most{0, 50'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &most, nullptr, 0);
}
void wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, kMaxRanks, nullptr, nullptr, 0);
}

}  // namespace

double now_ms() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

void Crew::need(const Status& status) {
  if (status.ok()) return;
  shared_.failed = 1;
  std::fprintf(stderr, "%s: rank %d of %d: %s\n", program_invocation_short_name, rank_, nranks_,
               status.to_string().c_str());
  std::exit(1);
}

void Crew::line_up() {
  const double end_ms = now_ms() + kDeadlineS * 1e3;
  const uint32_t turn = shared_.turns;
  if (shared_.arrived.fetch_add(1) + 1 == static_cast<uint32_t>(nranks_)) {
    shared_.arrived = 0;
    shared_.start_ms = now_ms();
    shared_.turns.fetch_add(1);
    wake_all(shared_.turns);
    return;
  }
  while (shared_.turns == turn) {
    sleep_while(shared_.turns, turn);
    if (shared_.failed != 0 || now_ms() > end_ms)
      need(Status(StatusCode::kTimeout, "another rank failed, or did not come to the barrier"));
  }
}

const UniqueId& Crew::agree_on_id() {
  ++ids_seen_;
  if (rank_ == 0) {
    auto id = Communicator::make_unique_id();
    need(id.status());
    shared_.id = *id;
    shared_.ids_made.fetch_add(1);
    wake_all(shared_.ids_made);
  }
  const double end_ms = now_ms() + kDeadlineS * 1e3;
  for (uint32_t made; (made = shared_.ids_made) != ids_seen_;) {
    sleep_while(shared_.ids_made, made);
    if (shared_.failed != 0 || now_ms() > end_ms) need(Status(StatusCode::kTimeout, "rank 0 made no id"));
  }
  return shared_.id;
}

std::unique_ptr<Communicator> Crew::make_communicator() {
  auto comm = Communicator::init_rank(nranks_, agree_on_id(), rank_);
  need(comm.status());
  return std::move(*comm);
}

bool run_ranks(int nranks, Shared* result, const std::function<void(Crew&)>& body) {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  auto* shared = new (memory) Shared{};
  const pid_t parent = getpid();
  std::vector<pid_t> children;
  for (int r = 0; r < nranks; ++r) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      Crew crew(*shared, r, nranks);
      body(crew);
      std::fflush(nullptr);
      _exit(0);
    }
    if (pid < 0) shared->failed = 1;
    children.push_back(pid);
  }
  bool good = true;
  for (const pid_t pid : children) {
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
      good = false;
      shared->failed = 1;
    }
  }
  std::memcpy(static_cast<void*>(result), memory, sizeof(Shared));
  munmap(memory, sizeof(Shared));
  return good;
}

}  // namespace rondo::bench

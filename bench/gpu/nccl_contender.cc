// nccl_contender LIBRARY NRANKS [BYTES...]: all-reduce, all-gather and reduce-scatter of float through a libnccl.so.2,
// NRANKS processes on device 0. Run it once with rondo's library and once with NVIDIA's; everything else is the same.
//
// For each size it verifies one call, warms up with a burst, then times bursts of calls on the host around a
// synchronised stream. Rank 0 prints one JSON object a line: microseconds a call on the slowest rank; median, least and
// most of the bursts. Status 77 without a device. A run ends after 120 s at the latest.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "device/driver/handles.h"

namespace {

using namespace rondo;  // NOLINT: one file

struct Id {
  char bytes[128];
};
struct Nccl {
  int (*get_unique_id)(Id*);
  int (*init)(void** comm, int nranks, Id id, int rank);
  int (*all_reduce)(const void*, void*, size_t, int type, int op, void* comm, void* stream);
  int (*all_gather)(const void*, void*, size_t, int type, void* comm, void* stream);
  int (*reduce_scatter)(const void*, void*, size_t, int type, int op, void* comm, void* stream);
  int (*destroy)(void* comm);
  const char* (*last_error)(void* comm);
};

// Shared by the processes.
struct Shared {
  Id id;
  std::atomic<int> id_ready, arrived, round;
  std::atomic<double> slowest;
};

[[noreturn]] void fail(int rank, const std::string& what) {
  std::fprintf(stderr, "nccl_contender: rank %d: %s\n", rank, what.c_str());
  std::_Exit(1);
}

void meet(Shared& s, int nranks) {
  const int round = s.round.load();
  if (s.arrived.fetch_add(1) + 1 == nranks) {
    s.arrived.store(0);
    s.round.fetch_add(1);
  } else {
    while (s.round.load() == round) usleep(20);
  }
}

int run_rank(const char* library, int rank, int nranks, const std::vector<size_t>& sizes, Shared& shared) {
  alarm(120);
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail(rank, dlerror());
  Nccl nccl{};
  auto find = [&](auto& f, const char* name) {
    f = reinterpret_cast<std::decay_t<decltype(f)>>(dlsym(handle, name));
    if (f == nullptr) fail(rank, std::string(name) + " is missing");
  };
  find(nccl.get_unique_id, "ncclGetUniqueId");
  find(nccl.init, "ncclCommInitRank");
  find(nccl.all_reduce, "ncclAllReduce");
  find(nccl.all_gather, "ncclAllGather");
  find(nccl.reduce_scatter, "ncclReduceScatter");
  find(nccl.destroy, "ncclCommDestroy");
  find(nccl.last_error, "ncclGetLastError");
  auto check = [&](int result, const char* what) {
    if (result != 0)
      fail(rank, std::string(what) + ": result " + std::to_string(result) + ": " + nccl.last_error(nullptr));
  };
  const cuda::Driver* d = cuda::driver();
  auto context = cuda::PrimaryContext::retain(0);
  if (!context.ok()) fail(rank, context.status().to_string());
  d->context_set_current(context->get());
  if (rank == 0) {
    check(nccl.get_unique_id(&shared.id), "ncclGetUniqueId");
    shared.id_ready.store(1);
  }
  while (shared.id_ready.load() == 0) usleep(100);
  void* comm = nullptr;
  check(nccl.init(&comm, nranks, shared.id, rank), "ncclCommInitRank");
  auto stream = cuda::OwnedStream::make();
  const size_t most = *std::max_element(sizes.begin(), sizes.end());
  auto in = cuda::DeviceMemory::make(most), out = cuda::DeviceMemory::make(most);
  if (!stream.ok() || !in.ok() || !out.ok()) fail(rank, "no memory on the device");
  constexpr int kFloat = 7, kSum = 0;
  const char* names[] = {"all_reduce", "all_gather", "reduce_scatter"};
  for (int which = 0; which < 3; ++which)
    for (const size_t bytes : sizes) {
      const size_t whole = bytes / 4, part = whole / static_cast<size_t>(nranks);
      auto call = [&] {
        switch (which) {
          case 0:
            return check(nccl.all_reduce(in->as(), out->as(), whole, kFloat, kSum, comm, stream->get()),
                         "ncclAllReduce");
          case 1:
            return check(nccl.all_gather(in->as(), out->as(), part, kFloat, comm, stream->get()), "ncclAllGather");
          default:
            return check(nccl.reduce_scatter(in->as(), out->as(), part, kFloat, kSum, comm, stream->get()),
                         "ncclReduceScatter");
        }
      };
      std::vector<float> values(whole, static_cast<float>(rank + 1));
      (void)cuda::upload(stream->get(), in->get(), values.data(), bytes);
      call();
      d->stream_synchronize(stream->get());
      d->memcpy_device_to_host(values.data(), out->get(), bytes);
      const size_t held = which == 2 ? part : which == 1 ? part * static_cast<size_t>(nranks) : whole;
      size_t wrong = 0;
      for (size_t i = 0; i < held; ++i) {
        const float expected = which == 1 ? static_cast<float>(i / std::max<size_t>(1, part) + 1)
                                          : static_cast<float>(nranks * (nranks + 1) / 2);
        wrong += values[i] != expected;
      }
      if (wrong != 0) fail(rank, std::string(names[which]) + ": " + std::to_string(wrong) + " wrong values");
      const int inner = bytes <= (1u << 20) ? 50 : 10;
      std::vector<double> times;
      for (int burst = -1; burst < 9; ++burst) {
        meet(shared, nranks);
        if (rank == 0) shared.slowest.store(0);
        meet(shared, nranks);
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < inner; ++i) call();
        d->stream_synchronize(stream->get());
        const double us =
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / inner;
        for (double seen = shared.slowest.load(); us > seen && !shared.slowest.compare_exchange_weak(seen, us);) {
        }
        meet(shared, nranks);
        if (burst >= 0) times.push_back(shared.slowest.load());
      }
      std::sort(times.begin(), times.end());
      if (rank == 0) {
        std::printf(
            "{\"collective\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"us\": %.2f, \"least\": %.2f, \"most\": %.2f}\n",
            names[which], nranks, bytes, times[times.size() / 2], times.front(), times.back());
        std::fflush(stdout);
      }
    }
  check(nccl.destroy(comm), "ncclCommDestroy");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: nccl_contender LIBRARY NRANKS [BYTES...]\n");
    return 2;
  }
  if (access("/dev/nvidiactl", R_OK | W_OK) != 0) {
    std::fprintf(stderr, "nccl_contender: no GPU here\n");
    return 77;
  }
  const int nranks = std::atoi(argv[2]);
  std::vector<size_t> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  if (sizes.empty()) sizes = {1024, 65536, 1 << 20, 16 << 20, 128 << 20};
  auto* shared =
      static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<pid_t> children;
  for (int r = 0; r < nranks; ++r) {
    const pid_t pid = fork();
    if (pid != 0) {
      children.push_back(pid);
      continue;
    }
    // With different host ids NVIDIA's library treats ranks of one GPU as ranks of several hosts.
    setenv("NCCL_HOSTID", ("rank" + std::to_string(r)).c_str(), 0);
    std::_Exit(run_rank(argv[1], r, nranks, sizes, *shared));
  }
  int worst = 0;
  for (size_t left = children.size(); left != 0; --left) {
    int how = 0;
    wait(&how);
    const int code = WIFEXITED(how) ? WEXITSTATUS(how) : 1;
    if (code != 0 && worst == 0)
      for (const pid_t p : children) kill(p, SIGTERM);
    worst = std::max(worst, code);
  }
  return worst;
}

// A program as NCCL's users write it: compiled with NVIDIA's header of one version (NCCL_HEADER) and linked with
// rondo's libnccl.so.2. Host buffers; ranks as threads, or (argument "processes") as processes.
//
// Prints the failed checks; exit status 0 if there are none. It uses no test framework, so that it depends only on the
// header.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include NCCL_HEADER

namespace {

constexpr int kRanks = 3;
constexpr size_t kCount = 257;

std::atomic<int> num_failed{0}, num_checked{0};

void check(bool ok, const char* what, int line) {
  ++num_checked;
  if (ok) return;
  ++num_failed;
  std::printf("line %d: %s; last error: %s\n", line, what, ncclGetLastError(nullptr));
}
#define CHECK(condition) check((condition), #condition, __LINE__)
#define OK(call) check((call) == ncclSuccess, #call, __LINE__)

struct Shared {
  std::atomic<int> has_id{0};
  mutable std::atomic<int> num_ready{0};  // ranks in no call that an abort would end
  ncclUniqueId id;
};

bool says(ncclComm_t comm, const char* word) { return std::strstr(ncclGetLastError(comm), word) != nullptr; }

ncclResult_t settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress && ncclCommGetAsyncError(comm, &state) == ncclSuccess) std::this_thread::yield();
  return state;
}

// Stores a small number as an element of the type.
template <class T>
void put(std::vector<char>& to, size_t at, T value) {
  std::memcpy(to.data() + at * sizeof(T), &value, sizeof value);
}
struct Type {
  ncclDataType_t type;
  size_t bytes;
  uint64_t one, two, four;  // bit patterns of 1, 2, 4
};
const Type kTypes[] = {
    {ncclInt8, 1, 1, 2, 4},
    {ncclUint8, 1, 1, 2, 4},
    {ncclInt32, 4, 1, 2, 4},
    {ncclUint32, 4, 1, 2, 4},
    {ncclInt64, 8, 1, 2, 4},
    {ncclUint64, 8, 1, 2, 4},
    {ncclFloat16, 2, 0x3c00, 0x4000, 0x4400},
    {ncclFloat32, 4, 0x3f800000, 0x40000000, 0x40800000},
    {ncclFloat64, 8, 0x3ff0000000000000, 0x4000000000000000, 0x4010000000000000},
    {ncclBfloat16, 2, 0x3f80, 0x4000, 0x4080},
    {ncclFloat8e4m3, 1, 0x38, 0x40, 0x48},
    {ncclFloat8e5m2, 1, 0x3c, 0x40, 0x44},
};

std::vector<char> filled(const Type& t, uint64_t bits) {
  std::vector<char> data(kCount * t.bytes);
  for (size_t i = 0; i < kCount; ++i) std::memcpy(data.data() + i * t.bytes, &bits, t.bytes);
  return data;
}

// Ranks give 1, 2 and 1: sum 4, product 2, maximum 2, minimum 1. All give 2: average 2. Ones scaled by 1, 2 and 1: 4.
void every_type_and_operator(int rank, ncclComm_t comm) {
  for (const Type& t : kTypes) {
    const std::vector<char> in = filled(t, rank == 1 ? t.two : t.one), twos = filled(t, t.two);
    const struct {
      ncclRedOp_t op;
      uint64_t expected;
    } kResults[] = {{ncclSum, t.four}, {ncclProd, t.two}, {ncclMax, t.two}, {ncclMin, t.one}};
    for (const auto& [op, expected] : kResults) {
      std::vector<char> out(in.size());
      OK(ncclAllReduce(in.data(), out.data(), kCount, t.type, op, comm, nullptr));
      CHECK(out == filled(t, expected));
    }
    std::vector<char> out(in.size());
    OK(ncclAllReduce(twos.data(), out.data(), kCount, t.type, ncclAvg, comm, nullptr));
    CHECK(out == twos);
    uint64_t scale = rank == 1 ? t.two : t.one;  // for ones: 1 + 2 + 1
    const std::vector<char> ones = filled(t, t.one);
    ncclRedOp_t op;
    OK(ncclRedOpCreatePreMulSum(&op, &scale, t.type, ncclScalarHostImmediate, comm));
    OK(ncclAllReduce(ones.data(), out.data(), kCount, t.type, op, comm, nullptr));
    OK(ncclRedOpDestroy(op, comm));
    CHECK(out == filled(t, t.four));
  }
}

void every_collective(int rank, ncclComm_t comm) {
  std::vector<int> one(kCount, rank + 1), all(kRanks * kCount, rank + 1), out(kRanks * kCount);
  const auto is = [&out](size_t from, int value) { return out[from] == value && out[from + kCount - 1] == value; };
  OK(ncclBroadcast(one.data(), out.data(), kCount, ncclInt, 1, comm, nullptr));
  CHECK(is(0, 2));
  std::vector<int> in_place = one;
  OK(ncclBcast(in_place.data(), kCount, ncclInt, 2, comm, nullptr));
  CHECK(in_place[kCount - 1] == 3);
  OK(ncclReduce(one.data(), out.data(), kCount, ncclInt, ncclSum, 0, comm, nullptr));
  CHECK(rank != 0 || is(0, 6));
  OK(ncclAllGather(one.data(), out.data(), kCount, ncclInt, comm, nullptr));
  CHECK(is(0, 1) && is(kCount, 2) && is(2 * kCount, 3));
  OK(ncclReduceScatter(all.data(), out.data(), kCount, ncclInt, ncclMax, comm, nullptr));
  CHECK(is(0, 3));
  OK(ncclAlltoAll(all.data(), out.data(), kCount, ncclInt, comm, nullptr));
  CHECK(is(0, 1) && is(kCount, 2) && is(2 * kCount, 3));
  OK(ncclGather(one.data(), out.data(), kCount, ncclInt, 2, comm, nullptr));
  CHECK(rank != 2 || (is(0, 1) && is(kCount, 2)));
  OK(ncclScatter(all.data(), out.data(), kCount, ncclInt, 1, comm, nullptr));
  CHECK(is(0, 2));
  OK(ncclGroupStart());
  OK(ncclSend(one.data(), kCount, ncclInt, (rank + 1) % kRanks, comm, nullptr));
  OK(ncclRecv(out.data(), kCount, ncclInt, (rank + 2) % kRanks, comm, nullptr));
  OK(ncclAllReduce(all.data(), all.data(), kCount, ncclInt, ncclSum, comm, nullptr));
  OK(ncclGroupEnd());
  CHECK(is(0, (rank + 2) % kRanks + 1));
  CHECK(all[0] == 6);
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  OK(ncclGroupStart());
  OK(ncclAllReduce(all.data(), all.data(), kCount, ncclInt, ncclSum, comm, nullptr));
  OK(ncclGroupSimulateEnd(&info));
  CHECK(info.estimatedTime > 0);
}

void expect_works(ncclComm_t comm) {
  int rank = -1, n = 0;
  OK(ncclCommUserRank(comm, &rank));
  OK(ncclCommCount(comm, &n));
  float x = static_cast<float>(rank + 1);
  const ncclResult_t r = ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm, nullptr);
  CHECK((r == ncclInProgress ? settle(comm) : r) == ncclSuccess);
  CHECK(x == static_cast<float>(n * (n + 1) / 2));
}

void splits_and_shrinks(int rank, ncclComm_t comm) {
  ncclComm_t part = nullptr, smaller = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.splitShare = 1;
  OK(ncclCommSplit(comm, rank == 2 ? NCCL_SPLIT_NOCOLOR : 5, -rank, &part, &config));
  CHECK((part == nullptr) == (rank == 2));
  if (part != nullptr) {
    int n = -1;
    OK(ncclCommUserRank(part, &n));
    CHECK(n == 1 - rank);
    expect_works(part);
    OK(ncclCommFinalize(part));
    OK(ncclCommDestroy(part));
  }
  int excluded[] = {0};
  if (rank != 0) {
    OK(ncclCommShrink(comm, excluded, 1, &smaller, nullptr, NCCL_SHRINK_DEFAULT));
    expect_works(smaller);
    OK(ncclCommDestroy(smaller));
  }
  expect_works(comm);
}

void errors_have_texts(ncclComm_t comm) {
  float x = 0;
  CHECK(ncclAllReduce(&x, &x, 1, ncclNumTypes, ncclSum, comm, nullptr) == ncclInvalidArgument);
  CHECK(says(nullptr, "datatype is 12") && says(comm, "datatype is 12"));
  CHECK(ncclSend(&x, 1, ncclFloat, 99, comm, nullptr) == ncclInvalidArgument && says(comm, "peer is 99"));
  OK(ncclGroupStart());
  CHECK(ncclBroadcast(&x, &x, 1, ncclFloat, -1, comm, nullptr) == ncclInvalidArgument);
  CHECK(ncclGroupEnd() == ncclInvalidArgument && says(nullptr, "root is -1"));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.magic = 0;
  ncclComm_t none = nullptr;
  CHECK(ncclCommSplit(comm, 0, 0, &none, &config) == ncclInvalidArgument && says(comm, "magic"));
  ncclWindow_t window;
  CHECK(ncclCommWindowRegister(comm, &x, 4, &window, NCCL_WIN_COLL_SYMMETRIC) == ncclInvalidUsage);
  CHECK(window == nullptr && says(comm, "ncclCommWindowRegister"));
#if NCCL_VERSION_CODE >= 23003
  CHECK(std::strcmp(ncclGetErrorString(ncclTimeout), ncclGetErrorString(ncclRemoteError)) != 0);
#endif
}

#if NCCL_VERSION_CODE >= 23200
void per_call_configs(int rank, ncclComm_t comm) {
  float x = static_cast<float>(rank + 1);
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.algSelection = "ring,tree";
  config.userProfilerTag = 4711;
  OK(ncclAllReduceConfig(&x, &x, 1, ncclFloat, ncclSum, comm, nullptr, &config));
  CHECK(x == 6.0f);
  config.algSelection = "NVLS";
  CHECK(ncclAllReduceConfig(&x, &x, 1, ncclFloat, ncclSum, comm, nullptr, &config) == ncclInvalidArgument);
}
#endif

void of_one_rank(int rank, const Shared& shared) {
  ncclComm_t comm = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t started = ncclCommInitRankConfig(&comm, kRanks, shared.id, rank, &config);
  CHECK(started == ncclInProgress || started == ncclSuccess);
  CHECK(settle(comm) == ncclSuccess);
  expect_works(comm);
  ncclComm_t blocking = nullptr;
  ncclConfig_t again = NCCL_CONFIG_INITIALIZER;
  again.blocking = 1;
  again.commName = "of the program";
  CHECK(ncclCommSplit(comm, 0, rank, &blocking, &again) == ncclInProgress);  // the parent's mode counts
  CHECK(settle(comm) == ncclSuccess && settle(blocking) == ncclSuccess);
  expect_works(blocking);
  expect_works(comm);  // after it no rank is in a call of `blocking`, which an abort would end
  OK(ncclCommAbort(blocking));
  CHECK(ncclCommFinalize(comm) == ncclInProgress);
  CHECK(settle(comm) == ncclSuccess);
  OK(ncclCommDestroy(comm));
}

void of_one_blocking_rank(int rank, const Shared& shared) {
  ncclComm_t comm = nullptr;
  OK(ncclCommInitRank(&comm, kRanks, shared.id, rank));
  if (comm == nullptr) return;
  every_type_and_operator(rank, comm);
  every_collective(rank, comm);
  splits_and_shrinks(rank, comm);
  errors_have_texts(comm);
#if NCCL_VERSION_CODE >= 23200
  per_call_configs(rank, comm);
#endif
  void *memory = nullptr, *handle = nullptr;
  OK(ncclMemAlloc(&memory, 1 << 16));
  OK(ncclCommRegister(comm, memory, 1 << 16, &handle));
  OK(ncclCommDeregister(comm, handle));
  OK(ncclMemFree(memory));
  expect_works(comm);
  shared.num_ready.fetch_add(1);
  if (rank == 0) {  // the others wait in a call, or will, and get the error
    while (shared.num_ready.load() < kRanks) std::this_thread::yield();
    OK(ncclCommAbort(comm));
    return;
  }
  float x = 1;
  ncclResult_t state = ncclSuccess;
  CHECK(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm, nullptr) == ncclRemoteError);
  OK(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclRemoteError);
  OK(ncclCommDestroy(comm));
}

using RankFn = std::function<void(int, const Shared&)>;

void as_threads(const RankFn& fn) {
  Shared shared;
  OK(ncclGetUniqueId(&shared.id));
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) threads.emplace_back([&, r] { fn(r, shared); });
  for (std::thread& t : threads) t.join();
}

// Rank 0 makes the id, because its process must live until all have joined.
void as_processes(const RankFn& fn) {
  auto* shared = new (mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared;
  std::vector<pid_t> children;
  for (int r = 0; r < kRanks; ++r) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      alarm(50);
      if (r == 0) {
        OK(ncclGetUniqueId(&shared->id));
        shared->has_id.store(1, std::memory_order_release);
      }
      while (shared->has_id.load(std::memory_order_acquire) == 0) std::this_thread::yield();
      fn(r, *shared);
      std::fflush(stdout);
      _exit(num_failed == 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

void one_thread_with_all_ranks() {
  std::vector<ncclComm_t> comms(kRanks);
  OK(ncclCommInitAll(comms.data(), kRanks, nullptr));
  std::vector<float> x = {1, 2, 3};
  OK(ncclGroupStart());
  for (size_t r = 0; r < kRanks; ++r) OK(ncclAllReduce(&x[r], &x[r], 1, ncclFloat, ncclSum, comms[r], nullptr));
  OK(ncclGroupEnd());
  CHECK(x[0] == 6 && x[1] == 6 && x[2] == 6);
  for (ncclComm_t c : comms) OK(ncclCommDestroy(c));
}

}  // namespace

int main(int argc, char** argv) {
  const bool processes = argc > 1 && std::string(argv[1]) == "processes";
  int version = 0;
  if (processes) {
    as_processes(of_one_blocking_rank);
    as_processes(of_one_rank);
  } else {
    OK(ncclGetVersion(&version));
    CHECK(version >= NCCL_VERSION_CODE);
    as_threads(of_one_blocking_rank);
    as_threads(of_one_rank);
    one_thread_with_all_ranks();
  }
  std::printf("header %d, ranks as %s: %d checks%s, %d failed\n", NCCL_VERSION_CODE,
              processes ? "processes" : "threads", num_checked.load(), processes ? " by the parent" : "",
              num_failed.load());
  return num_failed == 0 ? 0 : 1;
}

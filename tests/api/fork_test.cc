// fork() in a job: every call on the parent's objects is refused in the child, the child does no harm when it destroys
// them or exits, and it can make its own communicators.
// labels: mp
// timeout: 120
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "api/c_handles.h"
#include "rondo/trace.h"
#include "support/forked_child.h"
#include "support/shared.h"
#include "support/spawn.h"
#include "support/spawn_processes.h"

namespace rondo::testing {
namespace {

// Collects calls that were not refused.
class Refusals {
 public:
  void add(const char* call, const Status& s) {
    if (s.code() == StatusCode::kUnsupported && s.message().find("forked") != std::string_view::npos) return;
    wrong += std::string(call) + ": " + (s.ok() ? "ok" : s.to_string()) + "; ";
  }
  void add(const char* call, rondo_status code, const rondo_comm* comm) {
    const std::string text = rondo_last_error(comm);
    if (code == RONDO_UNSUPPORTED && text.find("forked") != std::string::npos) return;
    wrong += std::string(call) + ": " + std::to_string(code) + " " + text + "; ";
  }
  std::string wrong;
};

constexpr uint64_t kElems = 1 << 14;

std::string sum_is_wrong(Communicator& comm, uint64_t count_elems) {
  std::vector<float> x(count_elems, static_cast<float>(comm.rank() + 1));
  const Status s = comm.all_reduce(x.data(), x.data(), count_elems, Dtype::kFloat32, Op::kSum);
  const auto n = static_cast<float>(comm.size());
  if (!s.ok()) return s.to_string();
  for (const float v : x)
    if (v != n * (n + 1) / 2) return "a sum is " + std::to_string(v);
  return "";
}

void call_all(Communicator& comm, Refusals& r) {
  float x[64] = {};
  const uint64_t counts[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  const Dtype f = Dtype::kFloat32;
  Work work;
  r.add("all_reduce", comm.all_reduce(x, x, 8, f, Op::kSum));
  r.add("all_reduce started", comm.all_reduce(x, x, 8, f, Op::kSum, nullptr, &work));
  r.add("reduce_scatter", comm.reduce_scatter(x, x + 32, 1, f, Op::kSum));
  r.add("all_gather", comm.all_gather(x, x + 32, 1, f));
  r.add("broadcast", comm.broadcast(x, x, 8, f, 0));
  r.add("reduce", comm.reduce(x, x, 8, f, Op::kSum, 0));
  r.add("all_to_all", comm.all_to_all(x, x + 32, 1, f));
  r.add("gather", comm.gather(x, x + 32, 1, f, 0));
  r.add("scatter", comm.scatter(x, x + 32, 1, f, 0));
  r.add("barrier", comm.barrier());
  r.add("send", comm.send(x, 1, f, 0));
  r.add("recv", comm.recv(x, 1, f, 0));
  r.add("all_gather_v", comm.all_gather_v(x, x + 32, counts, nullptr, f));
  r.add("reduce_scatter_v", comm.reduce_scatter_v(x, x + 32, counts, nullptr, f, Op::kSum));
  r.add("all_to_all_v", comm.all_to_all_v(x, counts, nullptr, x + 32, counts, nullptr, f));
  r.add("alloc", comm.alloc(4096).status());
  r.add("free", comm.free(x));
  r.add("register_memory", comm.register_memory(x, sizeof x));
  r.add("deregister_memory", comm.deregister_memory(x));
  r.add("split", comm.split(0, 0).status());
  r.add("shrink", comm.shrink().status());
  r.add("grow", comm.grow(comm.size() + 1, nullptr).status());
  r.add("finalize", comm.finalize());
  r.add("error", comm.error());
  r.add("forecast_us", comm.forecast_us(Collective::kAllReduce, 8, f, Op::kSum).status());
  if (comm.explain_plan(Collective::kAllReduce, 8, f, Op::kSum).find("forked") == std::string::npos)
    r.wrong += "explain_plan; ";
  r.add("trace_start", trace_start(comm, {::testing::TempDir(), 0}));
  r.add("trace_stop", trace_stop(comm));
  r.add("write_flight_record", write_flight_record(comm, ::testing::TempDir()));
  if (is_traced(comm)) r.wrong += "is_traced; ";
  trace_span(comm, {"track", "name", 1, 2});
  comm.abort();
  group_start();
  (void)comm.all_reduce(x, x, 8, f, Op::kSum);
  r.add("group_end", [&] {
    const Status called = comm.barrier();
    const Status ended = group_end();
    return called.ok() ? ended : called;
  }());
}

void call_all_in_c(rondo_comm* comm, Refusals& r) {
  float x[8] = {};
  void* memory = nullptr;
  rondo_comm* other = nullptr;
  rondo_work* work = nullptr;
  char text[256];
  r.add("rondo_all_reduce", rondo_all_reduce(comm, x, x, 8, RONDO_FLOAT32, RONDO_SUM, nullptr, nullptr), comm);
  r.add("rondo_barrier", rondo_barrier(comm, nullptr, &work), comm);
  r.add("rondo_alloc", rondo_alloc(comm, 4096, &memory), comm);
  r.add("rondo_free", rondo_free(comm, x), comm);
  r.add("rondo_register", rondo_register(comm, x, sizeof x), comm);
  r.add("rondo_comm_split", rondo_comm_split(comm, 0, 0, &other, nullptr), comm);
  r.add("rondo_comm_shrink", rondo_comm_shrink(comm, nullptr, 0, &other, nullptr), comm);
  r.add("rondo_comm_grow", rondo_comm_grow(comm, 8, nullptr, &other, nullptr), comm);
  r.add("rondo_comm_finalize", rondo_comm_finalize(comm), comm);
  r.add("rondo_comm_abort", rondo_comm_abort(comm), comm);
  r.add("rondo_comm_error", rondo_comm_error(comm), comm);
  r.add("rondo_trace_start", rondo_trace_start(comm, ".", 0), comm);
  r.add("rondo_flight_record", rondo_flight_record(comm, "."), comm);
  int rank = -1, size = -1;
  if (rondo_comm_rank(comm, &rank) != RONDO_OK || rank < 0) r.wrong += "rondo_comm_rank; ";
  if (rondo_comm_size(comm, &size) != RONDO_OK || size < 1) r.wrong += "rondo_comm_size; ";
  if (rondo_explain_plan(comm, "all_reduce", 8, RONDO_FLOAT32, RONDO_SUM, text, sizeof text) != RONDO_OK)
    r.wrong += "rondo_explain_plan; ";
  if (rondo_comm_destroy(comm) != RONDO_OK) r.wrong += "rondo_comm_destroy; ";
}

std::unique_ptr<Communicator> destroyed_by_exit;  // destroyed by a static object's destructor

class Forks : public WorldTest {};

TEST_P(Forks, TheChildIsRefusedAndTheJobGoesOn) {
  constexpr int kRanks = 3;
  IdPipes ids(kRanks);  // for the children's own communicator
  Shared<SharedCounter> shared_forked;
  SharedCounter& forked = *shared_forked;
  spawn_owning(GetParam(), kRanks, [&](std::unique_ptr<Communicator> made) -> Status {
    const Rank rank = made->rank();
    RONDO_TRY_ASSIGN(auto for_c, made->split(0, rank));
    RONDO_TRY_ASSIGN(destroyed_by_exit, made->split(0, rank));
    auto* in_c = new rondo_comm{std::move(for_c)};
    RONDO_TRY_ASSIGN(void* shared, made->alloc(kElems * sizeof(float)));
    auto* x = static_cast<float*>(shared);
    std::atomic<bool> stop{false};
    std::string wrong_in_thread;
    std::thread busy([&] {  // it is somewhere in a call when this rank forks
      for (int last = 0; last == 0 && wrong_in_thread.empty();) {
        wrong_in_thread = sum_is_wrong(*destroyed_by_exit, kElems);
        int mine = stop ? 1 : 0;  // all ranks stop together
        if (!destroyed_by_exit->all_reduce(&mine, &last, 1, Dtype::kInt32, Op::kMin).ok()) break;
      }
    });
    group_start();
    float y[4] = {1, 1, 1, 1};
    Work grouped;
    RONDO_TRY(made->all_reduce(y, y, 4, Dtype::kFloat32, Op::kSum, nullptr, &grouped));
    const std::string in_group = in_child([&]() -> std::string {
      Refusals r;
      r.add("the parent's group", group_end());
      r.add("its work", grouped.wait());
      return r.wrong;
    });
    EXPECT_EQ(in_group, "");
    RONDO_TRY(group_end());
    RONDO_TRY(grouped.wait());
    EXPECT_EQ(y[3], kRanks);

    float z[4] = {1, 1, 1, 1};
    if (rank != 0) {  // it cannot end before rank 0 calls
      Work work;
      RONDO_TRY(made->all_reduce(z, z, 4, Dtype::kFloat32, Op::kSum, nullptr, &work));
      const std::string in_work = in_child([&]() -> std::string {
        Refusals r;
        r.add("test", work.test());
        r.add("wait", work.wait());
        return r.wrong;
      });
      EXPECT_EQ(in_work, "");
      forked.add();
      RONDO_TRY(work.wait());
    } else {
      EXPECT_TRUE(forked.wait_at_least(kRanks - 1, 60));
      RONDO_TRY(made->all_reduce(z, z, 4, Dtype::kFloat32, Op::kSum));
    }
    EXPECT_EQ(z[3], kRanks);

    const std::string calls = in_child([&]() -> std::string {
      Refusals r;
      call_all(*made, r);
      call_all(*destroyed_by_exit, r);
      call_all_in_c(in_c, r);
      made.reset();
      return r.wrong;
    });
    EXPECT_EQ(calls, "");
    const std::string own = in_child([&]() -> std::string {
      auto id = ids.exchange(rank);
      if (!id.ok()) return id.status().to_string();
      auto comm = Communicator::init_rank(kRanks, *id, rank);
      if (!comm.ok()) return comm.status().to_string();
      std::string wrong = sum_is_wrong(**comm, 2) + sum_is_wrong(**comm, kElems);
      auto part = (*comm)->split(0, rank);
      if (!part.ok()) return part.status().to_string();
      wrong += sum_is_wrong(**part, 100);
      part->reset();
      if (const Status s = (*comm)->finalize(); !s.ok()) wrong += s.to_string();
      return wrong;
    });
    EXPECT_EQ(own, "");
    stop = true;
    busy.join();
    EXPECT_EQ(wrong_in_thread, "");
    EXPECT_EQ(sum_is_wrong(*made, 1), "");
    EXPECT_EQ(sum_is_wrong(*destroyed_by_exit, kElems), "");
    EXPECT_EQ(sum_is_wrong(*in_c->comm, 100), "");
    for (uint64_t i = 0; i < kElems; ++i) x[i] = 1;
    RONDO_TRY(made->all_reduce(x, x, kElems, Dtype::kFloat32, Op::kSum));
    EXPECT_EQ(x[kElems - 1], kRanks);
    RONDO_TRY(made->error());
    RONDO_TRY(made->free(x));
    destroyed_by_exit.reset();
    EXPECT_EQ(rondo_comm_destroy(in_c), RONDO_OK);
    return {};
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Forks, ::testing::Values(World::kProcesses, World::kTcp),
                         [](const auto& info) { return std::string(world_name(info.param)); });

// A signal handler's thread belongs to the parent, and so does its file descriptor.
TEST(Forks, RanksAsThreadsWithAFlightSignal) {
  std::string folder = ::testing::TempDir() + "/forks.XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  SpawnOptions options;
  const auto ranks = [&folder](Rank) -> Status {
    setenv("RONDO_FLIGHT", (folder + ",USR2").c_str(), 1);
    RONDO_TRY_ASSIGN(auto comms, Communicator::init_all(2));
    const auto both = [](std::vector<std::unique_ptr<Communicator>>& pair) {
      std::string second;
      std::thread other([&] { second = sum_is_wrong(*pair[1], kElems); });
      std::string first = sum_is_wrong(*pair[0], kElems);
      other.join();
      return first + second;
    };
    EXPECT_EQ(both(comms), "");
    EXPECT_EQ(in_child([&]() -> std::string {
                Refusals r;
                for (auto& c : comms) call_all(*c, r);
                raise(SIGUSR2);  // must have no effect here
                comms.clear();
                auto own = Communicator::init_all(2);
                return r.wrong + (own.ok() ? both(*own) : own.status().to_string());
              }),
              "");
    EXPECT_EQ(both(comms), "");
    return {};
  };
  report(run_processes_bare(1, ranks, options), options);
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "the child's signal had the parent write its flight records";
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace rondo::testing

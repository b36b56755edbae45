// Ranks on several hosts: failures that only happen there, and functions that must work there too.
// labels: mp
// again with: RONDO_TRANSPORT=shm+ucx
// again with: RONDO_TEST_FULL_MESH=3
// timeout: 180
// alone
// separate
#include "support/test_hosts.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "api/errors_suite.h"
#include "base/process_name.h"
#include "support/shared.h"
#include "trace/flight_record.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Hosts, Errors, ::testing::Values(World::kUcx, World::kTcp, World::kHosts),
                         [](const auto& info) { return std::string(world_name(info.param)); });

class Hosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_world(World::kHosts); !why.empty()) GTEST_SKIP() << why;
  }
};

// The first element of a sum over all ranks with `elems` elements.
Status sum(Communicator& comm, uint64_t elems, float* first, double deadline_s = 0) {
  std::vector<float> in(elems, static_cast<float>(comm.rank() + 1)), out(elems);
  CallOptions options;
  options.deadline_s = deadline_s;
  const Status s = comm.all_reduce(in.data(), out.data(), elems, Dtype::kFloat32, Op::kSum, &options);
  *first = elems != 0 ? out[elems - 1] : 0;
  return s;
}

TEST_F(Hosts, AKilledRankIsNamedByAllWithinASecond) {
  for (const Rank victim : {0, 1, 3}) {
    Shared<SharedCounter> num_ready;
    SpawnOptions options;
    options.may_die = {victim};
    options.deadline_s = 40;
    spawn(
        World::kHosts, 4,
        [&](Communicator& comm) {
          float first;
          ASSERT_TRUE(is_ok(sum(comm, 100000, &first)));
          num_ready->add();
          ASSERT_TRUE(num_ready->wait_at_least(4, 30));
          if (comm.rank() == victim) kill(getpid(), SIGKILL);
          const Stopwatch watch;
          Status s;
          while ((s = sum(comm, 100000, &first)).ok()) ASSERT_LT(watch.seconds(), 10);
          EXPECT_EQ(s.code(), StatusCode::kPeerLost) << s.to_string();
          EXPECT_NE(s.message().find(rank_text(victim)), std::string::npos) << s.to_string();
          EXPECT_LT(watch.seconds(), 1);
        },
        options);
  }
}

// `cut` isolates host 1 while the ranks wait. A call of all ranks ends shortly after its deadline of 1 s and names a
// rank of the other host.
void is_cut_off(const std::function<bool()>& cut) {
  std::string why;
  Shared<SharedCounter> num_ready, num_ended;
  SpawnOptions options;
  options.deadline_s = 60;
  options.in_parent = [&](const std::vector<pid_t>&) {
    EXPECT_TRUE(num_ready->wait_at_least(4, 30));
    EXPECT_TRUE(cut());
    num_ready->add();
  };
  spawn(
      World::kHosts, 4,
      [&](Communicator& comm) {
        float first;
        ASSERT_TRUE(is_ok(sum(comm, 100000, &first)));
        num_ready->add();
        ASSERT_TRUE(num_ready->wait_at_least(5, 30));
        const Stopwatch watch;
        const Status s = sum(comm, 3000000, &first, 1.0);
        EXPECT_TRUE(s.code() == StatusCode::kTimeout || s.code() == StatusCode::kPeerLost ||
                    s.code() == StatusCode::kAborted)
            << s.to_string();
        const Rank elsewhere = comm.rank() < 2 ? 2 : 0;  // this rank or the next one
        const std::string said(s.message());
        EXPECT_TRUE(said.find(rank_text(elsewhere)) != said.npos || said.find(rank_text(elsewhere + 1)) != said.npos)
            << said;
        EXPECT_LT(watch.seconds(), 2);
      },
      options);
}

// An unplugged cable is not reported.
TEST_F(Hosts, AnUnpluggedCableEndsAtTheDeadline) {
  is_cut_off([] { return test_hosts().unplug(1); });
  EXPECT_TRUE(test_hosts().plug_in(1));
}

// The kernel of one host detects it, the other's does not.
TEST_F(Hosts, ARouteThatLeadsNowhereEndsAtTheDeadline) {
  is_cut_off([] { return test_hosts().blackhole(1, 0); });
  EXPECT_TRUE(test_hosts().no_blackhole(1, 0));
}

// Both ranks of a host die at once, as with a lost host. The survivors name one of them.
TEST_F(Hosts, ALostHostIsNamedWithinASecond) {
  Shared<SharedCounter> num_ready;
  SpawnOptions options;
  options.may_die = {2, 3};
  options.deadline_s = 40;
  options.in_parent = [&](const std::vector<pid_t>& ranks) {
    EXPECT_TRUE(num_ready->wait_at_least(4, 30));
    for (const size_t r : {2, 3}) kill(ranks[r], SIGKILL);
    num_ready->add();
  };
  spawn(
      World::kHosts, 4,
      [&](Communicator& comm) {
        float first;
        ASSERT_TRUE(is_ok(sum(comm, 100000, &first)));
        num_ready->add();
        Stopwatch watch;
        Status s;
        while ((s = sum(comm, 100000, &first)).ok()) {
          if (num_ready->value() < 5) watch = Stopwatch();  // they still live
          ASSERT_LT(watch.seconds(), 10);
        }
        EXPECT_EQ(s.code(), StatusCode::kPeerLost) << s.to_string();
        const std::string said(s.message());
        EXPECT_TRUE(said.find(rank_text(2)) != said.npos || said.find(rank_text(3)) != said.npos) << said;
        EXPECT_LT(watch.seconds(), 1);
      },
      options);
}

// Delays, and losses that TCP repairs, only make it slower.
TEST_F(Hosts, ASlowAndLossyNetworkChangesNoResult) {
  ASSERT_TRUE(test_hosts().delay(1.0, 0.01));
  spawn(World::kHosts, 4, [](Communicator& comm) {
    float first;
    for (const uint64_t elems : {1, 3, 1009, 70001, 300007}) {
      ASSERT_TRUE(is_ok(sum(comm, elems, &first)));
      EXPECT_EQ(first, 10) << elems;
    }
  });
  EXPECT_TRUE(test_hosts().no_delay());
}

// Broadcasts a text between hosts while all frames are recorded. Returns the recorded bytes.
std::string recorded_broadcast(const std::string& text) {
  char path[] = "/tmp/rondo-frames-XXXXXX";
  const int fd = mkstemp(path);
  EXPECT_GE(fd, 0);
  unlink(path);
  EXPECT_TRUE(test_hosts().delay(0, 0, fd));
  spawn(World::kHosts, 4, [&](Communicator& comm) {
    for (const size_t times : {1, 5000}) {  // as an inline message, and through the ring
      std::string data;
      for (size_t i = 0; i < times; ++i) data += text;
      std::string got = comm.rank() == 0 ? data : std::string(data.size(), '\0');
      ASSERT_TRUE(is_ok(comm.broadcast(got.data(), got.data(), got.size(), Dtype::kUint8, 0)));
      EXPECT_EQ(got, data);
    }
    auto half = comm.split(comm.rank() % 2, comm.rank());  // across hosts
    ASSERT_TRUE(half.ok()) << half.status().to_string();
    float first;
    ASSERT_TRUE(is_ok(sum(**half, 1009, &first)));
    EXPECT_EQ(first, 3);
  });
  EXPECT_TRUE(test_hosts().no_delay());
  std::string frames(static_cast<size_t>(lseek(fd, 0, SEEK_END)), '\0');
  EXPECT_EQ(pread(fd, frames.data(), frames.size(), 0), static_cast<ssize_t>(frames.size()));
  close(fd);
  return frames;
}

TEST_F(Hosts, WhatIsEncryptedCannotBeReadOnTheWire) {
  const std::string text = "a sentence in the buffer of a user";
  EXPECT_NE(recorded_broadcast(text).find(text), std::string::npos) << "the recording must show unencrypted data";
  setenv("RONDO_ENCRYPT", "on", 1);
  const std::string frames = recorded_broadcast(text);
  unsetenv("RONDO_ENCRYPT");
  EXPECT_GT(frames.size(), 5000 * text.size());
  EXPECT_EQ(frames.find(text.substr(0, 16)), std::string::npos);
}

// From now on the kernel forbids all threads of this process to read other processes' memory.
void forbid_reading() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter), 0);
}

// Zero-copy sends arrive even if the reader lost the permission that it had when the communicator was made.
TEST_F(Hosts, ARankThatMayReadNoMoreGetsWhatItsHostLends) {
  spawn(World::kHosts, 4, [](Communicator& comm) {
    for (int round = 0; round < 10; ++round) {
      float first;
      ASSERT_TRUE(is_ok(sum(comm, 1 << 20, &first))) << round;
      ASSERT_EQ(first, 10) << round;
      if (round == 2 && comm.rank() % 2 == 1) forbid_reading();
    }
  });
}

TEST_F(Hosts, TwoCommunicatorsSplitsAndShrink) {
  spawn(World::kHosts, 6, [](Communicator& comm) {
    float first;
    ASSERT_TRUE(is_ok(sum(comm, 1009, &first)));
    EXPECT_EQ(first, 21);
    // Across hosts: even and odd ranks. Then within and across hosts at once.
    auto half = comm.split(comm.rank() % 2, comm.rank());
    ASSERT_TRUE(half.ok()) << half.status().to_string();
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(is_ok(sum(**half, 70001, &first)));
      EXPECT_EQ(first, 6);
      ASSERT_TRUE(is_ok(sum(comm, 3, &first)));
      EXPECT_EQ(first, 21);
    }
    auto fewer = comm.rank() != 5 ? comm.shrink({5}) : Expected<std::unique_ptr<Communicator>>(nullptr);
    ASSERT_TRUE(fewer.ok()) << fewer.status().to_string();
    if (comm.rank() == 5) return;
    ASSERT_TRUE(is_ok(sum(**fewer, 70001, &first)));
    EXPECT_EQ(first, 15);
  });
}

TEST_F(Hosts, ARankThatLeavesEarlyHasSentAll) {
  spawn_owning(World::kHosts, 4, [](std::unique_ptr<Communicator> comm) {
    std::vector<float> data(500000, comm->rank() == 0 ? 7.0f : 0.0f);
    ASSERT_TRUE(is_ok(comm->broadcast(data.data(), data.data(), data.size(), Dtype::kFloat32, 0)));
    EXPECT_EQ(data.front(), 7);
    EXPECT_EQ(data.back(), 7);
    comm.reset();  // each as soon as it is done
  });
}

TEST_F(Hosts, WhoAbortsAndLeavesIsNamedForThat) {
  Shared<SharedCounter> num_ready;
  spawn_owning(World::kHosts, 4, [&](std::unique_ptr<Communicator> comm) {
    float first;
    ASSERT_TRUE(is_ok(sum(*comm, 300000, &first)));
    num_ready->add();
    ASSERT_TRUE(num_ready->wait_at_least(4, 30));
    if (comm->rank() == 0) {
      comm->abort();
      comm.reset();
      return;
    }
    const Stopwatch watch;
    Status s;
    while ((s = sum(*comm, 3000000, &first)).ok()) ASSERT_LT(watch.seconds(), 10);
    EXPECT_TRUE(fails_with(s, StatusCode::kAborted, {rank_text(0)}));
    EXPECT_LT(watch.seconds(), 2);
  });
}

// As in a program that ends at its first error.
TEST_F(Hosts, WhoDiffersAndLeavesIsNamedForThat) {
  Shared<SharedCounter> num_ready;
  spawn_owning(World::kHosts, 9, [&](std::unique_ptr<Communicator> comm) {
    float first;
    ASSERT_TRUE(is_ok(sum(*comm, 300000, &first)));
    num_ready->add();
    ASSERT_TRUE(num_ready->wait_at_least(9, 30));
    const Stopwatch watch;
    const Status s = sum(*comm, comm->rank() == 3 ? 3000001 : 3000000, &first);
    EXPECT_TRUE(fails_with(s, StatusCode::kMismatch, {rank_text(3)}));
    EXPECT_LT(watch.seconds(), kSanitized ? 10 : 2);
    comm.reset();
  });
}

// Small messages to only one side: ranks that are done leave while others still are in the call with slow ones.
TEST_F(Hosts, LeavingInTheMiddleOfOthersWorkIsNoLoss) {
  for (int round = 0; round < 20; ++round)
    spawn_owning(World::kHosts, 6, [&](std::unique_ptr<Communicator> comm) {
      float first;
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(is_ok(sum(*comm, 2, &first)));
      EXPECT_EQ(first, 21);
      std::vector<int> data(5, comm->rank() == round % 6 ? 9 : 0);
      ASSERT_TRUE(is_ok(comm->broadcast(data.data(), data.data(), data.size(), Dtype::kInt32, round % 6)));
      EXPECT_EQ(data[4], 9);
      comm.reset();
    });
}

// A chunk as long as the longest message is sent as one message, also for sums between hosts of one kernel.
TEST_F(Hosts, ALongChunkIsNotCutForAFewBytes) {
  if (const char* set = std::getenv("RONDO_TRANSPORT"); set != nullptr && std::string(set) != "shm+tcp")
    GTEST_SKIP() << "long messages are TCP's";
  spawn(World::kHosts, 2, [](Communicator& comm) {
    const std::string gathers = comm.explain_plan(Collective::kAllGather, 1 << 19, Dtype::kFloat32, Op::kSum);
    EXPECT_NE(gathers.find("messages of 2097152 B"), std::string::npos) << gathers;
    const std::string sums = comm.explain_plan(Collective::kAllReduce, 1 << 20, Dtype::kFloat32, Op::kSum);
    EXPECT_NE(sums.find("messages of 2097152 B"), std::string::npos) << sums;
    EXPECT_EQ(sums.find("one_shot"), std::string::npos) << "one_shot adds twice as much: " << sums;
    std::vector<float> mine(1 << 19, static_cast<float>(comm.rank())), all(1 << 20);
    ASSERT_TRUE(is_ok(comm.all_gather(mine.data(), all.data(), mine.size(), Dtype::kFloat32)));
    EXPECT_EQ(all[mine.size() - 1], 0);
    EXPECT_EQ(all.back(), 1);
    float first;
    ASSERT_TRUE(is_ok(sum(comm, 1 << 20, &first)));
    EXPECT_EQ(first, 3);
  });
}

// Zero-copy data of local peers is added block by block, messages are long, and rings restart: sums of many blocks, in
// place and not, back to back, with a prime number of elements.
TEST_F(Hosts, LongSumsOfWhatPeersOnHostLendAreRight) {
  spawn(World::kHosts, 4, [](Communicator& comm) {
    const size_t num = (1 << 20) + 10007;
    std::vector<float> in(num), out(num);
    for (int round = 0; round < 12; ++round) {
      for (size_t i = 0; i < num; ++i)
        in[i] = static_cast<float>((i * 7 + static_cast<size_t>(round)) % 1021 + comm.rank());
      float* const to = round % 2 == 0 ? in.data() : out.data();
      ASSERT_TRUE(is_ok(comm.all_reduce(in.data(), to, num, Dtype::kFloat32, Op::kSum)));
      size_t wrong = 0;
      for (size_t i = 0; i < num; ++i)
        wrong += to[i] != static_cast<float>(4 * ((i * 7 + static_cast<size_t>(round)) % 1021) + 6) ? 1 : 0;
      ASSERT_EQ(wrong, 0u) << "round " << round;
    }
  });
}

// Small socket buffers, and a stopped peer that reads nothing: zero-copy sends stay outstanding.
class ZeroCopyOnHosts : public Hosts {
 protected:
  static constexpr uint64_t kBytes = 512 * 1024;  // the connection's ring would have room for it

  void SetUp() override {
    Hosts::SetUp();
    if (IsSkipped()) return;
    for (const char* name : {"UCX_TCP_SNDBUF", "UCX_TCP_RCVBUF"}) setenv(name, "16k", 1);
    ASSERT_TRUE(test_hosts().socket_bytes(16 * 1024));
  }
  void TearDown() override {
    for (const char* name : {"UCX_TCP_SNDBUF", "UCX_TCP_RCVBUF"}) unsetenv(name);
    if (!IsSkipped()) {
      EXPECT_TRUE(test_hosts().socket_bytes(4 << 20));
    }
  }

  // Rank 1 stops. Then rank 0 runs `sends`, which continues it. Then rank 1 runs `receives`.
  template <class Sends, class Receives>
  void while_stopped(const Sends& sends, const Receives& receives) {
    Shared<SharedCounter> moments;
    SpawnOptions options;
    options.in_parent = [&](const std::vector<pid_t>& ranks) {
      EXPECT_TRUE(moments->wait_at_least(1, 30));
      EXPECT_TRUE(stopped(ranks[1]));
      moments->add();
      EXPECT_TRUE(moments->wait_at_least(3, 30));
      kill(ranks[1], SIGCONT);
    };
    spawn(
        World::kHosts, 2,
        [&](Communicator& comm) {
          std::vector<char> data(kBytes);
          ASSERT_TRUE(is_ok(comm.broadcast(data.data(), data.data(), kBytes, Dtype::kUint8, 0)));  // makes connections
          if (comm.rank() == 1) {
            moments->add();
            kill(getpid(), SIGSTOP);
            receives(comm);
          } else {
            ASSERT_TRUE(moments->wait_at_least(2, 30));
            sends(comm, [&] { moments->add(); });
          }
        },
        options);
  }

 private:
  static bool stopped(pid_t pid) {
    const Stopwatch watch;
    while (process_state(static_cast<uint64_t>(pid), this_pid_namespace()) != "stopped")
      if (watch.seconds() > 20) return false;
    return true;
  }
};

TEST_F(ZeroCopyOnHosts, ASendIsDoneWhenItsBufferIsReadNoMore) {
  while_stopped(
      [](Communicator& comm, auto&& go_on) {
        std::vector<char> data(kBytes, 'a');
        Work work;
        ASSERT_TRUE(is_ok(comm.send(data.data(), kBytes, Dtype::kUint8, 1, nullptr, &work)));
        const Stopwatch watch;
        while (watch.seconds() < 0.1) ASSERT_EQ(work.test().code(), StatusCode::kInProgress);
        go_on();
        ASSERT_TRUE(is_ok(work.wait()));
        std::fill(data.begin(), data.end(), 'b');
      },
      [](Communicator& comm) {
        std::vector<char> data(kBytes);
        ASSERT_TRUE(is_ok(comm.recv(data.data(), kBytes, Dtype::kUint8, 0)));
        EXPECT_EQ(std::count(data.begin(), data.end(), 'a'), static_cast<ptrdiff_t>(kBytes));
      });
}

TEST_F(ZeroCopyOnHosts, ASendThatFailsLeavesItsBufferToItsCaller) {
  while_stopped(
      [](Communicator& comm, auto&& go_on) {
        void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(data, MAP_FAILED);
        std::memset(data, 'a', kBytes);
        CallOptions options;
        options.deadline_s = 0.3;
        const Stopwatch watch;
        EXPECT_TRUE(fails_with(comm.send(data, kBytes, Dtype::kUint8, 1, &options), StatusCode::kTimeout,
                               {"rank 1", "the network has not taken"}));
        EXPECT_LT(watch.seconds(), 2);
        munmap(data, kBytes);
        go_on();
      },
      [](Communicator& comm) {
        std::vector<char> data(kBytes);
        CallOptions options;
        options.deadline_s = 5;
        // Unsent data may have been cut off, or been copied: then all of it arrives.
        if (comm.recv(data.data(), kBytes, Dtype::kUint8, 0, &options).ok()) {
          EXPECT_EQ(std::count(data.begin(), data.end(), 'a'), static_cast<ptrdiff_t>(kBytes));
        }
        float first;
        EXPECT_FALSE(sum(comm, 3, &first).ok());
      });
}

}  // namespace rondo::testing

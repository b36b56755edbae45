// Attacks from the network on ranks of several hosts, with and without encryption: silent connections to their data
// ports, and altered messages. Also lists the open ports.
// labels: mp
// again with: RONDO_TRANSPORT=shm+ucx
// timeout: 120
// alone
#include <arpa/inet.h>
#include <dirent.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"
#include "support/test_hosts.h"

namespace rondo::testing {
namespace {

constexpr int kRanks = 4;
constexpr size_t kLongFrameBytes = 32 * 1024;  // of data: no control connection sends that much at once

bool over_ucx() {
  const char* set = std::getenv("RONDO_TRANSPORT");
  return set != nullptr && std::string(set).find("ucx") != std::string::npos;
}

struct Port {
  std::string address;  // as the kernel writes it: hexadecimal
  uint16_t number;
};

// The listening TCP ports in this network namespace; `own`: only of this process.
std::vector<Port> listening_ports(bool own) {
  std::set<std::string> sockets;
  if (DIR* fds = own ? opendir("/proc/self/fd") : nullptr; fds != nullptr) {
    char target[64] = {};
    for (const dirent* e = readdir(fds); e != nullptr; e = readdir(fds))
      if (const ssize_t n = readlinkat(dirfd(fds), e->d_name, target, sizeof target - 1); n > 0)
        sockets.insert(std::string(target, static_cast<size_t>(n)));
    closedir(fds);
  }
  std::vector<Port> ports;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state, skipped, inode;
      words >> number >> local >> remote >> state >> skipped >> skipped >> skipped >> skipped >> skipped >> inode;
      if (state != "0A" || (own && !sockets.contains("socket:[" + inode + "]"))) continue;
      const size_t colon = local.find(':');
      ports.push_back(
          {local.substr(0, colon), static_cast<uint16_t>(std::strtoul(local.substr(colon + 1).c_str(), nullptr, 16))});
    }
  }
  return ports;
}

bool connects(const std::string& address, uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  inet_pton(AF_INET, address.c_str(), &at.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);  // stays open until this process ends
  return connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0;
}

Status sum(Communicator& comm, uint64_t elems, float* last, double deadline_s = 0) {
  std::vector<float> in(elems, static_cast<float>(comm.rank() + 1)), out(elems);
  CallOptions options;
  options.deadline_s = deadline_s;
  const Status s = comm.all_reduce(in.data(), out.data(), elems, Dtype::kFloat32, Op::kSum, &options);
  *last = out[elems - 1];
  return s;
}

class Attacks : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_world(World::kHosts); !why.empty()) GTEST_SKIP() << why;
    setenv("RONDO_ENCRYPT", GetParam(), 1);
  }
  void TearDown() override { unsetenv("RONDO_ENCRYPT"); }
};
INSTANTIATE_TEST_SUITE_P(Encrypted, Attacks, ::testing::Values("off", "on"),
                         [](const auto& info) { return std::string(info.param); });

// 120 connections from each host to each port, before the ranks have sent anything.
struct Idle {
  SharedCounter made, listed, connected, ended;
  uint32_t num_ports[2] = {};
  uint16_t ports[2][32] = {};
};

void connect_and_say_nothing(Idle& idle, int host) {
  for (const Port& p : listening_ports(false))
    if (idle.num_ports[host] < std::size(idle.ports[host])) idle.ports[host][idle.num_ports[host]++] = p.number;
  rlimit most{};
  getrlimit(RLIMIT_NOFILE, &most);
  most.rlim_cur = most.rlim_max;
  setrlimit(RLIMIT_NOFILE, &most);
  idle.listed.add();
  if (!idle.listed.wait_at_least(2, 30)) _exit(1);
  constexpr int kEach = 120;
  int made[2] = {};
  for (int target = 0; target < 2; ++target)
    for (uint32_t p = 0; p < idle.num_ports[target]; ++p)
      for (int i = 0; i < kEach && connects(TestHosts::address(target), idle.ports[target][p]); ++i) ++made[target];
  if (std::min(made[0], made[1]) < 2 * kEach) _exit(2);  // a port may belong to another interface
  idle.connected.add();
  _exit(idle.ended.wait_at_least(kRanks, 90) ? 0 : 3);
}

TEST_P(Attacks, IdleConnectionsKeepNoRankAway) {
  Shared<Idle> idle;
  SpawnOptions options;
  options.in_parent = [&](const std::vector<pid_t>&) {
    EXPECT_TRUE(idle->made.wait_at_least(kRanks, 30));
    pid_t children[2] = {};
    for (int host = 0; host < 2; ++host)
      if ((children[host] = fork()) == 0) {
        if (!test_hosts().enter(host)) _exit(4);
        connect_and_say_nothing(*idle, host);
      }
    for (const pid_t child : children) {
      int status = 1;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(WEXITSTATUS(status), 0);
    }
    EXPECT_GE(idle->num_ports[0], 2u) << "the ranks of host 0 listen";
  };
  spawn(
      World::kHosts, kRanks,
      [&](Communicator& comm) {
        idle->made.add();
        EXPECT_TRUE(idle->connected.wait_at_least(2, 30));
        float last = 0;
        for (const uint64_t elems : {1, 1009, 300007}) {
          EXPECT_TRUE(is_ok(sum(comm, elems, &last, 30)));
          EXPECT_EQ(last, 10);
        }
        idle->ended.add();
      },
      options);
}

// An attacker between the hosts flips one bit of one data message.
TEST_P(Attacks, AnAlteredMessageFailsAllRanksAtOnce) {
  if (std::string(GetParam()) == "off") GTEST_SKIP() << "messages without encryption are not authenticated";
  ASSERT_TRUE(test_hosts().delay(0, 0, -1, kLongFrameBytes));
  spawn(World::kHosts, kRanks, [](Communicator& comm) {
    float last = 0;
    const Stopwatch watch;
    Status s = sum(comm, 300007, &last, 30);
    while (s.ok() && watch.seconds() < 10) s = sum(comm, 300007, &last, 30);  // its part of the first may have been
                                                                              // over
    EXPECT_TRUE(fails_with(s, StatusCode::kAborted, {"tampers with the network between these two ranks", "altered"}));
    EXPECT_LT(watch.seconds(), 10);
    // "a message from rank 2 to rank 0 was altered": the two ranks are on different hosts
    const std::string text(s.message());
    const size_t at = text.find("from rank ");
    ASSERT_NE(at, text.npos) << text;
    const int from = std::atoi(text.c_str() + at + 10), to = std::atoi(text.c_str() + text.find("to rank ", at) + 8);
    EXPECT_NE(host_of(from, kRanks), host_of(to, kRanks)) << text;
  });
  EXPECT_TRUE(test_hosts().no_delay());
}

// RONDO_SOCKET_IFNAME also selects the interfaces for data.
TEST_P(Attacks, RanksListenOnChosenInterfacesAlone) {
  if (over_ucx()) GTEST_SKIP() << "UCX uses only UCX_NET_DEVICES";
  const std::string eth0 = "01004D0A", lo = "0100007F", lo6 = "00000000000000000000000001000000";  // 10.77.0.1
  for (const auto& [world, interfaces] : {std::pair(World::kHosts, "eth0"), std::pair(World::kTcp, "=lo")}) {
    setenv("RONDO_SOCKET_IFNAME", interfaces, 1);
    spawn(world, kRanks, [&](Communicator& comm) {
      const std::vector<Port> ports = listening_ports(true);
      EXPECT_FALSE(ports.empty());
      for (const Port& p : ports)
        EXPECT_TRUE(world == World::kTcp ? p.address == lo || p.address == lo6 : p.address.ends_with(eth0.substr(2)))
            << p.address;
      float last = 0;
      EXPECT_TRUE(is_ok(comm.barrier()));
      EXPECT_TRUE(is_ok(sum(comm, 300007, &last)));
      EXPECT_EQ(last, 10);
    });
    unsetenv("RONDO_SOCKET_IFNAME");
  }
}

}  // namespace
}  // namespace rondo::testing

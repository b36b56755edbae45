// Bootstrap among ranks as threads: joining, gathering, descriptors, leaving, and all errors.
// labels: unit mp
// timeout: 120
// again with: RONDO_TEST_FULL_MESH=3
#include "bootstrap/bootstrap.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "bootstrap/bootstrap_harness.h"
#include "bootstrap/unique_id.h"

namespace rondo {
namespace {

class BootstrapRanks : public ::testing::TestWithParam<int> {};

// Rank r contributes r * 1000 copies of its letter; rank 0 contributes nothing.
std::string blob_of(Rank r) { return std::string(static_cast<size_t>(r) * 1000, static_cast<char>('a' + r % 26)); }

void gather_and_check(Bootstrap& b) {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::string> all;
    const std::string mine = blob_of(b.rank());
    ASSERT_OK(b.all_gather(mine.data(), mine.size(), &all));
    ASSERT_EQ(all.size(), static_cast<size_t>(b.nranks()));
    for (Rank r = 0; r < b.nranks(); ++r) EXPECT_EQ(all[r], blob_of(r)) << "rank " << r << " seen by " << b.rank();
    ASSERT_OK(b.barrier());
  }
}

TEST_P(BootstrapRanks, ThreadsGather) {
  const auto results = testing::join_threads(GetParam(), {}, [](Bootstrap& b) {
    gather_and_check(b);
    for (Rank r = 0; r < b.nranks(); ++r) {
      EXPECT_TRUE(b.same_host(r));
      EXPECT_TRUE(b.same_process(r));
    }
    EXPECT_FALSE(b.find_lost().has_value());
  });
  for (const Status& s : results) EXPECT_OK(s);
}

TEST_P(BootstrapRanks, ProcessesGather) {
  const auto results = testing::join_processes(GetParam(), {}, [](Bootstrap& b) {
    gather_and_check(b);
    for (Rank r = 0; r < b.nranks(); ++r) EXPECT_EQ(b.same_process(r), r == b.rank());
    EXPECT_FALSE(b.find_lost().has_value());
    return !::testing::Test::HasFailure();
  });
  for (const std::string& s : results) EXPECT_EQ(s, "ok");
}

// The TCP mesh: every rank, or every two, pretend to be a separate host.
TEST_P(BootstrapRanks, HostsGatherThroughTcp) {
  for (const int ranks_per_host : {1, 2}) {
    const auto results = testing::join_threads(
        GetParam(), {.ranks_per_host = ranks_per_host}, [&](Bootstrap& b) {
          gather_and_check(b);
          for (Rank r = 0; r < b.nranks(); ++r)
            EXPECT_EQ(b.same_host(r), r / ranks_per_host == b.rank() / ranks_per_host);
        });
    for (const Status& s : results) EXPECT_OK(s);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, BootstrapRanks, ::testing::Values(1, 2, 5, 16, 17, 40));  // from 17 on through blocks

// Payloads larger than any socket buffer, all sent at once: sends and receives must progress together.
TEST(Bootstrap, GathersLargePayloads) {
  for (const int ranks_per_host : {0, 1}) {
    const auto results = testing::join_threads(3, {.ranks_per_host = ranks_per_host}, [](Bootstrap& b) {
      const std::string mine(8u << 20, static_cast<char>('a' + b.rank()));
      std::vector<std::string> all;
      ASSERT_OK(b.all_gather(mine.data(), mine.size(), &all));
      for (Rank r = 0; r < b.nranks(); ++r) EXPECT_TRUE(all[r] == std::string(8u << 20, static_cast<char>('a' + r)));
    });
    for (const Status& s : results) EXPECT_OK(s);
  }
}

int shared_page(uint64_t value) {
  const int fd = ::memfd_create("bootstrap-test", MFD_CLOEXEC);
  if (::ftruncate(fd, 4096) != 0 || ::pwrite(fd, &value, sizeof(value), 0) != sizeof(value)) return -1;
  return fd;
}

// Every rank writes to every rank's page. After a barrier each owner sees all of it.
bool share_pages(Bootstrap& b) {
  const int mine = shared_page(static_cast<uint64_t>(b.rank()) + 100);
  std::vector<FromRank> all;
  const std::string text = std::to_string(b.rank());
  if (const Status s = b.all_gather_here(text, {&mine, 1}, &all); !s.ok()) return ADD_FAILURE() << s.to_string(), false;
  for (Rank r = 0; r < b.nranks(); ++r) {
    EXPECT_EQ(all[r].bytes, b.same_host(r) ? std::to_string(r) : "");
    EXPECT_EQ(all[r].descriptors.size(), b.same_host(r) && r != b.rank() ? 1u : 0u);
    for (const Fd& fd : all[r].descriptors) {
      EXPECT_TRUE((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
      auto* page = static_cast<uint64_t*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
      EXPECT_EQ(page[0], static_cast<uint64_t>(r) + 100);
      page[1 + b.rank()] = static_cast<uint64_t>(b.rank()) + 1;
      ::munmap(page, 4096);
    }
  }
  EXPECT_OK(b.barrier());
  auto* page = static_cast<uint64_t*>(::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, mine, 0));
  for (Rank r = 0; r < b.nranks(); ++r)
    EXPECT_EQ(page[1 + r], r != b.rank() && b.same_host(r) ? static_cast<uint64_t>(r) + 1 : 0u);
  ::munmap(page, 4096);
  ::close(mine);
  return !::testing::Test::HasFailure();
}

TEST_P(BootstrapRanks, DescriptorsMapTheSameMemoryInThreads) {
  for (const int ranks_per_host : {0, 2})
    for (const Status& s : testing::join_threads(GetParam(), {.ranks_per_host = ranks_per_host},
                                                 [&](Bootstrap& b) { share_pages(b); }))
      EXPECT_OK(s);
}

TEST_P(BootstrapRanks, DescriptorsMapTheSameMemoryInProcesses) {
  for (const int ranks_per_host : {0, 2})
    for (const std::string& s : testing::join_processes(GetParam(), {.ranks_per_host = ranks_per_host},
                                                        [&](Bootstrap& b) { return share_pages(b); }))
      EXPECT_EQ(s, "ok");
}

// More than one message carries, different on every rank, and only on one of two hosts: the next call must still work.
TEST(Bootstrap, ExchangesMoreDescriptorsThanOneMessageCarries) {
  const auto results = testing::join_threads(3, {.ranks_per_host = 2}, [](Bootstrap& b) {
    const std::vector<int> mine(b.rank() == 0 ? 270 : 3, b.rank() == 0 ? STDIN_FILENO : STDOUT_FILENO);
    std::vector<FromRank> all;
    ASSERT_OK(b.all_gather_here({}, mine, &all));
    for (Rank r = 0; r < 3; ++r) {
      const size_t expected = r == b.rank() || !b.same_host(r) ? 0 : r == 0 ? 270 : 3;
      EXPECT_EQ(all[r].descriptors.size(), expected);
    }
    gather_and_check(b);
  });
  for (const Status& s : results) EXPECT_OK(s);
}

TEST(Bootstrap, FindLostIsAnswerableFromOtherThreadsMeanwhile) {
  std::atomic<int> num_done = 0;
  const auto results = testing::join_threads(3, {}, [&](Bootstrap& b) {
    std::thread watcher([&] {
      while (num_done < 3) EXPECT_FALSE(b.find_lost().has_value());
    });
    for (int i = 0; i < 200; ++i) EXPECT_OK(b.barrier());
    ++num_done;
    watcher.join();
  });
  for (const Status& s : results) EXPECT_OK(s);
}

TEST(Bootstrap, LeavesNoDescriptorsBehind) {
  const int before = testing::num_open_descriptors();
  for (int round = 0; round < 3; ++round) {
    for (const Status& s : testing::join_threads(4, {.ranks_per_host = round}, [](Bootstrap& b) { gather_and_check(b); }))
      EXPECT_OK(s);
    for (const std::string& s : testing::join_processes(3, {}, [](Bootstrap& b) { return b.barrier().ok(); }))
      EXPECT_EQ(s, "ok");
  }
  // The rendezvous thread closes its sockets shortly after the last rank has left it.
  EXPECT_TRUE(testing::eventually(5, [&] { return testing::num_open_descriptors() == before; }))
      << before << " before, " << testing::num_open_descriptors() << " after";
}

TEST(Bootstrap, IdsAreDistinct) {
  const rondo_unique_id a = testing::new_id(), b = testing::new_id();
  const auto x = decode_id(a), y = decode_id(b);
  ASSERT_OK(x.status());
  ASSERT_OK(y.status());
  EXPECT_NE(x->secret, y->secret);
  EXPECT_NE(x->port, y->port);
  EXPECT_GE(x->addresses.size(), 1u);
  EXPECT_EQ(x->host_hash, y->host_hash);
}

TEST(Interfaces, TheNearestAddressIsTaken) {
  const IpAddress near{.bytes = {10, 1, 2, 9}}, far{.bytes = {172, 17, 0, 1}}, own{.bytes = {10, 1, 3, 4}};
  IpAddress v6{.v6 = true};
  v6.bytes[0] = 0x20;
  v6.bytes[15] = 1;
  EXPECT_EQ(nearest_host({far, near}, {own}), "10.1.2.9");
  EXPECT_EQ(nearest_host({far, near}, {own, far}), "10.1.2.9");  // an address that both have is not a route
  EXPECT_EQ(nearest_host({far}, {far}), "172.17.0.1");
  EXPECT_EQ(nearest_host({near, v6}, {IpAddress{.v6 = true, .bytes = {0x20}}}), "2000::1");
  EXPECT_EQ(nearest_host({far}, {}), "172.17.0.1");
  EXPECT_EQ(nearest_host({}, {own}), "");
}

TEST(Interfaces, SelectionFollowsNcclsNotation) {
  EXPECT_TRUE(interface_selected("eth", "eth0"));
  EXPECT_FALSE(interface_selected("=eth", "eth0"));
  EXPECT_TRUE(interface_selected("=eth0,ib0", "ib0"));
  EXPECT_FALSE(interface_selected("^docker,lo", "docker0"));
  EXPECT_TRUE(interface_selected("^docker,lo", "eth0"));
  const auto none = usable_addresses("=no-such-interface");
  EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
  const auto loopback = usable_addresses("=lo");
  ASSERT_OK(loopback.status());
  EXPECT_EQ(loopback->front().to_string(7), "127.0.0.1:7");
}

}  // namespace
}  // namespace rondo

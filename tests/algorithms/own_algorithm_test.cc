// An algorithm from outside of the library: refused with a reason while it is wrong, an ordinary row once it is right.
// labels: unit tsan
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "../examples/05_own_algorithm/star.h"
#include "algorithms/registry.h"
#include "plan/settings.h"
#include "schedule/checker.h"
#include "support/ranks_settings.h"
#include "support/shared.h"
#include "support/spawn.h"

namespace rondo {
namespace {

/// The reason of the refusal.
std::string refusal(const Algorithm& a) {
  const size_t before = all_algorithms().size();
  const Status status = register_algorithm(a);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << a.name;
  EXPECT_EQ(all_algorithms().size(), before) << "a refused algorithm must add no row";
  return std::string(status.message());
}

Algorithm star_with(void (*record)(Recorder&, Rank, int, Rank)) {
  Algorithm a = kStar;
  a.name = "wrong_star";
  a.record = record;
  return a;
}

TEST(OwnAlgorithm, RowsAreChecked) {
  Algorithm a = kStar;
  a.name = "Star";
  EXPECT_NE(refusal(a).find("name \"Star\""), std::string::npos);
  a.name = "a_name_of_more_than_thirty_characters";
  EXPECT_NE(refusal(a).find("at most 23"), std::string::npos);
  a = kStar, a.name = "ring";
  EXPECT_NE(refusal(a).find("there is an algorithm ring of all_reduce already"), std::string::npos);
  a = kStar, a.name = "no_text", a.record = nullptr;
  EXPECT_NE(refusal(a).find("record"), std::string::npos);
  a = kStar, a.name = "sender", a.collective = Collective::kSend;
  EXPECT_NE(refusal(a).find("send"), std::string::npos);
  a = kStar, a.name = "puller", a.pulls_only = true;
  EXPECT_NE(refusal(a).find("pulls_only"), std::string::npos);
}

TEST(OwnAlgorithm, OtherHeadersAreRefused) {
  const Status status = register_algorithm(kStar, kAlgorithmAbi + 1);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("compile it with the headers"), std::string_view::npos) << status.to_string();
#if defined(__GLIBCXX__) && defined(__x86_64__)  // plugins compile this in: when it changes, raise kAlgorithmAbi
  EXPECT_EQ(kAlgorithmAbi, 4u);
  EXPECT_EQ(sizeof(Algorithm), 88u);
  EXPECT_EQ(sizeof(Cost), 32u);
  EXPECT_EQ(sizeof(HostLayout), 120u);
  EXPECT_EQ(sizeof(Recorder), 160u);
  EXPECT_EQ(sizeof(TextLine), 16u);
  EXPECT_EQ(sizeof(Chunk), 12u);
#endif
}

TEST(OwnAlgorithm, WrongTextsAreNamedByInstruction) {
  // The root does not take part: its contribution is missing everywhere.
  EXPECT_NE(refusal(star_with([](Recorder& p, Rank rank, int nranks, Rank) {
              p.chunks(1, 1);
              p.lane(0);
              if (nranks == 1) return p.copy(in(0), out(0), Sum::kFinal);
              if (rank != 0) {
                p.send(in(0), {{0, 0}});
                return p.recv({{0, 1}}, out(0));
              }
              for (Rank leaf = 1; leaf < nranks; ++leaf) p.recv_copy_send({{leaf, 0}}, out(0), {{leaf, 1}});
            })).find("2 ranks: rank 0 ends with out[0] lacking the contributions of ranks {0}"),
            std::string::npos);
  EXPECT_NE(refusal(star_with([](Recorder& p, Rank rank, int nranks, Rank root) {
              star_all_reduce(p, rank, nranks, root);
              if (nranks > 2 && rank == 1) p.recv({{2, 0}}, out(0));  // no rank sends that
            })).find("rank 1 lane 1 pc 1"),
            std::string::npos);
  EXPECT_NE(refusal(star_with([](Recorder& p, Rank rank, int, Rank) {
              p.chunks(1, 1);
              p.lane(0);
              p.copy(in(1), out(rank));
            })).find("names in[1], which does not exist: in has 1 chunk (in[0])"),
            std::string::npos);
  EXPECT_NE(refusal(star_with([](Recorder& p, Rank rank, int nranks, Rank root) {
              star_all_reduce(p, rank, nranks, root);
              if (nranks == 2) p.send(in(0), {{1 - rank, kTagPointToPoint}});
            })).find("tag 0xfff0"),
            std::string::npos);
  Algorithm cheap = kStar;
  cheap.name = "cheap_star";
  cheap.cost = [](int nranks) { return nranks == 1 ? star_cost(1) : Cost{1, 1, 1}; };
  EXPECT_NE(refusal(cheap).find("takes 2 steps where 1 are claimed"), std::string::npos);
}

TEST(OwnAlgorithm, MoreUnderWayThanFindsRoomIsRefused) {
  Algorithm a = star_with([](Recorder& p, Rank rank, int nranks, Rank) {
    p.chunks(9, 9);
    p.lane(0);
    if (nranks == 1) return p.copy(in(0, 9), out(0, 9), Sum::kFinal);
    p.send(in(0, 9), {{1 - rank, 0}});  // sends everything before it reads
    p.recv_reduce_copy({{1 - rank, 0}}, in(0, 9), out(0, 9), own_after(rank), Sum::kFinal);
  });
  a.cost = [](int nranks) { return nranks == 1 ? Cost{0, 0, 9} : Cost{1, 9, 9}; };
  EXPECT_NE(
      refusal(a).find("2 ranks: it needs 9 messages under way on one connection, which has guaranteed space for 8"),
      std::string::npos);
}

TEST(OwnAlgorithm, DirectOnesSendNoDataInMessages) {
  Algorithm a = kStar;
  a.name = "direct_star";
  a.direct = true;
  EXPECT_NE(refusal(a).find("a direct algorithm sends credits alone"), std::string::npos) << refusal(a);
}

TEST(OwnAlgorithm, WhatIsTrueForFewRanksOnlyIsProvenWhenManyMeet) {
  Algorithm a = kStar;
  a.name = "small_star";
  a.record = [](Recorder& p, Rank rank, int nranks, Rank root) {
    star_all_reduce(p, rank, rank == 0 ? std::min(nranks, 9) : nranks, root);
  };
  EXPECT_TRUE(prove_algorithm(a, 8).ok());
  const Status status = prove_algorithm(a, 10);
  EXPECT_NE(status.message().find("small_star of all_reduce, 10 ranks"), std::string_view::npos) << status.to_string();
}

/// The star, registered once in this process.
const Algorithm& star() {
  static const Status status = register_algorithm(kStar);
  EXPECT_TRUE(status.ok()) << status.to_string();
  const Algorithm* a = find_algorithm(Collective::kAllReduce, "star");
  EXPECT_NE(a, nullptr);
  return *a;
}

/// One lane sends many chunks while another receives. Therefore the proof needs space for one message only.
constexpr int kExchangedChunks = 33;
void exchange() {
  static const Status status = [] {
    Algorithm a = kStar;
    a.name = "exchange";
    a.record = [](Recorder& p, Rank rank, int nranks, Rank) {
      p.chunks(kExchangedChunks, kExchangedChunks);
      PortSet others;
      for (Rank r = 0; r < nranks; ++r)
        if (r != rank) others.push_back({r, 0});
      p.lane(0);
      for (uint16_t c = 0; c < kExchangedChunks; ++c) p.send(in(c), others);
      p.lane(1);
      for (uint16_t c = 0; c < kExchangedChunks; ++c) {
        p.wait(0, c);
        p.recv_reduce_copy(others, in(c), out(c), own_after(rank), Sum::kFinal);
      }
    };
    a.cost = [](int nranks) { return Cost{1, nranks - 1, 1}; };
    return register_algorithm(a);
  }();
  ASSERT_TRUE(status.ok()) << status.to_string();
}

TEST(OwnAlgorithm, IsARowLikeAnyOther) {
  const Algorithm& a = star();
  EXPECT_EQ(&a, &all_algorithms().back());
  EXPECT_NE(a.name.data(), kStar.name.data()) << "texts are copied";
  for (int n = 1; n <= 33; ++n) {
    const CheckReport report = check_roots(a, n);
    EXPECT_TRUE(report.ok) << report.reason;
  }
  EXPECT_NE(explain_algorithm(a, 4).find("S0 = (A0+B0+C0+D0)"), std::string::npos) << explain_algorithm(a, 4);
  EXPECT_NE(explain_algorithm(a, 0).find("nranks is 0"), std::string::npos) << explain_algorithm(a, 0);
  EXPECT_NE(explain_algorithm(a, 257).find("1 to 256 ranks"), std::string::npos) << explain_algorithm(a, 257);
  for (const Rank root : {-1, 4})
    EXPECT_NE(explain_algorithm(a, 4, root).find("root is " + std::to_string(root)), std::string::npos);
  EXPECT_NE(refusal(kStar).find("already"), std::string::npos) << "once only";
}

// (Before the first communicator of this process, which the tests below make.)
TEST(OwnAlgorithm, ThreadsMayRegisterAtOnce) {
  static const char* const names[] = {"first_star", "second_star", "third_star", "first_star"};
  std::vector<Status> statuses(std::size(names));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::size(names); ++i)
    threads.emplace_back([&statuses, i] {
      Algorithm a = kStar;
      a.name = names[i];
      statuses[i] = register_algorithm(a);
    });
  for (std::thread& thread : threads) thread.join();
  for (const char* name : names) EXPECT_NE(find_algorithm(Collective::kAllReduce, name), nullptr) << name;
  EXPECT_TRUE(statuses[1].ok() && statuses[2].ok());
  EXPECT_NE(statuses[0].ok(), statuses[3].ok()) << "one of two of the same name";
}

TEST(OwnAlgorithm, RunsWhenACallNamesIt) {  // as processes: tests/tools/plugin_test.cc
  star();
  if (!testing::kSanitized) exchange();
  for (int nranks : {1, 2, 3, 5, 9})
    testing::spawn_threads(nranks, [](Communicator& comm) {
      for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{100000}}) {
        std::vector<int32_t> data(count);
        for (uint64_t i = 0; i < count; ++i) data[i] = static_cast<int32_t>(i) * 3 + comm.rank() * 1000;
        CallOptions options;
        options.algorithm = "star";
        const Status status = comm.all_reduce(data.data(), data.data(), count, Dtype::kInt32, Op::kSum, &options);
        ASSERT_TRUE(status.ok()) << status.to_string();
        const int32_t n = comm.size();
        for (uint64_t i = 0; i < count; ++i)
          ASSERT_EQ(data[i], n * static_cast<int32_t>(i) * 3 + n * (n - 1) / 2 * 1000) << i;
      }
    });
}

TEST(OwnAlgorithm, MaySendMoreMessagesThanHaveSpaceWhileItReceives) {
  if (testing::kSanitized) GTEST_SKIP() << "the proof takes minutes with a sanitizer";
  exchange();
  for (const int nranks : {2, 3})
    testing::spawn_threads(nranks, [](Communicator& comm) {
      for (const uint64_t chunk_bytes : {8, 100, 1000, 20'000})  // inline and in rings
        for (int call = 0; call < 20; ++call) {
          std::vector<int32_t> data(kExchangedChunks * chunk_bytes / sizeof(int32_t), 1 + comm.rank() + call);
          CallOptions options;
          options.algorithm = "exchange";
          const Status s = comm.all_reduce(data.data(), data.data(), data.size(), Dtype::kInt32, Op::kSum, &options);
          ASSERT_TRUE(s.ok()) << s.to_string();
          const int n = comm.size();
          ASSERT_EQ(data, std::vector<int32_t>(data.size(), n * (n + 1) / 2 + n * call));
        }
    });
}

TEST(OwnAlgorithm, ComesTooLateAfterTheFirstCommunicator) {
  star();
  ASSERT_TRUE(Communicator::init_all(1).ok());
  Algorithm late = kStar;
  late.name = "late_star";
  EXPECT_NE(refusal(late).find("before the first communicator"), std::string::npos);
}

TEST(OwnAlgorithm, RanksThatRegisterDifferentOnesAreNamed) {
  star();
  std::vector<Settings> all(3, *read_settings({}));
  EXPECT_TRUE(agree(0, all[0], testing::ranks_settings(all), 3).ok());
  EXPECT_NE(std::string_view(all[0].algorithms).find("star of all_reduce"), std::string_view::npos);
  all[2].algorithms.clear();
  const Status status = agree(1, all[1], testing::ranks_settings(all), 3).status();
  EXPECT_EQ(status.code(), StatusCode::kMismatch);
  EXPECT_NE(status.message().find("rank 0 has star of all_reduce"), std::string_view::npos) << status.to_string();
  EXPECT_NE(status.message().find("rank 2 has not set"), std::string_view::npos) << status.to_string();
}

}  // namespace
}  // namespace rondo

// labels: mp
// timeout: 60
#include <gtest/gtest.h>

#include <vector>

#include "support/fault_case.h"
#include "support/link_transport.h"
#include "support/spawn_processes.h"

namespace rondo::testing {
namespace {

TEST(LinkTransportProcesses, ProcessesToo) {
  constexpr int kRanks = 2;
  IdPipes id_pipes(kRanks);
  report(run_processes_bare(kRanks,
                            [&](Rank rank) -> Status {
                              RONDO_TRY_ASSIGN(const UniqueId id, id_pipes.exchange(rank));
                              RONDO_TRY_ASSIGN(const auto comm, init_rank_with(behind_line({.bytes_per_us = 1e4}),
                                                                               kRanks, id, rank, {}));
                              std::vector<float> x(100003, 1.0f);
                              RONDO_TRY(comm->all_reduce(x.data(), x.data(), x.size(), Dtype::kFloat32, Op::kSum));
                              EXPECT_EQ(x, std::vector<float>(x.size(), 2.0f));
                              return {};
                            },
                            {}),
         {});
}

}  // namespace
}  // namespace rondo::testing

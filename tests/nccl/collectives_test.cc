// Collectives, messages, groups and reduction operators through NCCL's interface, ranks as threads.
// labels: unit tsan
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "nccl/nccl_ranks.h"
#include "rondo/nccl_ext.h"
#include "support/exact_data.h"
#include "support/shared.h"

namespace rondo::testing {
namespace {

constexpr int kRanks = 3;
constexpr size_t kCount = kSanitized ? 50 : 501;

ncclDataType_t type_of(Dtype t) { return static_cast<ncclDataType_t>(t); }

// premul_scale() as an element of the call's type.
std::vector<char> scale_of(const DataSpec& spec, int rank) {
  const uint64_t scale = premul_scale(spec, rank);
  std::vector<char> element(8);
  if (is_float(spec.dtype)) encode_float(spec.dtype, decode_float(accumulator_of(spec.dtype), &scale), element.data());
  else std::memcpy(element.data(), &scale, sizeof scale);
  return element;
}

TEST(NcclCollectives, EveryTypeAndOperator) {
  run_comms(kRanks, [](int rank, ncclComm_t comm) {
    for (int t = 0; t < kNumDtypes; ++t)
      for (int o = 0; o < kNumArithmeticOps; ++o) {
        const DataSpec spec{static_cast<Dtype>(t), static_cast<Op>(o), kRanks, 7};
        const size_t bytes = kCount * dtype_bytes(spec.dtype);
        std::vector<char> in(bytes), out(bytes), expected(bytes);
        fill_exact(spec, rank, 0, kCount, in.data());
        expect_exact(spec, 0, kCount, expected.data());
        auto op = static_cast<ncclRedOp_t>(o);
        std::vector<char> scale = scale_of(spec, rank);
        const bool premul = spec.op == Op::kPremulSum;
        if (premul) {
          ASSERT_TRUE(succeeds(ncclRedOpCreatePreMulSum(
              &op, scale.data(), type_of(spec.dtype), t % 2 != 0 ? ncclScalarDevice : ncclScalarHostImmediate, comm)));
          if (t % 2 == 0) std::fill(scale.begin(), scale.end(), '\x7f');  // it was read at once
        }
        ASSERT_TRUE(succeeds(ncclAllReduce(in.data(), out.data(), kCount, type_of(spec.dtype), op, comm, nullptr)));
        if (premul) {
          ASSERT_TRUE(succeeds(ncclRedOpDestroy(op, comm)));
        }
        EXPECT_EQ(first_difference(spec.dtype, out.data(), expected.data(), kCount), kCount)
            << dtype_name(spec.dtype) << " " << op_name(spec.op);
      }
  });
}

TEST(NcclCollectives, EachMovesWhatItShould) {
  run_comms(kRanks, [](int rank, ncclComm_t comm) {
    const auto value = [](int r, size_t i) { return static_cast<int>(1000 * (r + 1) + static_cast<int>(i)); };
    std::vector<int> one(kCount), each(kRanks * kCount), out(kRanks * kCount);
    for (size_t i = 0; i < kCount; ++i) one[i] = value(rank, i);
    for (size_t i = 0; i < each.size(); ++i) each[i] = value(rank, i);
    for (int root = 0; root < kRanks; ++root) {
      out.assign(out.size(), 0);
      ASSERT_TRUE(succeeds(
          ncclBroadcast(rank == root ? one.data() : nullptr, out.data(), kCount, ncclInt32, root, comm, nullptr)));
      for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], value(root, i));
      std::vector<int> in_place = one;
      ASSERT_TRUE(succeeds(ncclBcast(in_place.data(), kCount, ncclInt32, root, comm, nullptr)));
      for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(in_place[i], value(root, i));
      ASSERT_TRUE(succeeds(ncclReduce(one.data(), rank == root ? out.data() : nullptr, kCount, ncclInt32, ncclMax, root,
                                      comm, nullptr)));
      for (size_t i = 0; rank == root && i < kCount; ++i) ASSERT_EQ(out[i], value(kRanks - 1, i));
      ASSERT_TRUE(succeeds(
          ncclGather(one.data(), rank == root ? out.data() : nullptr, kCount, ncclInt32, root, comm, nullptr)));
      for (size_t i = 0; rank == root && i < out.size(); ++i)
        ASSERT_EQ(out[i], value(static_cast<int>(i / kCount), i % kCount));
      ASSERT_TRUE(succeeds(
          ncclScatter(rank == root ? each.data() : nullptr, out.data(), kCount, ncclInt32, root, comm, nullptr)));
      for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], value(root, static_cast<size_t>(rank) * kCount + i));
    }
    ASSERT_TRUE(succeeds(ncclAllGather(one.data(), out.data(), kCount, ncclInt32, comm, nullptr)));
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], value(static_cast<int>(i / kCount), i % kCount));
    ASSERT_TRUE(succeeds(ncclAlltoAll(each.data(), out.data(), kCount, ncclInt32, comm, nullptr)));
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_EQ(out[i], value(static_cast<int>(i / kCount), static_cast<size_t>(rank) * kCount + i % kCount));
    ASSERT_TRUE(succeeds(ncclReduceScatter(each.data(), out.data(), kCount, ncclInt32, ncclMin, comm, nullptr)));
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], value(0, static_cast<size_t>(rank) * kCount + i));
  });
}

TEST(NcclCollectives, InPlaceAndOtherOverlaps) {
  run_comms(2, [](int rank, ncclComm_t comm) {
    std::vector<float> all(2 * kCount, static_cast<float>(rank + 1));
    ASSERT_TRUE(succeeds(ncclAllGather(all.data() + static_cast<size_t>(rank) * kCount, all.data(), kCount, ncclFloat32,
                                       comm, nullptr)));
    EXPECT_EQ(all[0], 1.0f);
    EXPECT_EQ(all[kCount], 2.0f);
    ASSERT_TRUE(succeeds(ncclReduceScatter(all.data(), all.data() + static_cast<size_t>(rank) * kCount, kCount,
                                           ncclFloat32, ncclSum, comm, nullptr)));
    EXPECT_EQ(all[static_cast<size_t>(rank) * kCount], rank == 0 ? 2.0f : 4.0f);
    EXPECT_TRUE(fails_with(ncclInvalidArgument, {"overlap"},
                           ncclAllReduce(all.data(), all.data() + 1, kCount, ncclFloat32, ncclSum, comm, nullptr)));
    expect_works(comm);  // a wrong argument has no effect
  });
}

TEST(NcclCollectives, NothingAndOneRank) {
  run_comms(2, [](int rank, ncclComm_t comm) {
    EXPECT_TRUE(succeeds(ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, comm, nullptr)));
    if (rank == 0) {  // a call of one rank only
      EXPECT_TRUE(succeeds(ncclAllGather(nullptr, nullptr, 0, ncclFloat32, comm, nullptr)));
    }
    EXPECT_TRUE(succeeds(rank == 0 ? ncclSend(nullptr, 0, ncclFloat32, 1, comm, nullptr)
                                   : ncclRecv(nullptr, 0, ncclFloat32, 0, comm, nullptr)));
    EXPECT_TRUE(fails_with(ncclInvalidArgument, {"null"},
                           ncclAllReduce(nullptr, nullptr, 1, ncclFloat32, ncclSum, comm, nullptr)));
    expect_works(comm);
  });
  run_comms(1, [](int, ncclComm_t comm) {
    float scale = 3, in = 5, out = 0;
    ncclRedOp_t op;
    ASSERT_TRUE(succeeds(ncclRedOpCreatePreMulSum(&op, &scale, ncclFloat32, ncclScalarHostImmediate, comm)));
    ASSERT_TRUE(succeeds(ncclAllReduce(&in, &out, 1, ncclFloat32, op, comm, nullptr)));
    EXPECT_EQ(out, 15.0f);
    ASSERT_TRUE(succeeds(ncclAllReduce(&in, &out, 1, ncclFloat32, ncclAvg, comm, nullptr)));
    EXPECT_EQ(out, 5.0f);
  });
}

TEST(NcclCollectives, MessagesInGroupsAndToOneself) {
  run_comms(kRanks, [](int rank, ncclComm_t comm) {
    const int next = (rank + 1) % kRanks, before = (rank + kRanks - 1) % kRanks;
    std::vector<int> out(kCount, rank), in(kCount, -1);
    int self_out = 40 + rank, self_in = 0;
    ASSERT_TRUE(succeeds(ncclGroupStart()));
    ASSERT_TRUE(succeeds(ncclSend(out.data(), kCount, ncclInt32, next, comm, nullptr)));
    ASSERT_TRUE(succeeds(ncclRecv(in.data(), kCount, ncclInt32, before, comm, nullptr)));
    ASSERT_TRUE(succeeds(ncclSend(&self_out, 1, ncclInt32, rank, comm, nullptr)));
    ASSERT_TRUE(succeeds(ncclRecv(&self_in, 1, ncclInt32, rank, comm, nullptr)));
    EXPECT_EQ(in[0], -1);  // nothing runs before the end
    ASSERT_TRUE(succeeds(ncclGroupEnd()));
    EXPECT_EQ(in, std::vector<int>(kCount, before));
    EXPECT_EQ(self_in, 40 + rank);
  });
}

TEST(NcclGroups, OneThreadDrivesSeveralRanksAndCommunicators) {
  std::vector<ncclComm_t> a(kRanks), b(2);
  ASSERT_TRUE(succeeds(ncclCommInitAll(a.data(), kRanks, nullptr)));
  const int same[] = {0, 0};  // several ranks on one device
  ASSERT_TRUE(succeeds(ncclCommInitAll(b.data(), 2, same)));
  std::vector<float> x(kRanks), y(2);
  std::iota(x.begin(), x.end(), 1.0f);
  std::iota(y.begin(), y.end(), 1.0f);
  ASSERT_TRUE(succeeds(ncclGroupStart()));
  for (size_t r = 0; r < a.size(); ++r) {
    ASSERT_TRUE(succeeds(ncclGroupStart()));  // nested
    ASSERT_TRUE(succeeds(ncclAllReduce(&x[r], &x[r], 1, ncclFloat32, ncclSum, a[r], nullptr)));
    ASSERT_TRUE(succeeds(ncclGroupEnd()));
  }
  for (size_t r = 0; r < b.size(); ++r)
    ASSERT_TRUE(succeeds(ncclAllReduce(&y[r], &y[r], 1, ncclFloat32, ncclSum, b[r], nullptr)));
  EXPECT_EQ(x[0], 1.0f);
  ASSERT_TRUE(succeeds(ncclGroupEnd()));
  EXPECT_EQ(x, std::vector<float>(kRanks, 6.0f));
  EXPECT_EQ(y, std::vector<float>(2, 3.0f));
  for (ncclComm_t c : a) EXPECT_TRUE(succeeds(ncclCommDestroy(c)));
  for (ncclComm_t c : b) EXPECT_TRUE(succeeds(ncclCommDestroy(c)));
}

TEST(NcclGroups, AnErrorIsReturnedTwiceAndNothingRuns) {
  std::vector<ncclComm_t> comms(2);
  ASSERT_TRUE(succeeds(ncclCommInitAll(comms.data(), 2, nullptr)));
  float x[2] = {1, 2};
  ASSERT_TRUE(succeeds(ncclGroupStart()));
  ASSERT_TRUE(succeeds(ncclAllReduce(&x[0], &x[0], 1, ncclFloat32, ncclSum, comms[0], nullptr)));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"root is 7"},
                         ncclBroadcast(&x[1], &x[1], 1, ncclFloat32, 7, comms[1], nullptr)));
  ASSERT_TRUE(succeeds(ncclAllReduce(&x[1], &x[1], 1, ncclFloat32, ncclSum, comms[1], nullptr)));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"root is 7"}, ncclGroupEnd()));
  EXPECT_EQ(x[0], 1.0f);
  EXPECT_EQ(x[1], 2.0f);
  EXPECT_TRUE(fails_with(ncclInvalidUsage, {"without ncclGroupStart"}, ncclGroupEnd()));
  ASSERT_TRUE(succeeds(ncclGroupStart()));  // the next group has no error
  ASSERT_TRUE(succeeds(ncclAllReduce(&x[0], &x[0], 1, ncclFloat32, ncclSum, comms[0], nullptr)));
  ASSERT_TRUE(succeeds(ncclAllReduce(&x[1], &x[1], 1, ncclFloat32, ncclSum, comms[1], nullptr)));
  ASSERT_TRUE(succeeds(ncclGroupEnd()));
  EXPECT_EQ(x[0], 3.0f);
  for (ncclComm_t c : comms) EXPECT_TRUE(succeeds(ncclCommDestroy(c)));
}

TEST(NcclGroups, ASimulationRunsNothing) {
  std::vector<ncclComm_t> comms(2);
  ASSERT_TRUE(succeeds(ncclCommInitAll(comms.data(), 2, nullptr)));
  std::vector<float> data(100000, 1.0f);
  const auto forecast = [&](size_t count) {
    ncclSimInfo_t info = {sizeof info, NCCL_SIM_MAGIC, 23203, -1.0f};
    EXPECT_TRUE(succeeds(ncclGroupStart()));
    EXPECT_TRUE(succeeds(ncclAllReduce(data.data(), data.data(), count, ncclFloat32, ncclSum, comms[0], nullptr)));
    EXPECT_TRUE(succeeds(ncclGroupSimulateEnd(&info)));
    return info.estimatedTime;
  };
  EXPECT_GT(forecast(10), 0.0f);
  EXPECT_GT(forecast(100000), forecast(10));
  EXPECT_TRUE(fails_with(ncclInvalidUsage, {"without"}, ncclGroupSimulateEnd(nullptr)));
  for (ncclComm_t c : comms) EXPECT_TRUE(succeeds(ncclCommDestroy(c)));
}

TEST(NcclOperators, AHandleBelongsToItsCommunicatorAndType) {
  std::vector<ncclComm_t> a(1), b(1);
  ASSERT_TRUE(succeeds(ncclCommInitAll(a.data(), 1, nullptr)));
  ASSERT_TRUE(succeeds(ncclCommInitAll(b.data(), 1, nullptr)));
  float scale = 2, x = 1;
  double wide = 1;
  ncclRedOp_t of_a, of_b;
  ASSERT_TRUE(succeeds(ncclRedOpCreatePreMulSum(&of_a, &scale, ncclFloat32, ncclScalarHostImmediate, a[0])));
  ASSERT_TRUE(succeeds(ncclRedOpCreatePreMulSum(&of_b, &scale, ncclFloat32, ncclScalarHostImmediate, b[0])));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"op is"}, ncclAllReduce(&x, &x, 1, ncclFloat32, of_a, b[0], nullptr)));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"created for float"},
                         ncclAllReduce(&wide, &wide, 1, ncclFloat64, of_a, a[0], nullptr)));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"op is"}, ncclRedOpDestroy(of_b, a[0])));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"own operators"}, ncclRedOpDestroy(ncclSum, a[0])));
  ASSERT_TRUE(succeeds(ncclRedOpDestroy(of_a, a[0])));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"op is"}, ncclAllReduce(&x, &x, 1, ncclFloat32, of_a, a[0], nullptr)));
  EXPECT_TRUE(succeeds(ncclCommDestroy(a[0])));
  EXPECT_TRUE(succeeds(ncclCommDestroy(b[0])));
}

// Destroyed right after the last call that uses it, before the group's end. A "device" scalar is read at that end.
TEST(NcclOperators, TheGroupKeepsWhatItNeeds) {
  std::vector<ncclComm_t> comm(1);
  ASSERT_TRUE(succeeds(ncclCommInitAll(comm.data(), 1, nullptr)));
  float now = 2, later = 2, x = 1, y = 1;
  ncclRedOp_t a, b;
  ASSERT_TRUE(succeeds(ncclRedOpCreatePreMulSum(&a, &now, ncclFloat32, ncclScalarHostImmediate, comm[0])));
  ASSERT_TRUE(succeeds(ncclRedOpCreatePreMulSum(&b, &later, ncclFloat32, ncclScalarDevice, comm[0])));
  ASSERT_TRUE(succeeds(ncclGroupStart()));
  ASSERT_TRUE(succeeds(ncclAllReduce(&x, &x, 1, ncclFloat32, a, comm[0], nullptr)));
  ASSERT_TRUE(succeeds(ncclAllReduce(&y, &y, 1, ncclFloat32, b, comm[0], nullptr)));
  ASSERT_TRUE(succeeds(ncclRedOpDestroy(a, comm[0])));
  ASSERT_TRUE(succeeds(ncclRedOpDestroy(b, comm[0])));
  now = later = 5;
  ASSERT_TRUE(succeeds(ncclGroupEnd()));
  EXPECT_EQ(x, 2.0f);
  EXPECT_EQ(y, 5.0f);
  EXPECT_TRUE(succeeds(ncclCommDestroy(comm[0])));
}

TEST(NcclCallConfigs, SelectionsAndPromisesAreObeyedOrRefused) {
  run_comms(2, [](int rank, ncclComm_t comm) {
    const auto sum = [&](const ncclCollConfig_t* config, ncclDataType_t type = ncclFloat32) {
      std::vector<float> data(kCount, static_cast<float>(rank + 1));
      const ncclResult_t r =
          ncclAllReduceConfig(data.data(), data.data(), kCount, type, ncclSum, comm, nullptr, config);
      if (r == ncclSuccess && type == ncclFloat32) {
        EXPECT_EQ(data[kCount - 1], 3.0f);
      }
      return r;
    };
    EXPECT_TRUE(succeeds(sum(nullptr)));
    ncclCollConfig_t c = new_call_config();
    for (const char* algorithms : {"", "Ring", "tree,ring", "^ring", "two_shot"}) {
      c.algSelection = algorithms;
      EXPECT_TRUE(succeeds(sum(&c))) << algorithms;
    }
    c.algSelection = "NVLS";
    EXPECT_TRUE(fails_with(ncclInvalidArgument, {"NVLS", "all_reduce"}, sum(&c)));
    c.forceAlgSelection = 0;
    EXPECT_TRUE(succeeds(sum(&c)));
    c = new_call_config();
    ncclConfigExt_t option = {nullptr, {RONDO_NCCL_VENDOR_ID, RONDO_NCCL_EXT_RANK_ORDER}, {.i = 1}};
    c.ext = &option;
    EXPECT_TRUE(succeeds(sum(&c)));
    c.algSelection = "ring";  // does not add in rank order
    EXPECT_TRUE(fails_with(ncclInvalidArgument, {"ring", "all_reduce"}, sum(&c)));
    c.algSelection = nullptr;
    option = {nullptr, {RONDO_NCCL_VENDOR_ID, RONDO_NCCL_EXT_ACCUMULATION}, {.s = "float"}};
    EXPECT_TRUE(succeeds(sum(&c)));
    EXPECT_TRUE(succeeds(sum(&c, ncclBfloat16)));
    option.val.s = "double";
    EXPECT_TRUE(fails_with(ncclInvalidUsage, {"config.ext", "accumulator double"}, sum(&c, ncclBfloat16)));
    expect_works(comm);
  });
}

TEST(NcclCallConfigs, EveryCollectiveTakesOne) {
  std::vector<ncclComm_t> comm(1);
  ASSERT_TRUE(succeeds(ncclCommInitAll(comm.data(), 1, nullptr)));
  int in = 3, out = 0;
  const ncclCollConfig_t good = new_call_config();
  ncclCollConfig_t bad = good;
  bad.magic = 0;
  for (const ncclCollConfig_t* c :
       {&good, static_cast<const ncclCollConfig_t*>(nullptr), static_cast<const ncclCollConfig_t*>(&bad)}) {
    const ncclResult_t expected = c == &bad ? ncclInvalidArgument : ncclSuccess;
    const auto check = [&](ncclResult_t result) {
      EXPECT_TRUE(returns(expected, result));
      EXPECT_EQ(out, expected == ncclSuccess ? 3 : 0);
      out = 0;
    };
    check(ncclAllReduceConfig(&in, &out, 1, ncclInt32, ncclSum, comm[0], nullptr, c));
    check(ncclReduceConfig(&in, &out, 1, ncclInt32, ncclSum, 0, comm[0], nullptr, c));
    check(ncclBroadcastConfig(&in, &out, 1, ncclInt32, 0, comm[0], nullptr, c));
    check(ncclAllGatherConfig(&in, &out, 1, ncclInt32, comm[0], nullptr, c));
    check(ncclReduceScatterConfig(&in, &out, 1, ncclInt32, ncclSum, comm[0], nullptr, c));
    check(ncclAlltoAllConfig(&in, &out, 1, ncclInt32, comm[0], nullptr, c));
    check(ncclGatherConfig(&in, &out, 1, ncclInt32, 0, comm[0], nullptr, c));
    check(ncclScatterConfig(&in, &out, 1, ncclInt32, 0, comm[0], nullptr, c));
  }
  EXPECT_TRUE(succeeds(ncclCommDestroy(comm[0])));
}

TEST(NcclCallConfigs, HostMemoryHasNoLaunchThatCouldBeComplete) {
  std::vector<ncclComm_t> comm(1);
  ASSERT_TRUE(succeeds(ncclCommInitAll(comm.data(), 1, nullptr)));
  int in = 3, out = 0;
  ncclCollConfig_t config = new_call_config();
  config.launchCompletionEvent = reinterpret_cast<cudaEvent_t>(0x10);
  EXPECT_TRUE(
      returns(ncclInvalidUsage, ncclAllReduceConfig(&in, &out, 1, ncclInt32, ncclSum, comm[0], nullptr, &config)));
  EXPECT_NE(std::string(ncclGetLastError(comm[0])).find("launchCompletionEvent"), std::string::npos);
  EXPECT_EQ(out, 0);
  EXPECT_TRUE(succeeds(ncclCommDestroy(comm[0])));
}

}  // namespace
}  // namespace rondo::testing

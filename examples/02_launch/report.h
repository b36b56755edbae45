// Shared by both programs of this example: prints the place of each rank, checks a sum and times it.
#pragma once

#include <rondo/communicator.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

inline int fail(const rondo::Status& status) {
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}

/// Collective: one name for each rank, "node1 (pid 4711)".
inline rondo::Status gather_hosts(rondo::Communicator& comm, std::vector<std::string>* hosts) {
  constexpr size_t kBytes = 80;
  char mine[kBytes] = "", host[48] = "";
  ::gethostname(host, sizeof(host) - 1);
  std::snprintf(mine, sizeof(mine), "%s (pid %d)", host, ::getpid());
  std::vector<char> all(kBytes * static_cast<size_t>(comm.size()));
  RONDO_TRY(comm.all_gather(mine, all.data(), kBytes, rondo::Dtype::kUint8));
  for (size_t r = 0; r < all.size() / kBytes; ++r) hosts->push_back(&all[r * kBytes]);
  return {};
}

/// Collective: the time of one all-reduce on the slowest rank, in seconds.
inline rondo::Status time_all_reduce(rondo::Communicator& comm, std::vector<float>* data, double* seconds) {
  constexpr int kRounds = 20;
  RONDO_TRY(comm.barrier());
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i)
    RONDO_TRY(comm.all_reduce(data->data(), data->data(), data->size(), rondo::Dtype::kFloat32, rondo::Op::kMax));
  const double mine = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kRounds;
  return comm.all_reduce(&mine, seconds, 1, rondo::Dtype::kFloat64, rondo::Op::kMax);
}

/// Collective; rank 0 prints. Every rank must get the sum of 1 .. N.
inline rondo::Status report(rondo::Communicator& comm) {
  const auto nranks = static_cast<double>(comm.size());
  std::vector<std::string> hosts;
  RONDO_TRY(gather_hosts(comm, &hosts));
  std::vector<float> data(1 << 20, static_cast<float>(comm.rank() + 1));
  const uint64_t count_elems = data.size();
  RONDO_TRY(comm.all_reduce(data.data(), data.data(), count_elems, rondo::Dtype::kFloat32, rondo::Op::kSum));
  const auto expected = static_cast<float>(nranks * (nranks + 1) / 2);
  if (std::any_of(data.begin(), data.end(), [expected](float x) { return x != expected; }))
    return {rondo::StatusCode::kInternal, "rank " + std::to_string(comm.rank()) + " has a wrong sum"};
  double seconds = 0;
  RONDO_TRY(time_all_reduce(comm, &data, &seconds));
  const std::string plan =
      comm.explain_plan(rondo::Collective::kAllReduce, count_elems, rondo::Dtype::kFloat32, rondo::Op::kSum);
  if (comm.rank() != 0) return {};

  for (size_t r = 0; r < hosts.size(); ++r) std::printf("rank %zu of %d: %s\n", r, comm.size(), hosts[r].c_str());
  const auto megabytes = static_cast<double>(count_elems * sizeof(float)) / 1e6;
  std::printf("through: %s\n", std::string(comm.transport()).c_str());
  std::printf("plan:    %s\n", plan.c_str());
  std::printf("result:  every element of every rank is %g, as it must be\n", static_cast<double>(expected));
  // Bus bandwidth: the bytes that each rank of a ring sends, over the time. Comparable between numbers of ranks.
  std::printf("speed:   %.2f MB in %.0f us, bus bandwidth %.2f GB/s\n", megabytes, seconds * 1e6,
              megabytes * 2 * (nranks - 1) / nranks / seconds / 1e3);
  return {};
}

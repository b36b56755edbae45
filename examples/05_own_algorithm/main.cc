// Registers the star, prints its steps, and runs it with 4 ranks as threads of this process.
#include <rondo/communicator.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "star.h"

namespace {

constexpr int kRanks = 4;

int fail(const rondo::Status& status) {
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}

rondo::Status reduce(rondo::Communicator& comm, float* sum) {
  const float mine = static_cast<float>(comm.rank() + 1);
  rondo::CallOptions options;
  options.algorithm = "star";
  return comm.all_reduce(&mine, sum, 1, rondo::Dtype::kFloat32, rondo::Op::kSum, &options);
}

}  // namespace

int main() {
  // Before the first communicator. A wrong algorithm is refused here, and the error names the wrong instruction.
  if (rondo::Status status = rondo::register_algorithm(kStar); !status.ok()) return fail(status);
  std::fputs(rondo::explain_algorithm(kStar, kRanks).c_str(), stdout);

  auto comms = rondo::Communicator::init_all(kRanks);
  if (!comms.ok()) return fail(comms.status());
  std::vector<rondo::Status> statuses(kRanks);
  std::vector<float> sums(kRanks);
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < kRanks; ++r) ranks.emplace_back([&, r] { statuses[r] = reduce(*(*comms)[r], &sums[r]); });
  for (std::thread& rank : ranks) rank.join();
  for (size_t r = 0; r < kRanks; ++r) {
    if (!statuses[r].ok()) return fail(statuses[r]);
    std::printf("rank %zu has %g\n", r, static_cast<double>(sums[r]));
  }
  return 0;
}

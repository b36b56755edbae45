// A transformer's parts split among ranks, as in Megatron. Computes each in parts and whole, compares them, and counts
// the bytes sent.
//   example_06_tensor_parallel [RANKS] [FOLDER]     RANKS threads, 1 to 8 (2); FOLDER: traces of the layer's two forms
#include <rondo/communicator.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "checks.h"

namespace {

rondo::Status run_rank(rondo::Communicator& comm, const std::string& trace) {
  parallel::Group group(comm);
  RONDO_TRY(parallel::check_mlp(group));
  RONDO_TRY(parallel::check_attention(group));
  RONDO_TRY(parallel::check_vocabulary(group));
  RONDO_TRY(parallel::check_printed_softmax(group));
  return parallel::check_layer(group, trace);
}

}  // namespace

int main(int argc, char** argv) {
  char* end = nullptr;
  const long nranks = argc > 1 ? std::strtol(argv[1], &end, 10) : 2;
  if (argc > 3 || nranks < 1 || nranks > 8 || (end != nullptr && *end != '\0')) {
    std::fprintf(stderr, "usage: %s [RANKS] [FOLDER]: 1 to 8 ranks as threads, a folder for traces\n", argv[0]);
    return 1;
  }
  const std::string trace = argc > 2 ? argv[2] : "";
  auto comms = rondo::Communicator::init_all(static_cast<int>(nranks), {.deadline_s = 60});
  if (!comms.ok()) return std::fprintf(stderr, "%s\n", comms.status().to_string().c_str()), 1;
  std::vector<rondo::Status> statuses(comms->size());
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < comms->size(); ++r)
    ranks.emplace_back([&, r] {
      statuses[r] = run_rank(*(*comms)[r], trace);
      if (!statuses[r].ok()) (*comms)[r]->abort();  // ends the waits of the other ranks
    });
  for (std::thread& rank : ranks) rank.join();
  int failed = 0;
  for (const rondo::Status& status : statuses)
    if (!status.ok()) failed = std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return failed == 0 ? 0 : 1;
}

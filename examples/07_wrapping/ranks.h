// Ranks as threads of one process. torchrun, mpirun and srun start processes instead: 03_char_transformer.
//
// Thread safety: one call at a time.
#pragma once

#include <ATen/Parallel.h>
#include <rondo/torch/fully_shard.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

/// Runs rank(comm) on each rank. False: one has thrown; the errors are on stderr.
template <class Rank>
bool run_ranks(int nranks, const Rank& rank) {
  auto comms = rondo::Communicator::init_all(nranks, {.deadline_s = 60});
  if (!comms.ok()) return std::fprintf(stderr, "%s\n", comms.status().to_string().c_str()), false;
  std::vector<std::string> errors(comms->size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < comms->size(); ++r)
    threads.emplace_back([&, r] {
      rondo::Communicator& comm = *(*comms)[r];
      try {
        at::set_num_threads(1);  // ranks share the cores
        rank(comm);
      } catch (const std::exception& e) {
        errors[r] = e.what();
        comm.abort();  // ends the waits of the other ranks
      }
    });
  for (std::thread& thread : threads) thread.join();
  bool all_well = true;
  for (size_t r = 0; r < errors.size(); ++r)
    if (!errors[r].empty()) all_well = false, std::fprintf(stderr, "rank %zu: %s\n", r, errors[r].c_str());
  return all_well;
}

// The ring all-reduce by hand, in 2 (N - 1) steps of one send and one receive, printed after every step. Then the
// library's ring, which must give the same bits.
//   example_01_ring [RANKS] [ELEMENTS] [FOLDER]     RANKS threads, 1 to 7 (3); 6 elements; FOLDER: a trace of the ring
//
// Values show the terms of a sum: rank 0 has ones, rank 1 tens, rank 2 hundreds.
#include <rondo/communicator.h>
#include <rondo/trace.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

using rondo::Communicator;
using rondo::Dtype;
using rondo::Op;
using rondo::Status;
using rondo::StatusCode;

struct Ring {
  Communicator& comm;
  std::vector<float> data;  // all elements, chunk after chunk; at the end the sum
  bool prints = false;
  int steps = 0;
  uint64_t sent_bytes = 0, received_bytes = 0;

  int size() const { return comm.size(); }
  size_t first_of(int chunk) const { return data.size() * static_cast<size_t>(chunk) / static_cast<size_t>(size()); }
  size_t elems_of(int chunk) const { return first_of(chunk + 1) - first_of(chunk); }
  int wrapped(int chunk) const { return (chunk % size() + size()) % size(); }

  Status all_reduce();
  Status step(int send, int receive, bool adds);
  Status print(const char* what, int number, int send);
};

// Reduce-scatter: the sum of a chunk starts at the rank after its owner and ends at the owner. Then the all-gather.
//
//   step 1      0 -> 1: A2         1 -> 2: B0          2 -> 0: C1
//   step 2      0 -> 1: A1 + C1    1 -> 2: B2 + A2     2 -> 0: C0 + B0     then rank r has all of chunk r
//   step 3, 4   0 -> 1: S0, S2     1 -> 2: S1, S0      2 -> 0: S2, S1
Status Ring::all_reduce() {
  RONDO_TRY(print("before", 0, -1));
  for (int s = 1; s < size(); ++s) {
    const int send = wrapped(comm.rank() - s);
    RONDO_TRY(step(send, wrapped(send - 1), true));
    RONDO_TRY(print("reduce-scatter", s, send));
  }
  for (int s = 1; s < size(); ++s) {
    const int send = wrapped(comm.rank() - s + 1);
    RONDO_TRY(step(send, wrapped(send - 1), false));
    RONDO_TRY(print("all-gather", s, send));
  }
  return {};
}

// Sends one chunk to the next rank and receives another from the previous one. The group runs both at once.
Status Ring::step(int send, int receive, bool adds) {
  std::vector<float> came(elems_of(receive));
  rondo::group_start();
  const Status sent =
      comm.send(data.data() + first_of(send), elems_of(send), Dtype::kFloat32, (comm.rank() + 1) % size());
  const Status received = comm.recv(came.data(), came.size(), Dtype::kFloat32, (comm.rank() + size() - 1) % size());
  RONDO_TRY(rondo::group_end());
  RONDO_TRY(sent);
  RONDO_TRY(received);
  float* mine = data.data() + first_of(receive);
  for (size_t i = 0; i < came.size(); ++i) mine[i] = adds ? came[i] + mine[i] : came[i];
  ++steps;
  sent_bytes += elems_of(send) * sizeof(float), received_bytes += came.size() * sizeof(float);
  return {};
}

// Collective: rank 0 prints every rank's data, and the chunk that each has sent.
Status Ring::print(const char* what, int number, int send) {
  if (!prints) return {};
  std::vector<float> all(data.size() * static_cast<size_t>(size()));
  std::vector<int> chunks(static_cast<size_t>(size()));
  RONDO_TRY(comm.all_gather(data.data(), all.data(), data.size(), Dtype::kFloat32));
  RONDO_TRY(comm.all_gather(&send, chunks.data(), 1, Dtype::kInt32));
  if (comm.rank() != 0) return {};
  if (number == 0) std::printf("%s\n", what);
  else std::printf("%s step %d\n", what, number);
  for (int r = 0; r < size(); ++r) {
    std::printf("  rank %d  ", r);
    for (int c = 0; c < size(); ++c) {
      for (size_t i = first_of(c); i < first_of(c + 1); ++i)
        std::printf(" %*.0f", size(), static_cast<double>(all[static_cast<size_t>(r) * data.size() + i]));
      std::printf(c + 1 < size() ? "  |" : "");
    }
    if (number > 0) std::printf("     sent chunk %d to rank %d", chunks[static_cast<size_t>(r)], (r + 1) % size());
    std::printf("\n");
  }
  return {};
}

Status expect(bool holds, const Ring& ring, const std::string& what) {
  if (holds) return {};
  return {StatusCode::kInternal, "rank " + std::to_string(ring.comm.rank()) + ": " + what};
}

// 2 (N - 1) steps. Of S bytes every rank sends and receives 2 (N - 1) / N * S, up to two elements more or less if
// chunks differ.
Status check_counts(const Ring& ring) {
  const auto n = static_cast<uint64_t>(ring.size()), bytes = ring.data.size() * sizeof(float);
  const uint64_t even = 2 * (n - 1) * bytes / n, slack = ring.data.size() % n == 0 ? 0 : 2 * sizeof(float);
  RONDO_TRY(expect(ring.steps == 2 * (ring.size() - 1), ring, "the number of steps is not 2 (N - 1)"));
  for (const uint64_t b : {ring.sent_bytes, ring.received_bytes})
    RONDO_TRY(expect(b <= even + slack && b + slack >= even, ring, "the bytes are not 2 (N - 1) / N of all"));
  uint64_t all_bytes = 0;
  RONDO_TRY(ring.comm.all_reduce(&ring.sent_bytes, &all_bytes, 1, Dtype::kUint64, Op::kSum));
  RONDO_TRY(expect(all_bytes == 2 * (n - 1) * bytes, ring, "all ranks together have not sent 2 (N - 1) S"));
  if (ring.comm.rank() == 0)
    std::printf("%d steps; rank 0 has sent %llu B to rank %d and received %llu B: 2 (N - 1) / N of %llu B is %llu B\n",
                ring.steps, static_cast<unsigned long long>(ring.sent_bytes), 1 % ring.size(),
                static_cast<unsigned long long>(ring.received_bytes), static_cast<unsigned long long>(bytes),
                static_cast<unsigned long long>(even));
  return {};
}

// Uses values whose sums round, so that another order of addition changes the bits. Compares the ring by hand with the
// library's, and with its reduce-scatter followed by its all-gather.
Status check_bits(Communicator& comm, size_t elems) {
  const auto n = static_cast<size_t>(comm.size());
  std::vector<float> mine(elems * n), sum(elems * n), part(elems), halves(elems * n);
  for (size_t i = 0; i < mine.size(); ++i)
    mine[i] = 1.0f / static_cast<float>(3 + 7 * i + 31 * static_cast<size_t>(comm.rank()));
  rondo::CallOptions ring;
  ring.algorithm = "ring";
  Ring hand{comm, mine};
  RONDO_TRY(hand.all_reduce());
  RONDO_TRY(comm.all_reduce(mine.data(), sum.data(), mine.size(), Dtype::kFloat32, Op::kSum, &ring));
  RONDO_TRY(comm.reduce_scatter(mine.data(), part.data(), elems, Dtype::kFloat32, Op::kSum, &ring));
  RONDO_TRY(comm.all_gather(part.data(), halves.data(), elems, Dtype::kFloat32, &ring));
  RONDO_TRY(expect(hand.data == sum, hand, "the library's ring has other bits than the one by hand"));
  RONDO_TRY(expect(halves == sum, hand, "reduce-scatter and all-gather give other bits than all-reduce"));
  if (comm.rank() == 0)
    std::printf("the same bits: by hand, all_reduce by the library's ring, its reduce_scatter and all_gather\n");
  return {};
}

Status run_rank(Communicator& comm, size_t elems, const std::string& trace) {
  float mine = 1;
  for (int r = 0; r < comm.rank(); ++r) mine *= 10;
  float all = 1;
  for (int r = 1; r < comm.size(); ++r) all = all * 10 + 1;
  Ring ring{comm, std::vector<float>(elems, mine), true};
  RONDO_TRY(ring.all_reduce());
  RONDO_TRY(expect(std::all_of(ring.data.begin(), ring.data.end(), [all](float x) { return x == all; }), ring,
                   "the sum is wrong"));
  RONDO_TRY(check_counts(ring));
  if (!trace.empty()) RONDO_TRY(rondo::trace_start(comm, {trace}));
  RONDO_TRY(check_bits(comm, elems));
  return trace.empty() ? Status() : rondo::trace_stop(comm);
}

long number_of(const char* text, long fallback) { return text == nullptr ? fallback : std::strtol(text, nullptr, 10); }

}  // namespace

int main(int argc, char** argv) {
  const long nranks = number_of(argc > 1 ? argv[1] : nullptr, 3), elems = number_of(argc > 2 ? argv[2] : nullptr, 6);
  if (argc > 4 || nranks < 1 || nranks > 7 || elems < 0 || elems > 64) {
    std::fprintf(stderr, "usage: %s [RANKS] [ELEMENTS] [FOLDER]: 1 to 7 ranks, at most 64 elements\n", argv[0]);
    return 1;
  }
  const std::string trace = argc > 3 ? argv[3] : "";
  auto comms = Communicator::init_all(static_cast<int>(nranks), {.deadline_s = 60});
  if (!comms.ok()) return std::fprintf(stderr, "%s\n", comms.status().to_string().c_str()), 1;
  std::vector<Status> statuses(comms->size());
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < comms->size(); ++r)
    ranks.emplace_back([&, r] {
      statuses[r] = run_rank(*(*comms)[r], static_cast<size_t>(elems), trace);
      if (!statuses[r].ok()) (*comms)[r]->abort();  // ends the waits of the other ranks
    });
  for (std::thread& rank : ranks) rank.join();
  int failed = 0;
  for (const Status& status : statuses)
    if (!status.ok()) failed = std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return failed == 0 ? 0 : 1;
}

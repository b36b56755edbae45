// A C++ program with the installed library: three ranks as threads, every collective once, values checked. It uses
// exceptions and RTTI, as users' programs do, although the library was compiled without them.
#include <rondo/communicator.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kRanks = 3;
constexpr uint64_t kCountElems = 1000;

void require(const rondo::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.to_string());
}

void require(bool good, const char* what) {
  if (!good) throw std::runtime_error(what);
}

bool all_equal(const float* first, uint64_t count_elems, float expected) {
  return std::all_of(first, first + count_elems, [expected](float x) { return x == expected; });
}

// Rank r contributes r + 1 everywhere.
void run_rank(rondo::Communicator& comm) {
  using rondo::Dtype;
  using rondo::Op;
  const std::vector<float> in(kRanks * kCountElems, static_cast<float>(comm.rank() + 1));
  std::vector<float> out(kRanks * kCountElems);

  require(comm.all_reduce(in.data(), out.data(), kCountElems, Dtype::kFloat32, Op::kAvg));
  require(all_equal(out.data(), kCountElems, 2), "all_reduce: wrong average");

  rondo::Work work;
  require(comm.reduce_scatter(in.data(), out.data(), kCountElems, Dtype::kFloat32, Op::kSum, nullptr, &work));
  require(work.wait());
  require(all_equal(out.data(), kCountElems, 6), "reduce_scatter: wrong sum");

  require(comm.all_gather(in.data(), out.data(), kCountElems, Dtype::kFloat32));
  for (int r = 0; r < kRanks; ++r)
    require(all_equal(out.data() + static_cast<uint64_t>(r) * kCountElems, kCountElems, static_cast<float>(r + 1)),
            "all_gather: wrong part");

  require(!comm.explain_plan(rondo::Collective::kAllReduce, kCountElems, Dtype::kFloat32, Op::kSum).empty(),
          "explain_plan: no text");
}

}  // namespace

int main() {
  auto comms = rondo::Communicator::init_all(kRanks);
  if (!comms.ok()) {
    std::fprintf(stderr, "init_all: %s\n", comms.status().to_string().c_str());
    return 1;
  }
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      try {
        run_rank(*(*comms)[static_cast<size_t>(r)]);
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(r)] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  int good = 0;
  for (int r = 0; r < kRanks; ++r) {
    const std::string& error = errors[static_cast<size_t>(r)];
    if (error.empty()) ++good;
    else std::fprintf(stderr, "rank %d: %s\n", r, error.c_str());
  }
  std::printf("rondo %s from C++: %d of %d ranks ok\n", rondo_version(), good, kRanks);
  return good == kRanks ? 0 : 1;
}

// MPI ranks that make communicators of rondo. communicator_test.cc starts this under each installed MPI, compiled by
// that MPI's mpicxx, with the name of a scenario. Every successful rank reports it.
#include <rondo/mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using rondo::Communicator;
using rondo::Status;
using rondo::StatusCode;

bool broadcasts_fail = false;
int num_failures = 0;

void expect(bool good, const std::string& what) {
  if (good) return;
  ++num_failures;
  std::fprintf(stderr, "pid %d: %s\n", ::getpid(), what.c_str());
}

void expect_refusal(const Status& status, StatusCode code, std::initializer_list<const char*> words) {
  expect(status.code() == code, "wrong code of: " + status.to_string());
  for (const char* word : words)
    expect(status.message().find(word) != std::string_view::npos,
           std::string("'") + word + "' is missing in: " + status.to_string());
}

int rank_in(MPI_Comm comm) {
  int rank = -1;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

int size_of(MPI_Comm comm) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  return size;
}

// Small whole numbers: MPI and rondo must agree on every bit in any order of addition.
template <class T>
void compare_all_reduce(Communicator& rondos, MPI_Comm mpis, MPI_Datatype type, MPI_Op op) {
  constexpr int kCount = 5000;
  std::vector<T> in(kCount), out(kCount), expected(kCount);
  for (int i = 0; i < kCount; ++i) in[static_cast<size_t>(i)] = static_cast<T>(1 + (i + rondos.rank()) % 3);
  const auto dtype = rondo::mpi::dtype_of(type);
  const auto rondos_op = rondo::mpi::op_of(op);
  expect(dtype.ok() && rondos_op.ok(), "dtype_of or op_of rejects a supported value");
  if (!dtype.ok() || !rondos_op.ok()) return;
  const Status status = rondos.all_reduce(in.data(), out.data(), kCount, *dtype, *rondos_op);
  expect(status.ok(), status.to_string());
  MPI_Allreduce(in.data(), expected.data(), kCount, type, op, mpis);
  expect(std::memcmp(out.data(), expected.data(), kCount * sizeof(T)) == 0,
         "all_reduce of " + std::string(rondo::dtype_name(*dtype)) + " differs from MPI_Allreduce");
}

std::unique_ptr<Communicator> make(MPI_Comm comm) {
  auto made = rondo::mpi::make_communicator(comm);
  expect(made.ok(), made.status().to_string());
  if (!made.ok()) return nullptr;
  expect((*made)->rank() == rank_in(comm) && (*made)->size() == size_of(comm), "rank or size is not MPI's");
  return std::move(*made);
}

void world() {
  const auto comm = make(MPI_COMM_WORLD);
  if (comm == nullptr) return;
  for (const MPI_Op op : {MPI_SUM, MPI_PROD, MPI_MAX, MPI_MIN}) {
    compare_all_reduce<float>(*comm, MPI_COMM_WORLD, MPI_FLOAT, op);
    compare_all_reduce<double>(*comm, MPI_COMM_WORLD, MPI_DOUBLE, op);
    compare_all_reduce<int>(*comm, MPI_COMM_WORLD, MPI_INT, op);
    compare_all_reduce<long>(*comm, MPI_COMM_WORLD, MPI_LONG, op);
    compare_all_reduce<uint64_t>(*comm, MPI_COMM_WORLD, MPI_UINT64_T, op);
    compare_all_reduce<unsigned char>(*comm, MPI_COMM_WORLD, MPI_UNSIGNED_CHAR, op);
  }
  for (const MPI_Op op : {MPI_BAND, MPI_BOR, MPI_BXOR}) {
    compare_all_reduce<int>(*comm, MPI_COMM_WORLD, MPI_INT, op);
    compare_all_reduce<unsigned char>(*comm, MPI_COMM_WORLD, MPI_UNSIGNED_CHAR, op);
  }
}

// Two halves at once, each in the reverse order of the world's ranks, and a rank that is in neither.
void split() {
  const int rank = rank_in(MPI_COMM_WORLD), size = size_of(MPI_COMM_WORLD);
  const bool outside = rank == size - 1;
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, outside ? MPI_UNDEFINED : rank % 2, -rank, &half);
  if (outside) {
    expect_refusal(rondo::mpi::make_communicator(half).status(), StatusCode::kInvalidArgument,
                   {"MPI_COMM_NULL", "MPI_Comm_split"});
    return;
  }
  const auto comm = make(half);
  if (comm == nullptr) return;
  compare_all_reduce<float>(*comm, half, MPI_FLOAT, MPI_SUM);
  MPI_Comm_free(&half);  // no longer needed
  const int highest = size - 2 - (size - 2 - rank) % 2;
  int from_first = rank;
  const Status status = comm->broadcast(&from_first, &from_first, 1, rondo::Dtype::kInt32, 0);
  expect(status.ok() && from_first == highest, "the half's rank 0 is " + std::to_string(from_first) + ", not " +
                                                   std::to_string(highest) + ": " + status.to_string());
  const auto alone = make(MPI_COMM_SELF);
  if (alone != nullptr) compare_all_reduce<double>(*alone, MPI_COMM_SELF, MPI_DOUBLE, MPI_SUM);
}

// A communicator works after MPI_Finalize.
void outlives_mpi() {
  const auto comm = make(MPI_COMM_WORLD);
  MPI_Finalize();
  if (comm == nullptr) return;
  int sum = 1;
  const Status status = comm->all_reduce(&sum, &sum, 1, rondo::Dtype::kInt32, rondo::Op::kSum);
  expect(status.ok() && sum == comm->size(), status.to_string());
  expect_refusal(rondo::mpi::make_communicator(MPI_COMM_WORLD).status(), StatusCode::kInvalidArgument,
                 {"finalised", "MPI_Finalize"});
}

void before_init() {
  expect_refusal(rondo::mpi::make_communicator(MPI_COMM_WORLD).status(), StatusCode::kInvalidArgument,
                 {"not initialised", "MPI_Init"});
  expect_refusal(rondo::mpi::dtype_of(MPI_SHORT).status(), StatusCode::kUnsupported, {"element type"});
  MPI_Init(nullptr, nullptr);
}

void intercommunicator() {
  const int rank = rank_in(MPI_COMM_WORLD);
  MPI_Comm half = MPI_COMM_NULL, bridge = MPI_COMM_NULL, merged = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 5, &bridge);
  expect_refusal(rondo::mpi::make_communicator(bridge).status(), StatusCode::kInvalidArgument,
                 {"intercommunicator", "MPI_Intercomm_merge"});
  MPI_Intercomm_merge(bridge, rank % 2, &merged);  // as the error message advises
  const auto comm = make(merged);
  if (comm != nullptr) compare_all_reduce<int>(*comm, merged, MPI_INT, MPI_SUM);
}

// No rank waits for a rendezvous that rank 0 could not open.
void rank_zero_fails() {
  if (rank_in(MPI_COMM_WORLD) == 0) ::setenv("RONDO_SOCKET_IFNAME", "=nosuch0", 1);
  const Status status = rondo::mpi::make_communicator(MPI_COMM_WORLD).status();
  expect_refusal(status, status.code(), {"rank 0 could not make the unique id", "nosuch0"});
  char zeros[512] = "", mine[512] = "";
  mine[status.message().copy(mine, sizeof(mine) - 1)] = '\0';
  std::memcpy(zeros, mine, sizeof(zeros));
  MPI_Bcast(zeros, sizeof(zeros), MPI_CHAR, 0, MPI_COMM_WORLD);
  expect(!status.ok() && std::strcmp(zeros, mine) == 0, "ranks got different errors");
}

void mpi_fails() {
  broadcasts_fail = true;
  expect_refusal(rondo::mpi::make_communicator(MPI_COMM_WORLD).status(), StatusCode::kSystem, {"MPI_Bcast failed"});
}

void unknown_types() {
  using rondo::mpi::dtype_of, rondo::mpi::op_of;
  expect_refusal(dtype_of(MPI_SHORT).status(), StatusCode::kUnsupported, {"MPI_SHORT"});
  expect_refusal(dtype_of(MPI_DATATYPE_NULL).status(), StatusCode::kUnsupported, {"MPI_DATATYPE_NULL"});
  MPI_Datatype pair = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(2, MPI_FLOAT, &pair);
  expect_refusal(dtype_of(pair).status(), StatusCode::kUnsupported, {"a type without a name"});
  MPI_Type_set_name(pair, "pair of floats");
  expect_refusal(dtype_of(pair).status(), StatusCode::kUnsupported, {"pair of floats"});
  expect_refusal(op_of(MPI_LXOR).status(), StatusCode::kUnsupported, {"MPI_LXOR", "MPI_SUM"});
  MPI_Op own = MPI_OP_NULL;
  MPI_Op_create([](void*, void*, int*, MPI_Datatype*) {}, 1, &own);
  expect_refusal(op_of(own).status(), StatusCode::kUnsupported, {"MPI_Op_create"});
}

}  // namespace

// Replaces MPI's function, as its profiling interface allows.
extern "C" int MPI_Bcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  return broadcasts_fail ? MPI_ERR_OTHER : PMPI_Bcast(buffer, count, type, root, comm);
}

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> scenarios = {{"world", world},
                                                                  {"split", split},
                                                                  {"outlives_mpi", outlives_mpi},
                                                                  {"before_init", before_init},
                                                                  {"intercommunicator", intercommunicator},
                                                                  {"rank_zero_fails", rank_zero_fails},
                                                                  {"mpi_fails", mpi_fails},
                                                                  {"unknown_types", unknown_types}};
  const std::string name = argc == 2 ? argv[1] : "";
  const auto found = scenarios.find(name);
  if (found == scenarios.end()) return std::fprintf(stderr, "no scenario '%s'\n", name.c_str()), 2;
  if (name != "before_init") MPI_Init(&argc, &argv);
  const int rank = name == "before_init" ? 0 : rank_in(MPI_COMM_WORLD);
  found->second();
  if (name != "outlives_mpi") MPI_Finalize();
  if (num_failures == 0) {  // one write, so that lines of several ranks do not mix
    const std::string line = "\n" + name + ": rank " + std::to_string(rank) + " is right.\n";
    if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) return 1;
  }
  return num_failures == 0 ? 0 : 1;
}

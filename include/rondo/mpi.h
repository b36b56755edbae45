// rondo::mpi: communicators for MPI programs. Header-only: librondo links no MPI, and the header uses the program's own
// mpi.h (Open MPI, MPICH or another).
//
//   auto comm = rondo::mpi::make_communicator(MPI_COMM_WORLD);
//
// MPI is used once, to distribute the unique id. Afterwards the communicator does not depend on MPI, and their
// lifetimes are independent. CMake: rondo::mpi, after find_package(MPI) (docs/launch.md).
//
// Thread safety: that of the MPI functions named below, at the thread level the program requested from MPI.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "rondo/communicator.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo::mpi {
namespace internal {

inline Status refusal(std::string why) { return Status(StatusCode::kInvalidArgument, "rondo::mpi: " + std::move(why)); }

/// Converts an MPI error code. There is one only if the communicator's error handler returns: MPI's default handler
/// ends the program.
inline Status status_of(int result, const char* function) {
  if (result == MPI_SUCCESS) return {};
  char words[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(result, words, &length);
  return Status(StatusCode::kSystem, std::string("rondo::mpi: ") + function + " failed: " + words);
}

/// These two MPI functions may be called before MPI_Init and after MPI_Finalize.
inline Status check_running() {
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised) return refusal("MPI is finalised: call this before MPI_Finalize");
  if (!initialised) return refusal("MPI is not initialised: call MPI_Init or MPI_Init_thread first");
  return {};
}

inline Status check_comm(MPI_Comm comm) {
  RONDO_TRY(check_running());
  if (comm == MPI_COMM_NULL)
    return refusal("comm is MPI_COMM_NULL: ranks to which MPI_Comm_split gave no communicator do not call");
  int between_groups = 0;
  RONDO_TRY(status_of(MPI_Comm_test_inter(comm, &between_groups), "MPI_Comm_test_inter"));
  if (between_groups) return refusal("comm is an intercommunicator: merge its groups with MPI_Intercomm_merge first");
  return {};
}

/// Rank 0's broadcast: the id, or the reason why there is none. No rank then waits for ranks that will not come.
struct Announcement {
  int32_t code = 0;  // StatusCode
  char why[508] = "";
  UniqueId id = {};
};

inline Announcement announce_id() {
  Announcement a;
  auto id = Communicator::make_unique_id();
  if (id.ok()) {
    a.id = *id;
    return a;
  }
  const Status status = id.status();
  a.code = static_cast<int32_t>(status.code());
  a.why[status.message().copy(a.why, sizeof(a.why) - 1)] = '\0';
  return a;
}

inline Expected<UniqueId> share_id(MPI_Comm comm, Rank rank) {
  Announcement a;
  if (rank == 0) a = announce_id();
  RONDO_TRY(status_of(MPI_Bcast(&a, sizeof(a), MPI_BYTE, 0, comm), "MPI_Bcast"));
  if (const auto code = static_cast<StatusCode>(a.code); code != StatusCode::kOk)
    return Status(code, std::string("rondo::mpi: rank 0 could not make the unique id: ") + a.why);
  return a.id;
}

}  // namespace internal

/// Collective over `comm`, an intracommunicator (MPI_COMM_WORLD, a result of MPI_Comm_split, ...). Makes a communicator
/// of the same ranks with the same numbers. `comm` is used only during the call. You may free it afterwards.
///
/// Waits for MPI as MPI_Bcast does, without a deadline and without regard to config.abort, then for all ranks as
/// Communicator::init_rank does. Errors: kInvalidArgument, on the calling rank only (MPI not initialised or already
/// finalised; MPI_COMM_NULL; an intercommunicator); kSystem (from MPI, if comm's error handler returns); on all ranks,
/// rank 0's error in making the id; those of init_rank. One MPI_Bcast of 640 bytes from rank 0, O(log ranks), and
/// init_rank.
///
/// A program that uses only MPI Sessions counts as uninitialised, because MPI_Initialized reports so.
inline Expected<std::unique_ptr<Communicator>> make_communicator(MPI_Comm comm, const Config& config = {}) {
  RONDO_TRY(internal::check_comm(comm));
  Rank rank = 0;
  int nranks = 0;
  RONDO_TRY(internal::status_of(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank"));
  RONDO_TRY(internal::status_of(MPI_Comm_size(comm, &nranks), "MPI_Comm_size"));
  RONDO_TRY_ASSIGN(const UniqueId id, internal::share_id(comm, rank));
  return Communicator::init_rank(nranks, id, rank, config);
}

namespace internal {

inline bool is_any_of(MPI_Datatype type, std::initializer_list<MPI_Datatype> types) {
  for (const MPI_Datatype t : types)
    if (type == t) return true;
  return false;
}

inline std::string name_of_type(MPI_Datatype type) {
  if (type == MPI_DATATYPE_NULL) return "MPI_DATATYPE_NULL";
  char name[MPI_MAX_OBJECT_NAME] = "";
  int length = 0;
  if (!check_running().ok() || MPI_Type_get_name(type, name, &length) != MPI_SUCCESS || length == 0)
    return "a type without a name";
  return name;
}

inline std::string name_of_op(MPI_Op op) {
  const std::pair<MPI_Op, const char*> known[] = {
#define RONDO_X(op) {op, #op}
      RONDO_X(MPI_LAND),    RONDO_X(MPI_LOR),   RONDO_X(MPI_LXOR),   RONDO_X(MPI_MINLOC), RONDO_X(MPI_MAXLOC),
      RONDO_X(MPI_REPLACE), RONDO_X(MPI_NO_OP), RONDO_X(MPI_OP_NULL)
#undef RONDO_X
  };
  for (const auto& [value, name] : known)
    if (op == value) return name;
  return "an operator of MPI_Op_create";
}

}  // namespace internal

/// The element type with the same bits. Errors: kUnsupported, naming the type: rondo has no 16-bit integers, complex
/// numbers, long double or derived types. MPI has no half precision and no bfloat16; name those as Dtype. O(1).
inline Expected<Dtype> dtype_of(MPI_Datatype type) {
  using internal::is_any_of;
  static_assert(sizeof(int) == 4 && sizeof(long long) == 8);
  if (is_any_of(type, {MPI_INT8_T, MPI_SIGNED_CHAR})) return Dtype::kInt8;
  if (is_any_of(type, {MPI_UINT8_T, MPI_UNSIGNED_CHAR, MPI_BYTE})) return Dtype::kUint8;
  if (is_any_of(type, {MPI_INT32_T, MPI_INT})) return Dtype::kInt32;
  if (is_any_of(type, {MPI_UINT32_T, MPI_UNSIGNED})) return Dtype::kUint32;
  if (is_any_of(type, {MPI_INT64_T, MPI_LONG_LONG})) return Dtype::kInt64;
  if (is_any_of(type, {MPI_UINT64_T, MPI_UNSIGNED_LONG_LONG})) return Dtype::kUint64;
  if (type == MPI_LONG) return sizeof(long) == 8 ? Dtype::kInt64 : Dtype::kInt32;
  if (type == MPI_UNSIGNED_LONG) return sizeof(long) == 8 ? Dtype::kUint64 : Dtype::kUint32;
  if (type == MPI_FLOAT) return Dtype::kFloat32;
  if (type == MPI_DOUBLE) return Dtype::kFloat64;
  return Status(StatusCode::kUnsupported, "rondo::mpi: there is no element type for " + internal::name_of_type(type));
}

/// The operator of the same name. Integers wrap, and max and min propagate NaN; MPI leaves both open. Errors:
/// kUnsupported, naming the operator. O(1).
inline Expected<Op> op_of(MPI_Op op) {
  if (op == MPI_SUM) return Op::kSum;
  if (op == MPI_PROD) return Op::kProd;
  if (op == MPI_MAX) return Op::kMax;
  if (op == MPI_MIN) return Op::kMin;
  if (op == MPI_BAND) return Op::kBitAnd;
  if (op == MPI_BOR) return Op::kBitOr;
  if (op == MPI_BXOR) return Op::kBitXor;
  return Status(StatusCode::kUnsupported, "rondo::mpi: there is no operator for " + internal::name_of_op(op) +
                                              "; rondo has MPI_SUM, MPI_PROD, MPI_MAX, MPI_MIN and the bitwise ones");
}

}  // namespace rondo::mpi

// Memory allocation and buffer registration.
//
// Registration is local and changes nothing here. It is checked and kept, so that mistakes are reported as in NCCL.
// Windows are device memory that kernels access: there are none here.
#include "nccl/abi.h"
#include "nccl/comm.h"
#include "nccl/memory.h"
#include "nccl/process.h"
#include "nccl/result.h"

namespace rondo::nccl {
namespace {

Status no_window(const char* name) {
  return bad_usage(std::string(name) +
                   ": rondo does not support windows, which give other ranks' kernels access to device memory; use "
                   "collectives or ncclSend and ncclRecv");
}

}  // namespace
}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT(google-build-using-namespace): entry points only from here

ncclResult_t pncclMemAlloc(void** pointer, size_t bytes) {
  if (pointer == nullptr) return report(null_argument("ptr"));
  *pointer = nullptr;
  if (bytes == 0) return ncclSuccess;
  auto made = alloc_memory(bytes);
  if (made.ok()) *pointer = *made;
  return report(made.status());
}

ncclResult_t pncclMemFree(void* pointer) { return report(free_memory(pointer)); }

ncclResult_t pncclCommRegister(const ncclComm_t handle, void* buffer, size_t bytes, void** registration) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  if (buffer == nullptr || registration == nullptr)
    return report(null_argument(buffer == nullptr ? "buff" : "handle"), comm->get());
  if (bytes == 0) return report(bad_argument("size is 0"), comm->get());
  if (const rondo::Status s = (*comm)->ready(); !s.ok()) return report(s, comm->get());
  auto own = std::make_unique<Registration>(Registration{buffer, bytes});
  *registration = own.get();
  (*comm)->registrations.emplace(own.get(), std::move(own));
  return ncclSuccess;
}

ncclResult_t pncclCommDeregister(const ncclComm_t handle, void* registration) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  if (registration == nullptr) return ncclSuccess;
  if ((*comm)->registrations.erase(registration) == 0)
    return report(bad_argument("handle is not from this communicator's ncclCommRegister, or was already deregistered"),
                  comm->get());
  return ncclSuccess;
}

ncclResult_t pncclCommWindowRegister(ncclComm_t handle, void*, size_t, ncclWindow_t* window, int) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  if (window != nullptr) *window = nullptr;
  return report(no_window("ncclCommWindowRegister"), comm->get());
}

// NULL is the result of ncclCommWindowRegister here.
ncclResult_t pncclCommWindowDeregister(ncclComm_t handle, ncclWindow_t window) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  if (window == nullptr) return ncclSuccess;
  return report(no_window("ncclCommWindowDeregister"), comm->get());
}

ncclResult_t pncclWinGetUserPtr(ncclComm_t handle, ncclWindow_t, void** pointer) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  if (pointer != nullptr) *pointer = nullptr;
  return report(no_window("ncclWinGetUserPtr"), comm->get());
}

RONDO_NCCL_TWIN(MemAlloc)
RONDO_NCCL_TWIN(MemFree)
RONDO_NCCL_TWIN(CommRegister)
RONDO_NCCL_TWIN(CommDeregister)
RONDO_NCCL_TWIN(CommWindowRegister)
RONDO_NCCL_TWIN(CommWindowDeregister)
RONDO_NCCL_TWIN(WinGetUserPtr)

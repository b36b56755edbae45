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

// `out`: destination of the result, or nullptr.
template <class T>
ncclResult_t no_window(ncclComm_t handle, const char* name, T* out) {
  return on_comm(handle, [=](Comm&) {
    if (out != nullptr) *out = nullptr;
    return unsupported(
        "{}: rondo does not support windows, which give other ranks' kernels access to device memory; use collectives "
        "or ncclSend and ncclRecv",
        name);
  });
}

}  // namespace
}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT(google-build-using-namespace): entry points only from here

RONDO_NCCL(ncclResult_t, MemAlloc)(void** pointer, size_t bytes) {
  if (pointer == nullptr) return report(null_argument("ptr"));
  *pointer = nullptr;
  if (bytes == 0) return ncclSuccess;
  auto made = alloc_memory(bytes);
  if (made.ok()) *pointer = *made;
  return report(made.status());
}

RONDO_NCCL(ncclResult_t, MemFree)(void* pointer) { return report(free_memory(pointer)); }

RONDO_NCCL(ncclResult_t, CommRegister)(const ncclComm_t handle, void* buffer, size_t bytes, void** registration) {
  return on_comm(handle, [=](Comm& comm) -> Status {
    if (buffer == nullptr || registration == nullptr) return null_argument(buffer == nullptr ? "buff" : "handle");
    if (bytes == 0) return invalid_argument("size is 0");
    RONDO_TRY(comm.ready());
    auto own = std::make_unique<char>();
    *registration = own.get();
    comm.registrations.emplace(own.get(), std::move(own));
    return {};
  });
}

RONDO_NCCL(ncclResult_t, CommDeregister)(const ncclComm_t handle, void* registration) {
  return on_comm(handle, [registration](Comm& comm) -> Status {
    if (registration == nullptr || comm.registrations.erase(registration) != 0) return {};
    return invalid_argument("handle is not from this communicator's ncclCommRegister, or was already deregistered");
  });
}

RONDO_NCCL(ncclResult_t, CommWindowRegister)(ncclComm_t handle, void*, size_t, ncclWindow_t* window, int) {
  return no_window(handle, "ncclCommWindowRegister", window);
}

// NULL is the result of ncclCommWindowRegister here.
RONDO_NCCL(ncclResult_t, CommWindowDeregister)(ncclComm_t handle, ncclWindow_t window) {
  if (window == nullptr) return on_comm(handle, [](Comm&) { return Status(); });
  return no_window<void*>(handle, "ncclCommWindowDeregister", nullptr);
}

RONDO_NCCL(ncclResult_t, WinGetUserPtr)(ncclComm_t handle, ncclWindow_t, void** pointer) {
  return no_window(handle, "ncclWinGetUserPtr", pointer);
}

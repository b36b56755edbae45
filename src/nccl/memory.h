// Defines the memory of a communicator's buffers, and the meaning of a call's stream.
//
// Buffers are in device memory if the process has a CUDA driver with a device. They are in host memory if it has none,
// or if the setting nccl_memory requests it. On the host streams are ignored, and a call is complete when it (or its
// group) returns. On devices the call is then in its stream.
#pragma once

#include <cstddef>

#include "rondo/communicator.h"
#include "rondo/status.h"

namespace rondo::nccl {

/// For communicators made in this process.
Memory memory_of_process();
/// The calling thread's device by CUDA's numbering; -1: buffers are in host memory.
int current_device();

/// Refuses a buffer in device memory if buffers are in host memory: a host kernel would crash on it. `name`: of the
/// argument. Managed memory counts as host memory. Errors: kUnsupported.
Status check_place(const void* buffer, const char* name);

/// ncclMemAlloc and ncclMemFree: page-aligned, zeroed. Errors: kSystem; kInvalidArgument (not from alloc_memory).
Expected<void*> alloc_memory(size_t bytes);
Status free_memory(void* pointer);

}  // namespace rondo::nccl

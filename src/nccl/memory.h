// The one place that knows where a communicator's buffers lie, and what a stream means for a call.
//
// Today everything lies on the host: streams are ignored, and a call is complete when it (or its group) has returned.
// Device memory joins here: place_of says kDevice, and add_stream fills the CallOptions fields that carry the stream.
#pragma once

#include <cstddef>

#include "nccl/abi.h"
#include "rondo/communicator.h"
#include "rondo/status.h"

namespace rondo::nccl {

struct Comm;

enum class MemoryPlace { kHost, kDevice };
MemoryPlace place_of(const Comm& comm);

/// Called when a communicator is made: from then on check_place asks the CUDA driver, if the program has loaded one.
void look_for_driver();
/// Refuses a buffer in device memory by name, where the process has a CUDA driver that can tell; a host kernel that
/// read it would crash. `name`: of the argument. Managed memory is host memory, too. Errors: kUnsupported.
Status check_place(const void* buffer, const char* name);

/// Called once for each call that is about to run.
void add_stream(const Comm& comm, cudaStream_t stream, CallOptions* options);

/// ncclMemAlloc and ncclMemFree: page-aligned, zeroed. Errors: kSystem; kInvalidArgument (no memory of alloc_memory).
Expected<void*> alloc_memory(size_t bytes);
Status free_memory(void* pointer);

}  // namespace rondo::nccl

// The one place that knows where a communicator's buffers lie, and what a stream means for a call.
//
// Buffers lie on devices where the process has a CUDA driver with a device, and on the host where it has none, or where
// the setting nccl_memory says so. On the host streams are ignored, and a call is complete when it (or its group) has
// returned; on devices a call stands in its stream then.
#pragma once

#include <cstddef>

#include "nccl/abi.h"
#include "rondo/communicator.h"
#include "rondo/status.h"

namespace rondo::nccl {

struct Comm;

/// Of communicators that are made in this process.
Memory memory_of_process();
Memory place_of(const Comm& comm);
/// The calling thread's device, as CUDA counts; -1: buffers lie on the host.
int current_device();

/// Refuses a buffer in device memory by name, where buffers lie on the host; a host kernel that read it would crash.
/// `name`: of the argument. Managed memory is host memory, too. Errors: kUnsupported.
Status check_place(const void* buffer, const char* name);

/// Called once for each call that is about to run.
void add_stream(const Comm& comm, cudaStream_t stream, CallOptions* options);

/// Every rank's bytes, by rank, over the communicator, wherever its buffers lie.
Status gather_bytes(Comm& comm, const void* mine, void* all, size_t bytes);

/// ncclMemAlloc and ncclMemFree: page-aligned, zeroed. Errors: kSystem; kInvalidArgument (no memory of alloc_memory).
Expected<void*> alloc_memory(size_t bytes);
Status free_memory(void* pointer);

}  // namespace rondo::nccl

// Compares src/device/driver/driver.h with NVIDIA's headers: constants, layouts and all prototypes at compile time, and
// the exported names with the toolkit's stub of libcuda at run time. Compiled as C++ if CUDA's headers are found
// (version 12.4 or later); it has no device code.
//
// Two prototypes agree if they have as many parameters, and each pair of parameters are both pointers, or have the same
// size and passing convention (integers, enumerations), or are structures of the same size and alignment.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <dlfcn.h>

#include <cstdio>
#include <type_traits>

#include "device/driver/driver.h"

namespace {

namespace ours = rondo::cuda;

template <class T>
concept Complete = requires {
  sizeof(T);
};

template <class A, class B>
constexpr bool same_parameter() {
  constexpr bool scalar_a = std::is_integral_v<A> || std::is_enum_v<A>,
                 scalar_b = std::is_integral_v<B> || std::is_enum_v<B>;
  if constexpr (std::is_pointer_v<A> || std::is_pointer_v<B>) {
    if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
      using C = std::remove_pointer_t<A>;
      using D = std::remove_pointer_t<B>;
      if constexpr (std::is_function_v<C> || std::is_function_v<D>)
        return std::is_function_v<C> && std::is_function_v<D>;
      else if constexpr (std::is_void_v<C> || std::is_void_v<D>) return std::is_void_v<C> && std::is_void_v<D>;
      else if constexpr (std::is_pointer_v<C> || std::is_pointer_v<D>)
        return std::is_pointer_v<C> && std::is_pointer_v<D>;
      else if constexpr (Complete<C> && Complete<D>) return sizeof(C) == sizeof(D) && alignof(C) == alignof(D);
      else return !Complete<C> && !Complete<D>;  // handles
    } else {
      return false;
    }
  } else {
    return scalar_a == scalar_b && sizeof(A) == sizeof(B) && alignof(A) == alignof(B);
  }
}

template <class A, class B>
struct SamePrototype : std::false_type {};
template <class R, class... A, class S, class... B>
requires(sizeof...(A) == sizeof...(B)) struct SamePrototype<R (*)(A...), S (*)(B...)>
    : std::bool_constant<same_parameter<R, S>() && (same_parameter<A, B>() && ...)> {
};

// The comparison can fail: arity, size, pointer or not, structure or not.
static_assert(SamePrototype<int (*)(int, void*), CUresult (*)(unsigned, void*)>::value);
static_assert(!SamePrototype<int (*)(int), int (*)(int, int)>::value);
static_assert(!SamePrototype<int (*)(int), int (*)(size_t)>::value);
static_assert(!SamePrototype<int (*)(size_t), int (*)(void*)>::value);
static_assert(!SamePrototype<int (*)(int*), int (*)(size_t*)>::value);
static_assert(!SamePrototype<int (*)(ours::IpcMemHandle), int (*)(CUipcMemHandle*)>::value);

// NVIDIA's type of each function, in the version of the symbol: X(member, type).
#define THEIRS(X)                                                               \
  X(init, PFN_cuInit_v2000)                                                     \
  X(driver_version, PFN_cuDriverGetVersion_v2020)                               \
  X(error_name, PFN_cuGetErrorName_v6000)                                       \
  X(error_string, PFN_cuGetErrorString_v6000)                                   \
  X(device_get, PFN_cuDeviceGet_v2000)                                          \
  X(device_count, PFN_cuDeviceGetCount_v2000)                                   \
  X(device_name, PFN_cuDeviceGetName_v2000)                                     \
  X(device_uuid, PFN_cuDeviceGetUuid_v11040)                                    \
  X(device_attribute, PFN_cuDeviceGetAttribute_v2000)                           \
  X(device_total_memory, PFN_cuDeviceTotalMem_v3020)                            \
  X(device_pci_bus_id, PFN_cuDeviceGetPCIBusId_v4010)                           \
  X(device_can_access_peer, PFN_cuDeviceCanAccessPeer_v4000)                    \
  X(device_p2p_attribute, PFN_cuDeviceGetP2PAttribute_v8000)                    \
  X(primary_context_retain, PFN_cuDevicePrimaryCtxRetain_v7000)                 \
  X(primary_context_release, PFN_cuDevicePrimaryCtxRelease_v11000)              \
  X(context_set_current, PFN_cuCtxSetCurrent_v4000)                             \
  X(context_get_current, PFN_cuCtxGetCurrent_v4000)                             \
  X(context_get_device, PFN_cuCtxGetDevice_v2000)                               \
  X(context_enable_peer_access, PFN_cuCtxEnablePeerAccess_v4000)                \
  X(context_synchronize, PFN_cuCtxSynchronize_v2000)                            \
  X(mem_alloc, PFN_cuMemAlloc_v3020)                                            \
  X(mem_free, PFN_cuMemFree_v3020)                                              \
  X(mem_get_address_range, PFN_cuMemGetAddressRange_v3020)                      \
  X(mem_get_info, PFN_cuMemGetInfo_v3020)                                       \
  X(mem_host_alloc, PFN_cuMemHostAlloc_v2020)                                   \
  X(mem_free_host, PFN_cuMemFreeHost_v2000)                                     \
  X(mem_host_register, PFN_cuMemHostRegister_v6050)                             \
  X(mem_host_unregister, PFN_cuMemHostUnregister_v4000)                         \
  X(mem_host_get_device_pointer, PFN_cuMemHostGetDevicePointer_v3020)           \
  X(memcpy_async, PFN_cuMemcpyAsync_v4000)                                      \
  X(memcpy_host_to_device_async, PFN_cuMemcpyHtoDAsync_v3020)                   \
  X(memcpy_device_to_host, PFN_cuMemcpyDtoH_v3020)                              \
  X(memset_d8_async, PFN_cuMemsetD8Async_v3020)                                 \
  X(pointer_attribute, PFN_cuPointerGetAttribute_v4000)                         \
  X(ipc_get_mem_handle, PFN_cuIpcGetMemHandle_v4010)                            \
  X(ipc_open_mem_handle, PFN_cuIpcOpenMemHandle_v11000)                         \
  X(ipc_close_mem_handle, PFN_cuIpcCloseMemHandle_v4010)                        \
  X(stream_create, PFN_cuStreamCreateWithPriority_v5050)                        \
  X(stream_destroy, PFN_cuStreamDestroy_v4000)                                  \
  X(stream_synchronize, PFN_cuStreamSynchronize_v2000)                          \
  X(stream_query, PFN_cuStreamQuery_v2000)                                      \
  X(stream_wait_event, PFN_cuStreamWaitEvent_v3020)                             \
  X(stream_batch_mem_op, PFN_cuStreamBatchMemOp_v11070)                         \
  X(stream_capture_info, PFN_cuStreamGetCaptureInfo_v11030)                     \
  X(thread_exchange_capture_mode, PFN_cuThreadExchangeStreamCaptureMode_v10010) \
  X(event_create, PFN_cuEventCreate_v2000)                                      \
  X(event_destroy, PFN_cuEventDestroy_v4000)                                    \
  X(event_record, PFN_cuEventRecord_v2000)                                      \
  X(event_record_with_flags, PFN_cuEventRecordWithFlags_v11010)                 \
  X(event_query, PFN_cuEventQuery_v2000)                                        \
  X(event_synchronize, PFN_cuEventSynchronize_v2000)                            \
  X(event_elapsed_ms, PFN_cuEventElapsedTime_v2000)                             \
  X(module_load_data, PFN_cuModuleLoadData_v2000)                               \
  X(module_unload, PFN_cuModuleUnload_v2000)                                    \
  X(module_get_function, PFN_cuModuleGetFunction_v2000)                         \
  X(launch_kernel, PFN_cuLaunchKernelEx_v11060)                                 \
  X(launch_host_function, PFN_cuLaunchHostFunc_v10000)

struct Theirs {
#define X(member, type) type member;
  THEIRS(X)
#undef X
};
// Every function of ours. One that is missing in THEIRS does not compile.
#define X(member, symbol, args) \
  static_assert(SamePrototype<decltype(ours::Driver::member), decltype(Theirs::member)>::value, #symbol);
RONDO_CUDA_DRIVER(X)
#undef X
// The names that CUDA's header exports for functions that we use in their newest version: reveals a silent _v3.
#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)
constexpr bool equal(const char* a, const char* b) { return *a == *b && (*a == 0 || equal(a + 1, b + 1)); }
static_assert(equal(TEXT(cuMemAlloc), "cuMemAlloc_v2") && equal(TEXT(cuMemFree), "cuMemFree_v2") &&
              equal(TEXT(cuIpcOpenMemHandle), "cuIpcOpenMemHandle_v2") &&
              equal(TEXT(cuMemHostRegister), "cuMemHostRegister_v2") &&
              equal(TEXT(cuStreamBatchMemOp), "cuStreamBatchMemOp_v2"));

#define SAME(a, b) static_assert(static_cast<long long>(a) == static_cast<long long>(b), #a " is not " #b)
SAME(ours::kSuccess, CUDA_SUCCESS);
SAME(ours::kErrorInvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME(ours::kErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME(ours::kErrorNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME(ours::kErrorInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
SAME(ours::kErrorInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
SAME(ours::kErrorPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME(ours::kErrorInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
SAME(ours::kErrorNotFound, CUDA_ERROR_NOT_FOUND);
SAME(ours::kErrorNotReady, CUDA_ERROR_NOT_READY);
SAME(ours::kErrorIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(ours::kErrorPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME(ours::kErrorHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(ours::kErrorHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(ours::kErrorCooperativeLaunchTooLarge, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
SAME(ours::kErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED);
SAME(ours::kErrorStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(ours::kErrorStreamCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(ours::kErrorStreamCaptureMerge, CUDA_ERROR_STREAM_CAPTURE_MERGE);
SAME(ours::kErrorStreamCaptureUnmatched, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
SAME(ours::kErrorStreamCaptureUnjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
SAME(ours::kErrorStreamCaptureIsolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
SAME(ours::kErrorCapturedEvent, CUDA_ERROR_CAPTURED_EVENT);
SAME(ours::kErrorStreamCaptureWrongThread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);

SAME(ours::kLaunchCooperative, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
SAME(ours::kLaunchPriority, CU_LAUNCH_ATTRIBUTE_PRIORITY);
SAME(ours::kLaunchCompletionEvent, CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
SAME(ours::kMemOpWaitValue32, CU_STREAM_MEM_OP_WAIT_VALUE_32);
SAME(ours::kMemOpWriteValue32, CU_STREAM_MEM_OP_WRITE_VALUE_32);
SAME(ours::kWaitGeq, CU_STREAM_WAIT_VALUE_GEQ);
SAME(ours::kWaitEq, CU_STREAM_WAIT_VALUE_EQ);
SAME(ours::kWaitAnd, CU_STREAM_WAIT_VALUE_AND);

SAME(ours::kAttrMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(ours::kAttrMemoryClockRate, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME(ours::kAttrGlobalMemoryBusWidth, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME(ours::kAttrComputeMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(ours::kAttrComputeMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(ours::kP2pNativeAtomic, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
SAME(ours::kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(ours::kPointerBufferId, CU_POINTER_ATTRIBUTE_BUFFER_ID);
SAME(ours::kPointerIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(ours::kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(ours::kPointerIpcCapable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME(ours::kMemoryTypeHost, CU_MEMORYTYPE_HOST);
SAME(ours::kMemoryTypeDevice, CU_MEMORYTYPE_DEVICE);
SAME(ours::kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME(ours::kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
SAME(ours::kEventInterprocess, CU_EVENT_INTERPROCESS);
SAME(ours::kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE);
SAME(ours::kHostAllocMapped, CU_MEMHOSTALLOC_DEVICEMAP);
SAME(ours::kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
SAME(ours::kHostRegisterMapped, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(ours::kIpcLazyPeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME(ours::kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(ours::kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(ours::kCaptureInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME(ours::kCaptureModeGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME(ours::kCaptureModeThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(ours::kCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);

#define SAME_TYPE(a, b)       \
  SAME(sizeof(a), sizeof(b)); \
  SAME(alignof(a), alignof(b))
SAME_TYPE(ours::Result, CUresult);
SAME_TYPE(ours::Device, CUdevice);
SAME_TYPE(ours::DevicePtr, CUdeviceptr);
SAME_TYPE(ours::Uuid, CUuuid);
SAME_TYPE(ours::IpcMemHandle, CUipcMemHandle);
SAME_TYPE(ours::LaunchAttribute, CUlaunchAttribute);
SAME_TYPE(ours::LaunchConfig, CUlaunchConfig);
SAME_TYPE(ours::BatchMemOp, CUstreamBatchMemOpParams);
#define SAME_OFFSET(a, x, b, y)         \
  SAME(offsetof(a, x), offsetof(b, y)); \
  SAME(sizeof(a::x), sizeof(b::y))
SAME_OFFSET(ours::LaunchAttribute, id, CUlaunchAttribute, id);
SAME(offsetof(ours::LaunchAttribute, bytes), offsetof(CUlaunchAttribute, value));
SAME(offsetof(ours::LaunchAttribute, launch_completion_event.event),
     offsetof(CUlaunchAttribute, value.launchCompletionEvent.event));
SAME(offsetof(ours::LaunchAttribute, launch_completion_event.flags),
     offsetof(CUlaunchAttribute, value.launchCompletionEvent.flags));
SAME(offsetof(ours::LaunchAttribute, cooperative), offsetof(CUlaunchAttribute, value.cooperative));
SAME(offsetof(ours::LaunchAttribute, priority), offsetof(CUlaunchAttribute, value.priority));
SAME_OFFSET(ours::LaunchConfig, grid_x, CUlaunchConfig, gridDimX);
SAME_OFFSET(ours::LaunchConfig, grid_y, CUlaunchConfig, gridDimY);
SAME_OFFSET(ours::LaunchConfig, grid_z, CUlaunchConfig, gridDimZ);
SAME_OFFSET(ours::LaunchConfig, block_x, CUlaunchConfig, blockDimX);
SAME_OFFSET(ours::LaunchConfig, block_y, CUlaunchConfig, blockDimY);
SAME_OFFSET(ours::LaunchConfig, block_z, CUlaunchConfig, blockDimZ);
SAME_OFFSET(ours::LaunchConfig, shared_bytes, CUlaunchConfig, sharedMemBytes);
SAME_OFFSET(ours::LaunchConfig, stream, CUlaunchConfig, hStream);
SAME_OFFSET(ours::LaunchConfig, attributes, CUlaunchConfig, attrs);
SAME_OFFSET(ours::LaunchConfig, num_attributes, CUlaunchConfig, numAttrs);
SAME(offsetof(ours::BatchMemOp, value.address), offsetof(CUstreamBatchMemOpParams, waitValue.address));
SAME(offsetof(ours::BatchMemOp, value.value), offsetof(CUstreamBatchMemOpParams, waitValue.value));
SAME(offsetof(ours::BatchMemOp, value.value64), offsetof(CUstreamBatchMemOpParams, waitValue.value64));
SAME(offsetof(ours::BatchMemOp, value.flags), offsetof(CUstreamBatchMemOpParams, waitValue.flags));
SAME(offsetof(ours::BatchMemOp, value.alias), offsetof(CUstreamBatchMemOpParams, waitValue.alias));
SAME(offsetof(ours::BatchMemOp, value.address), offsetof(CUstreamBatchMemOpParams, writeValue.address));
SAME(offsetof(ours::BatchMemOp, value.value), offsetof(CUstreamBatchMemOpParams, writeValue.value));
SAME(offsetof(ours::BatchMemOp, value.flags), offsetof(CUstreamBatchMemOpParams, writeValue.flags));

}  // namespace

int main() {
  void* stub = dlopen(RONDO_CUDA_STUB, RTLD_LAZY | RTLD_LOCAL);
  if (stub == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  int missing = 0, found = 0;
#define X(member, symbol, args)                                      \
  if (dlsym(stub, #symbol) != nullptr) {                             \
    ++found;                                                         \
  } else {                                                           \
    std::fprintf(stderr, "%s lacks " #symbol "\n", RONDO_CUDA_STUB); \
    ++missing;                                                       \
  }
  RONDO_CUDA_DRIVER(X)
#undef X
  std::printf("CUDA %d.%d: %d functions agree with NVIDIA's header and are exported\n", CUDA_VERSION / 1000,
              CUDA_VERSION % 1000 / 10, found);
  return missing == 0 ? 0 : 1;
}

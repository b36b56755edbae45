// The CUDA driver, opened at run time as one table of functions, so that one build runs with and without a GPU and
// needs no CUDA header. rondo uses only the driver API, not the runtime library. Streams and events of the CUDA runtime
// are driver objects. The caller has the device's primary context current.
//
// driver() is the process's table: libcuda.so.1, opened at the first call. If it is missing, why_no_driver() gives the
// reason. Tests replace the table (set_driver): tests/support/fake_cuda implements fake devices on the host.
//
// Types equal the driver's in size and meaning; tests/device/driver/driver_abi.cu compares them with NVIDIA's header.
// Thread safety: driver() and why_no_driver() from any thread; set_driver before the first communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "rondo/status.h"

namespace rondo::cuda {

using Result = int;          // CUresult
using Device = int;          // CUdevice
using DevicePtr = uint64_t;  // CUdeviceptr
using Context = struct ContextHandle*;
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using Module = struct ModuleHandle*;
using Function = struct FunctionHandle*;
using Graph = struct GraphHandle*;

inline constexpr Result kSuccess = 0, kErrorInvalidValue = 1, kErrorOutOfMemory = 2, kErrorNotInitialized = 3,
                        kErrorInvalidDevice = 101, kErrorInvalidContext = 201, kErrorPeerAccessUnsupported = 217,
                        kErrorInvalidHandle = 400, kErrorNotFound = 500, kErrorNotReady = 600,
                        kErrorIllegalAddress = 700, kErrorPeerAccessAlreadyEnabled = 704,
                        kErrorHostMemoryAlreadyRegistered = 712, kErrorHostMemoryNotRegistered = 713,
                        kErrorCooperativeLaunchTooLarge = 720, kErrorNotSupported = 801,
                        kErrorStreamCaptureUnsupported = 900, kErrorStreamCaptureInvalidated = 901,
                        kErrorStreamCaptureMerge = 902, kErrorStreamCaptureUnmatched = 903,
                        kErrorStreamCaptureUnjoined = 904, kErrorStreamCaptureIsolation = 905,
                        kErrorCapturedEvent = 907, kErrorStreamCaptureWrongThread = 908;

struct Uuid {
  uint8_t bytes[16];
};
struct IpcMemHandle {
  char bytes[64];
};

/// CUlaunchAttribute: 8 bytes of id and padding, 64 bytes of value.
struct LaunchAttribute {
  int id;
  int pad;
  union {
    char bytes[64];
    struct {
      Event event;
      int flags;
    } launch_completion_event;  // id 12
    int cooperative;            // id 2
    int priority;               // id 8
  };
};
/// CUlaunchConfig.
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};
inline constexpr int kLaunchCooperative = 2, kLaunchPriority = 8,
                     kLaunchCompletionEvent = 12;  // drivers since 12.3

/// CUstreamBatchMemOpParams: one wait or write of 32 or 64 bits in a stream.
union BatchMemOp {
  int operation;
  struct {
    int operation;
    DevicePtr address;
    union {
      uint32_t value;
      uint64_t value64;
    };
    unsigned flags;
    DevicePtr alias;
  } value;
  uint64_t pad[6];
};
inline constexpr int kMemOpWaitValue32 = 1, kMemOpWriteValue32 = 2;
inline constexpr unsigned kWaitGeq = 0, kWaitEq = 1, kWaitAnd = 2;

// CUdevice_attribute
inline constexpr int kAttrMultiprocessorCount = 16, kAttrMemoryClockRate = 36, kAttrGlobalMemoryBusWidth = 37,
                     kAttrComputeMajor = 75, kAttrComputeMinor = 76;
inline constexpr int kP2pNativeAtomic = 3;  // CUdevice_P2PAttribute
// CUpointer_attribute
inline constexpr int kPointerMemoryType = 2, kPointerBufferId = 7, kPointerIsManaged = 8, kPointerDeviceOrdinal = 9,
                     kPointerIpcCapable = 10;
inline constexpr unsigned kMemoryTypeHost = 1, kMemoryTypeDevice = 2;
inline constexpr unsigned kStreamNonBlocking = 1, kEventDisableTiming = 2, kEventInterprocess = 4;
inline constexpr unsigned kHostAllocPortable = 1, kHostAllocMapped = 2, kHostRegisterPortable = 1,
                          kHostRegisterMapped = 2;
inline constexpr unsigned kIpcLazyPeerAccess = 1;
inline constexpr unsigned kEventRecordExternal = 1, kEventWaitExternal = 1;  // under capture: a graph node
inline constexpr int kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2;
inline constexpr int kCaptureModeGlobal = 0, kCaptureModeThreadLocal = 1, kCaptureModeRelaxed = 2;

// X(member, symbol, arguments): the used functions of libcuda, with their exported names.
#define RONDO_CUDA_DRIVER(X)                                                                                          \
  X(init, cuInit, (unsigned flags))                                                                                   \
  X(driver_version, cuDriverGetVersion, (int* version))                                                               \
  X(error_name, cuGetErrorName, (Result error, const char** text))                                                    \
  X(error_string, cuGetErrorString, (Result error, const char** text))                                                \
  X(device_get, cuDeviceGet, (Device * device, int ordinal))                                                          \
  X(device_count, cuDeviceGetCount, (int* count))                                                                     \
  X(device_name, cuDeviceGetName, (char* name, int length, Device device))                                            \
  X(device_uuid, cuDeviceGetUuid_v2, (Uuid * uuid, Device device))                                                    \
  X(device_attribute, cuDeviceGetAttribute, (int* value, int attribute, Device device))                               \
  X(device_total_memory, cuDeviceTotalMem_v2, (size_t * bytes, Device device))                                        \
  X(device_pci_bus_id, cuDeviceGetPCIBusId, (char* text, int length, Device device))                                  \
  X(device_can_access_peer, cuDeviceCanAccessPeer, (int* can, Device device, Device peer))                            \
  X(device_p2p_attribute, cuDeviceGetP2PAttribute, (int* value, int attribute, Device from, Device to))               \
  X(primary_context_retain, cuDevicePrimaryCtxRetain, (Context * context, Device device))                             \
  X(primary_context_release, cuDevicePrimaryCtxRelease_v2, (Device device))                                           \
  X(context_set_current, cuCtxSetCurrent, (Context context))                                                          \
  X(context_get_current, cuCtxGetCurrent, (Context * context))                                                        \
  X(context_get_device, cuCtxGetDevice, (Device * device))                                                            \
  X(context_enable_peer_access, cuCtxEnablePeerAccess, (Context peer, unsigned flags))                                \
  X(context_synchronize, cuCtxSynchronize, ())                                                                        \
  X(mem_alloc, cuMemAlloc_v2, (DevicePtr * ptr, size_t bytes))                                                        \
  X(mem_free, cuMemFree_v2, (DevicePtr ptr))                                                                          \
  X(mem_get_address_range, cuMemGetAddressRange_v2, (DevicePtr * base, size_t * bytes, DevicePtr ptr))                \
  X(mem_get_info, cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes))                                       \
  X(mem_host_alloc, cuMemHostAlloc, (void** ptr, size_t bytes, unsigned flags))                                       \
  X(mem_free_host, cuMemFreeHost, (void* ptr))                                                                        \
  X(mem_host_register, cuMemHostRegister_v2, (void* ptr, size_t bytes, unsigned flags))                               \
  X(mem_host_unregister, cuMemHostUnregister, (void* ptr))                                                            \
  X(mem_host_get_device_pointer, cuMemHostGetDevicePointer_v2, (DevicePtr * dptr, void* ptr, unsigned flags))         \
  X(memcpy_async, cuMemcpyAsync, (DevicePtr dst, DevicePtr src, size_t bytes, Stream stream))                         \
  X(memcpy_host_to_device_async, cuMemcpyHtoDAsync_v2, (DevicePtr dst, const void* src, size_t bytes, Stream stream)) \
  X(memcpy_device_to_host, cuMemcpyDtoH_v2, (void* dst, DevicePtr src, size_t bytes))                                 \
  X(memset_d8_async, cuMemsetD8Async, (DevicePtr dst, unsigned char value, size_t bytes, Stream stream))              \
  X(pointer_attribute, cuPointerGetAttribute, (void* data, int attribute, DevicePtr ptr))                             \
  X(ipc_get_mem_handle, cuIpcGetMemHandle, (IpcMemHandle * handle, DevicePtr ptr))                                    \
  X(ipc_open_mem_handle, cuIpcOpenMemHandle_v2, (DevicePtr * ptr, IpcMemHandle handle, unsigned flags))               \
  X(ipc_close_mem_handle, cuIpcCloseMemHandle, (DevicePtr ptr))                                                       \
  X(stream_create, cuStreamCreateWithPriority, (Stream * stream, unsigned flags, int priority))                       \
  X(stream_destroy, cuStreamDestroy_v2, (Stream stream))                                                              \
  X(stream_synchronize, cuStreamSynchronize, (Stream stream))                                                         \
  X(stream_query, cuStreamQuery, (Stream stream))                                                                     \
  X(stream_wait_event, cuStreamWaitEvent, (Stream stream, Event event, unsigned flags))                               \
  X(stream_batch_mem_op, cuStreamBatchMemOp_v2, (Stream stream, unsigned count, BatchMemOp* ops, unsigned flags))     \
  X(stream_capture_info, cuStreamGetCaptureInfo_v2,                                                                   \
    (Stream stream, int* status, uint64_t* id, Graph* graph, const void*** dependencies, size_t* num_dependencies))   \
  X(thread_exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int* mode))                                     \
  X(event_create, cuEventCreate, (Event * event, unsigned flags))                                                     \
  X(event_destroy, cuEventDestroy_v2, (Event event))                                                                  \
  X(event_record, cuEventRecord, (Event event, Stream stream))                                                        \
  X(event_record_with_flags, cuEventRecordWithFlags, (Event event, Stream stream, unsigned flags))                    \
  X(event_query, cuEventQuery, (Event event))                                                                         \
  X(event_synchronize, cuEventSynchronize, (Event event))                                                             \
  X(event_elapsed_ms, cuEventElapsedTime, (float* ms, Event begin, Event end))                                        \
  X(module_load_data, cuModuleLoadData, (Module * module, const void* image))                                         \
  X(module_unload, cuModuleUnload, (Module module))                                                                   \
  X(module_get_function, cuModuleGetFunction, (Function * function, Module module, const char* name))                 \
  X(launch_kernel, cuLaunchKernelEx, (const LaunchConfig* config, Function function, void** params, void** extra))    \
  X(launch_host_function, cuLaunchHostFunc, (Stream stream, void (*function)(void*), void* data))

struct Driver {
#define RONDO_X(member, symbol, args) Result(*member) args = nullptr;
  RONDO_CUDA_DRIVER(RONDO_X)
#undef RONDO_X
};

/// The table after cuInit, or nullptr: no library, no device, or too old (12.0 is needed).
const Driver* driver();
/// The reason why driver() is nullptr, or an empty string.
std::string why_no_driver();
/// For tests: uses this table from now on; nullptr: the real one again.
void set_driver(const Driver* table);
/// Number of a device's hardware queues, which its streams share: a stream can stand behind another one's wait. It is
/// CUDA_DEVICE_MAX_CONNECTIONS as CUDA has read it. driver() sets this variable to 32 if the user has not set it and
/// CUDA is not initialised yet; else CUDA has 8 queues.
uint32_t num_hardware_queues();

/// driver(), or kUnsupported with why_no_driver().
Expected<const Driver*> need_driver();

/// kCuda (out of device memory: kExhausted) with the driver's name and text of the error, and the failed operation.
/// Ok for kSuccess.
Status check(Result result, const char* what);

/// Makes a device's context current in a scope, and then restores the previous one.
class CurrentContext {
 public:
  /// Needs a driver(). status() returns the result.
  explicit CurrentContext(Context context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  Status status() const { return check(result_, "cuCtxSetCurrent"); }

 private:
  Context before_ = nullptr;
  Result result_ = kSuccess;
  bool changed_ = false;
};

}  // namespace rondo::cuda

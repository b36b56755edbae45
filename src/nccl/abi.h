// The binary interface of libnccl.so.2, in our own declarations: the calls, arguments and structs of programs compiled
// with NVIDIA's header (2.14 to 2.32). No CUDA header: streams and events are opaque pointers here.
//
// Names, values, layouts and prototypes are facts of that interface. tests/nccl/abi compares all of them with the
// headers of 2.28.9, 2.30.7 and 2.32.3. Every function has two names: pnccl* (strong) and nccl* (weak, so that a
// profiler may replace it). RONDO_NCCL defines both. Enums have a fixed underlying type, so that they can
// hold any number that a caller passes.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

extern "C" {

typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow_vidmem* ncclWindow_t;
typedef struct ncclParamHandle* ncclParamHandle_t;
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;

typedef struct {
  char internal[128];
} ncclUniqueId;

typedef enum : int {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8,  // since 2.30.3; earlier 8 was ncclNumResults
  ncclNumResults = 9
} ncclResult_t;

typedef enum : int {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

typedef enum : int {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,  // first handle of ncclRedOpCreatePreMulSum
  ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

typedef enum : int { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;

typedef enum : int {
  ncclStatGpuMemSuspend = 0,
  ncclStatGpuMemSuspended = 1,
  ncclStatGpuMemPersist = 2,
  ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

typedef enum : int { NCCL_ENCRYPTION_MODE_NONE = 0, NCCL_ENCRYPTION_MODE_PSK = 1 } ncclEncryptionMode_t;

#define NCCL_API_MAGIC 0xcafebeef
#define NCCL_SIM_MAGIC 0x74685283  // NVIDIA's header has the number without a name
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR nullptr
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02
#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_REVOKE_DEFAULT 0x00
#define NCCL_SUSPEND_MEM 0x01
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02

// size, magic and version define the fields that the caller has; config.cc has the table of versions.
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
  int trafficClass;
  const char* commName;
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;
  int nvlinkCentricSched;
  int graphUsageMode;
  int numRmaCtx;
  int maxP2pPeers;
  int graphStreamOrdering;
  int launchOrderImplicit;
  int numRmaSig;
  int rmaEagerInit;
  int hostCftMode;
  int nvlsHostMode;
} ncclConfig_t;

typedef struct ncclConfigExt {
  struct ncclConfigExt* next;
  struct {
    int vendorId;
    int optionId;
  } key;
  union {
    int i;
    const char* s;
    void* raw;
  } val;
} ncclConfigExt_t;

typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  ncclConfigExt_t* ext;
  int minCTAs;
  int maxCTAs;
  int nvlsCTAs;
  int cgaClusterSize;
  const char* algSelection;
  int forceAlgSelection;
  int CTAPolicy;
  uint64_t userProfilerTag;
  cudaEvent_t launchCompletionEvent;
} ncclCollConfig_t;

typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime;  // microseconds
} ncclSimInfo_t;

typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int mode;
  const char* psk;
} ncclEncryptionConfig_t;

typedef struct {
  int opCnt;
  int peer;
  int sigIdx;
  int ctx;
} ncclWaitSignalDesc_t;

// Device API: structs of its host functions, and functions that need no device.
typedef struct ncclTeam {
  int nRanks, rank, stride;
} ncclTeam_t;
typedef struct ncclMultimemHandle {
  void* mcBasePtr;
} ncclMultimemHandle_t;
typedef struct ncclDevComm ncclDevComm_t;
typedef struct ncclDevCommRequirements ncclDevCommRequirements_t;
typedef struct ncclDevResourceRequirements ncclDevResourceRequirements_t;
typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;
typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;
typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;
typedef struct ncclGinOutboxHandle ncclGinOutboxHandle_t;
typedef struct ncclGinInboxA2AHandle ncclGinInboxA2AHandle_t;
typedef uint32_t ncclCftLeId;
typedef enum : int { NCCL_CFT_TEAM_FLAT = 0 } ncclCftTeamMode_t;
typedef enum : int { NCCL_GIN_TYPE_NONE = 0 } ncclGinType_t;
typedef enum : int { NCCL_GIN_CONNECTION_NONE = 0 } ncclGinConnectionType_t;

typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int rank;
  int nRanks;
  int cudaDev;
  int nvmlDev;
  bool deviceApiSupport;
  bool multimemSupport;
  ncclGinType_t ginType;
  int nLsaTeams;
  bool hostRmaSupport;
  ncclGinType_t railedGinType;  // last field of 2.30.7
  uint64_t commHash;
  int ginMinStride;
  ncclGinConnectionType_t ginConnectionType;
  bool ginSupport[64];
  size_t devCommRuntimeVersionSize;
  bool cftSupport;
  bool cftMulticastSupport;
  bool cftCountedSupport;
} ncclCommProperties_t;

}  // extern "C"

// C(X, name, parameters, root, op): the collectives. Each has two forms, without and with a config, and the
// communicator and the stream as further parameters. root, op: those parameters, or the values of a call without them.
#define RONDO_NCCL_COLLECTIVES(C, X)                                                                               \
  C(X, AllReduce, (const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op), 0, op)           \
  C(X, Reduce, (const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root), root, op) \
  C(X, Broadcast, (const void* in, void* out, size_t count, ncclDataType_t type, int root), root, ncclSum)         \
  C(X, AllGather, (const void* in, void* out, size_t count, ncclDataType_t type), 0, ncclSum)                      \
  C(X, ReduceScatter, (const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op), 0, op)       \
  C(X, AlltoAll, (const void* in, void* out, size_t count, ncclDataType_t type), 0, ncclSum)                       \
  C(X, Gather, (const void* in, void* out, size_t count, ncclDataType_t type, int root), root, ncclSum)            \
  C(X, Scatter, (const void* in, void* out, size_t count, ncclDataType_t type, int root), root, ncclSum)
#define RONDO_NCCL_LIST(...) __VA_ARGS__
#define RONDO_NCCL_BOTH_FORMS(X, name, parameters, root, op)                                \
  X(ncclResult_t, name, (RONDO_NCCL_LIST parameters, ncclComm_t comm, cudaStream_t stream)) \
  X(ncclResult_t, name##Config,                                                             \
    (RONDO_NCCL_LIST parameters, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config))

// X(result, name, parameters): the functions of the device API that need a device.
#define RONDO_NCCL_DEVICE_FUNCTIONS(X)                                                                                 \
  X(ncclResult_t, DevCommCreate,                                                                                       \
    (ncclComm_t comm, const ncclDevCommRequirements_t* requirements, ncclDevComm_t* device))                           \
  X(ncclResult_t, DevCommDestroy, (ncclComm_t comm, const ncclDevComm_t* device))                                      \
  X(ncclResult_t, GetLsaMultimemDevicePointer, (ncclWindow_t window, size_t offset, void** pointer))                   \
  X(ncclResult_t, GetMultimemDevicePointer,                                                                            \
    (ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem, void** pointer))                               \
  X(ncclResult_t, GetLsaDevicePointer, (ncclWindow_t window, size_t offset, int rank, void** pointer))                 \
  X(ncclResult_t, GetPeerDevicePointer, (ncclWindow_t window, size_t offset, int peer, void** pointer))                \
  X(ncclResult_t, GetMultimemDeviceLeInfo, (ncclWindow_t window, size_t offset, ncclCftLeId * id, size_t * id_offset)) \
  X(ncclResult_t, GetCftDeviceLeInfo,                                                                                  \
    (ncclWindow_t window, size_t offset, int peer, ncclTeam_t team, ncclCftLeId* id, size_t* id_offset))               \
  X(ncclResult_t, GetPeerDeviceLeInfo,                                                                                 \
    (ncclWindow_t window, size_t offset, int peer, ncclCftLeId* id, size_t* id_offset))                                \
  X(ncclResult_t, LsaBarrierCreateRequirement,                                                                         \
    (ncclTeam_t team, int num, ncclLsaBarrierHandle_t* handle, ncclDevResourceRequirements_t* requirement))            \
  X(ncclResult_t, GinBarrierCreateRequirement,                                                                         \
    (ncclComm_t comm, ncclTeam_t team, int num, ncclGinBarrierHandle_t* handle,                                        \
     ncclDevResourceRequirements_t* requirement))                                                                      \
  X(ncclResult_t, LLA2ACreateRequirement,                                                                              \
    (int num_blocks, int num_slots, ncclLLA2AHandle_t* handle, ncclDevResourceRequirements_t* requirement))            \
  X(ncclResult_t, GinOutboxCreateRequirement,                                                                          \
    (int num_blocks, int log2_bytes, ncclGinOutboxHandle_t* handle, ncclDevResourceRequirements_t* requirement))       \
  X(ncclResult_t, GinInboxA2ACreateRequirement,                                                                        \
    (ncclTeam_t peers, int num_blocks, int log2_bytes, ncclGinInboxA2AHandle_t* handle,                                \
     ncclDevResourceRequirements_t* requirement))

// X(result, name, parameters): every function except ncclResetDebugInitInternal, which has only one name.
#define RONDO_NCCL_FUNCTIONS(X)                                                                                       \
  X(ncclResult_t, GetVersion, (int* version))                                                                         \
  X(const char*, GetErrorString, (ncclResult_t result))                                                               \
  X(const char*, GetLastError, (ncclComm_t comm))                                                                     \
  X(void, ResetDebugInit, ())                                                                                         \
  X(ncclResult_t, GetUniqueId, (ncclUniqueId * id))                                                                   \
  X(ncclResult_t, CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank))                           \
  X(ncclResult_t, CommInitRankConfig,                                                                                 \
    (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config))                                 \
  X(ncclResult_t, CommInitRankScalable,                                                                               \
    (ncclComm_t * comm, int nranks, int rank, int num_ids, ncclUniqueId* ids, ncclConfig_t* config))                  \
  X(ncclResult_t, CommInitAll, (ncclComm_t * comms, int ndev, const int* devlist))                                    \
  X(ncclResult_t, CommFinalize, (ncclComm_t comm))                                                                    \
  X(ncclResult_t, CommDestroy, (ncclComm_t comm))                                                                     \
  X(ncclResult_t, CommAbort, (ncclComm_t comm))                                                                       \
  X(ncclResult_t, CommRevoke, (ncclComm_t comm, int flags))                                                           \
  X(ncclResult_t, CommSplit, (ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t* config))           \
  X(ncclResult_t, CommShrink,                                                                                         \
    (ncclComm_t comm, int* excluded, int num_excluded, ncclComm_t* smaller, ncclConfig_t* config, int flags))         \
  X(ncclResult_t, CommGetUniqueId, (ncclComm_t comm, ncclUniqueId * id))                                              \
  X(ncclResult_t, CommGrow,                                                                                           \
    (ncclComm_t comm, int nranks, const ncclUniqueId* id, int rank, ncclComm_t* larger, ncclConfig_t* config))        \
  X(ncclResult_t, CommGetAsyncError, (ncclComm_t comm, ncclResult_t * error))                                         \
  X(ncclResult_t, CommCount, (const ncclComm_t comm, int* count))                                                     \
  X(ncclResult_t, CommCuDevice, (const ncclComm_t comm, int* device))                                                 \
  X(ncclResult_t, CommUserRank, (const ncclComm_t comm, int* rank))                                                   \
  X(ncclResult_t, CommQueryProperties, (ncclComm_t comm, ncclCommProperties_t * properties))                          \
  X(ncclResult_t, CommSuspend, (ncclComm_t comm, int flags))                                                          \
  X(ncclResult_t, CommResume, (ncclComm_t comm))                                                                      \
  X(ncclResult_t, CommMemStats, (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t * value))                          \
  X(ncclResult_t, CommRegister, (const ncclComm_t comm, void* buffer, size_t bytes, void** handle))                   \
  X(ncclResult_t, CommDeregister, (const ncclComm_t comm, void* handle))                                              \
  X(ncclResult_t, CommWindowRegister, (ncclComm_t comm, void* buffer, size_t bytes, ncclWindow_t* window, int flags)) \
  X(ncclResult_t, CommWindowDeregister, (ncclComm_t comm, ncclWindow_t window))                                       \
  X(ncclResult_t, WinGetUserPtr, (ncclComm_t comm, ncclWindow_t window, void** pointer))                              \
  X(ncclResult_t, MemAlloc, (void** pointer, size_t bytes))                                                           \
  X(ncclResult_t, MemFree, (void* pointer))                                                                           \
  X(ncclResult_t, RedOpCreatePreMulSum,                                                                               \
    (ncclRedOp_t * op, void* scalar, ncclDataType_t type, ncclScalarResidence_t residence, ncclComm_t comm))          \
  X(ncclResult_t, RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm))                                                    \
  X(ncclResult_t, Bcast,                                                                                              \
    (void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream))                \
  RONDO_NCCL_COLLECTIVES(RONDO_NCCL_BOTH_FORMS, X)                                                                    \
  X(ncclResult_t, Send,                                                                                               \
    (const void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))          \
  X(ncclResult_t, Recv,                                                                                               \
    (void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))                \
  X(ncclResult_t, GroupStart, ())                                                                                     \
  X(ncclResult_t, GroupEnd, ())                                                                                       \
  X(ncclResult_t, GroupSimulateEnd, (ncclSimInfo_t * info))                                                           \
  X(ncclResult_t, SetEncryption, (const ncclEncryptionConfig_t* config))                                              \
  X(ncclResult_t, PutSignal,                                                                                          \
    (const void* local, size_t count, ncclDataType_t type, int peer, ncclWindow_t window, size_t offset, int signal,  \
     int context, unsigned int flags, ncclComm_t comm, cudaStream_t stream))                                          \
  X(ncclResult_t, Signal,                                                                                             \
    (int peer, int signal, int context, unsigned int flags, ncclComm_t comm, cudaStream_t stream))                    \
  X(ncclResult_t, WaitSignal, (int num, ncclWaitSignalDesc_t* signals, ncclComm_t comm, cudaStream_t stream))         \
  X(ncclResult_t, ParamBind, (ncclParamHandle_t * handle, const char* key))                                           \
  X(ncclResult_t, ParamGetI8, (ncclParamHandle_t handle, int8_t * value))                                             \
  X(ncclResult_t, ParamGetI16, (ncclParamHandle_t handle, int16_t * value))                                           \
  X(ncclResult_t, ParamGetI32, (ncclParamHandle_t handle, int32_t * value))                                           \
  X(ncclResult_t, ParamGetI64, (ncclParamHandle_t handle, int64_t * value))                                           \
  X(ncclResult_t, ParamGetU8, (ncclParamHandle_t handle, uint8_t * value))                                            \
  X(ncclResult_t, ParamGetU16, (ncclParamHandle_t handle, uint16_t * value))                                          \
  X(ncclResult_t, ParamGetU32, (ncclParamHandle_t handle, uint32_t * value))                                          \
  X(ncclResult_t, ParamGetU64, (ncclParamHandle_t handle, uint64_t * value))                                          \
  X(ncclResult_t, ParamGetStr, (ncclParamHandle_t handle, const char** value))                                        \
  X(ncclResult_t, ParamGet, (ncclParamHandle_t handle, void* value, int capacity, int* length))                       \
  X(ncclResult_t, ParamGetParameter, (const char* key, const char** value, int* length))                              \
  X(ncclResult_t, ParamGetAllParameterKeys, (const char*** keys, int* num))                                           \
  X(void, ParamDumpAll, (void))                                                                                       \
  X(ncclTeam_t, TeamWorld, (ncclComm_t comm))                                                                         \
  X(ncclTeam_t, TeamLsa, (ncclComm_t comm))                                                                           \
  X(ncclTeam_t, TeamRail, (ncclComm_t comm))                                                                          \
  X(ncclTeam_t, TeamCft, (ncclComm_t comm, ncclCftTeamMode_t mode))                                                   \
  X(ncclTeam_t, TeamCftMultimem, (ncclComm_t comm))                                                                   \
  X(int, TeamRankToWorld, (ncclComm_t comm, ncclTeam_t team, int rank))                                               \
  X(int, TeamRankToLsa, (ncclComm_t comm, ncclTeam_t team, int rank))                                                 \
  X(int, LLA2ACalcSlots, (int max_elems, int max_elem_bytes))                                                         \
  RONDO_NCCL_DEVICE_FUNCTIONS(X)

extern "C" {
#define RONDO_NCCL_DECLARE(result, name, parameters)                    \
  __attribute__((visibility("default"))) result pnccl##name parameters; \
  __attribute__((visibility("default"))) result nccl##name parameters;
RONDO_NCCL_FUNCTIONS(RONDO_NCCL_DECLARE)
#undef RONDO_NCCL_DECLARE
__attribute__((visibility("default"))) void ncclResetDebugInitInternal();
}

// Defines a function under both of its names: RONDO_NCCL(ncclResult_t, GroupStart)() { ... }
#define RONDO_NCCL(result, name)                                                                                  \
  extern "C" __attribute__((weak, alias("pnccl" #name), visibility("default"))) decltype(pnccl##name) nccl##name; \
  result pnccl##name

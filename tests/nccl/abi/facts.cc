// Prints the facts of NCCL's binary interface, one "name = value" per line: numbers, layouts and prototypes. Compiled
// with our src/nccl/abi.h and with each of NVIDIA's headers, which macros name; check_abi.py compares the results.
//
//   FACTS_HEADER         the header's name, in quotes or brackets
//   FACTS_DEVICE_HEADER  likewise; not for ours
//   FACTS_FUNCTIONS      a file of FUNCTION(ncclAllReduce) lines: the exports of that version's library
//   FACTS_VERSION        of the header; ours: 23203
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>
#include <utility>

#include FACTS_HEADER
#ifdef FACTS_DEVICE_HEADER
#include FACTS_DEVICE_HEADER
#endif

namespace {

// A type's properties in the calling convention.
template <class T>
std::string kind() {
  if constexpr (std::is_void_v<T>) return "void";
  else if constexpr (std::is_pointer_v<T>) return "pointer";
  else if constexpr (std::is_enum_v<T>) return "enum" + std::to_string(sizeof(T));
  else if constexpr (std::is_integral_v<T>)
    return (std::is_signed_v<T> ? "int" : "uint") + std::to_string(8 * sizeof(T));
  else return "struct" + std::to_string(sizeof(T));
}

template <class Result, class... Parameters>
std::string signature(Result (*)(Parameters...)) {
  std::string text = kind<Result>() + " (";
  ((text += kind<Parameters>() + " "), ...);
  return text + ")";
}

// For functions with a second form in C++ (a device communicator's): the result type of a call with these parameters.
template <class Result, class... Parameters>
std::string called() {
  return signature(static_cast<Result (*)(Parameters...)>(nullptr));
}

void fact(const char* name, long long value) { std::printf("%s = %lld\n", name, value); }
void fact(const char* name, const std::string& value) { std::printf("%s = %s\n", name, value.c_str()); }

void numbers() {
#define NUMBER(x) fact(#x, static_cast<long long>(x))
  NUMBER(ncclSuccess);
  NUMBER(ncclUnhandledCudaError);
  NUMBER(ncclSystemError);
  NUMBER(ncclInternalError);
  NUMBER(ncclInvalidArgument);
  NUMBER(ncclInvalidUsage);
  NUMBER(ncclRemoteError);
  NUMBER(ncclInProgress);
#if FACTS_VERSION >= 23003
  NUMBER(ncclTimeout);
  NUMBER(ncclNumResults);  // 8 before
#endif
  NUMBER(ncclInt8);
  NUMBER(ncclUint8);
  NUMBER(ncclInt32);
  NUMBER(ncclUint32);
  NUMBER(ncclInt64);
  NUMBER(ncclUint64);
  NUMBER(ncclFloat16);
  NUMBER(ncclFloat32);
  NUMBER(ncclFloat64);
  NUMBER(ncclBfloat16);
  NUMBER(ncclFloat8e4m3);
  NUMBER(ncclFloat8e5m2);
  NUMBER(ncclNumTypes);
  NUMBER(ncclSum);
  NUMBER(ncclProd);
  NUMBER(ncclMax);
  NUMBER(ncclMin);
  NUMBER(ncclAvg);
  NUMBER(ncclNumOps);
  NUMBER(ncclMaxRedOp);
  NUMBER(ncclScalarDevice);
  NUMBER(ncclScalarHostImmediate);
  NUMBER(NCCL_CONFIG_UNDEF_INT);
  NUMBER(NCCL_SPLIT_NOCOLOR);
  NUMBER(NCCL_CTA_POLICY_DEFAULT);
  NUMBER(NCCL_CTA_POLICY_EFFICIENCY);
  NUMBER(NCCL_CTA_POLICY_ZERO);
  NUMBER(NCCL_SHRINK_DEFAULT);
  NUMBER(NCCL_SHRINK_ABORT);
  NUMBER(NCCL_REVOKE_DEFAULT);
  NUMBER(NCCL_WIN_DEFAULT);
  NUMBER(NCCL_WIN_COLL_SYMMETRIC);
#if FACTS_VERSION >= 23007
  NUMBER(NCCL_WIN_STRICT_ORDERING);
  NUMBER(NCCL_API_MAGIC);
  NUMBER(NCCL_SUSPEND_MEM);
  NUMBER(ncclStatGpuMemSuspend);
  NUMBER(ncclStatGpuMemSuspended);
  NUMBER(ncclStatGpuMemPersist);
  NUMBER(ncclStatGpuMemTotal);
  NUMBER(NCCL_GIN_TYPE_NONE);
  NUMBER(NCCL_GIN_CONNECTION_NONE);
#endif
#if FACTS_VERSION >= 23203
  NUMBER(NCCL_ENCRYPTION_MODE_NONE);
  NUMBER(NCCL_ENCRYPTION_MODE_PSK);
  NUMBER(NCCL_CFT_TEAM_FLAT);
#endif
#undef NUMBER
}

void layouts() {
#define SIZE(type) fact("sizeof " #type, static_cast<long long>(sizeof(type)))
#define FIELD(type, field) \
  fact(#type "." #field, std::to_string(offsetof(type, field)) + ", " + kind<std::remove_cv_t<decltype(type::field)>>())
  SIZE(ncclUniqueId);
  SIZE(ncclSimInfo_t);
  SIZE(ncclTeam_t);
  SIZE(ncclMultimemHandle_t);
  FIELD(ncclSimInfo_t, size);
  FIELD(ncclSimInfo_t, magic);
  FIELD(ncclSimInfo_t, version);
  FIELD(ncclSimInfo_t, estimatedTime);
  FIELD(ncclTeam_t, nRanks);
  FIELD(ncclTeam_t, rank);
  FIELD(ncclTeam_t, stride);
  FIELD(ncclConfig_t, size);
  FIELD(ncclConfig_t, magic);
  FIELD(ncclConfig_t, version);
  FIELD(ncclConfig_t, blocking);
  FIELD(ncclConfig_t, cgaClusterSize);
  FIELD(ncclConfig_t, minCTAs);
  FIELD(ncclConfig_t, maxCTAs);
  FIELD(ncclConfig_t, netName);
  FIELD(ncclConfig_t, splitShare);
  FIELD(ncclConfig_t, trafficClass);
  FIELD(ncclConfig_t, commName);
  FIELD(ncclConfig_t, collnetEnable);
  FIELD(ncclConfig_t, CTAPolicy);
  FIELD(ncclConfig_t, shrinkShare);
  FIELD(ncclConfig_t, nvlsCTAs);
  FIELD(ncclConfig_t, nChannelsPerNetPeer);
  FIELD(ncclConfig_t, nvlinkCentricSched);
#if FACTS_VERSION >= 23007
  FIELD(ncclConfig_t, graphUsageMode);
  FIELD(ncclConfig_t, numRmaCtx);
  FIELD(ncclConfig_t, maxP2pPeers);
  FIELD(ncclConfig_t, graphStreamOrdering);
  SIZE(ncclWaitSignalDesc_t);
  FIELD(ncclWaitSignalDesc_t, opCnt);
  FIELD(ncclWaitSignalDesc_t, peer);
  FIELD(ncclWaitSignalDesc_t, sigIdx);
  FIELD(ncclWaitSignalDesc_t, ctx);
  FIELD(ncclCommProperties_t, size);
  FIELD(ncclCommProperties_t, magic);
  FIELD(ncclCommProperties_t, version);
  FIELD(ncclCommProperties_t, rank);
  FIELD(ncclCommProperties_t, nRanks);
  FIELD(ncclCommProperties_t, cudaDev);
  FIELD(ncclCommProperties_t, nvmlDev);
  FIELD(ncclCommProperties_t, deviceApiSupport);
  FIELD(ncclCommProperties_t, multimemSupport);
  FIELD(ncclCommProperties_t, ginType);
  FIELD(ncclCommProperties_t, nLsaTeams);
  FIELD(ncclCommProperties_t, hostRmaSupport);
  FIELD(ncclCommProperties_t, railedGinType);
#endif
#if FACTS_VERSION >= 23203
  SIZE(ncclConfig_t);
  SIZE(ncclCollConfig_t);
  SIZE(ncclConfigExt_t);
  SIZE(ncclEncryptionConfig_t);
  SIZE(ncclCommProperties_t);
  FIELD(ncclConfig_t, launchOrderImplicit);
  FIELD(ncclConfig_t, numRmaSig);
  FIELD(ncclConfig_t, rmaEagerInit);
  FIELD(ncclConfig_t, hostCftMode);
  FIELD(ncclConfig_t, nvlsHostMode);
  FIELD(ncclCollConfig_t, size);
  FIELD(ncclCollConfig_t, magic);
  FIELD(ncclCollConfig_t, version);
  FIELD(ncclCollConfig_t, ext);
  FIELD(ncclCollConfig_t, minCTAs);
  FIELD(ncclCollConfig_t, maxCTAs);
  FIELD(ncclCollConfig_t, nvlsCTAs);
  FIELD(ncclCollConfig_t, cgaClusterSize);
  FIELD(ncclCollConfig_t, algSelection);
  FIELD(ncclCollConfig_t, forceAlgSelection);
  FIELD(ncclCollConfig_t, CTAPolicy);
  FIELD(ncclCollConfig_t, userProfilerTag);
  FIELD(ncclCollConfig_t, launchCompletionEvent);
  FIELD(ncclConfigExt_t, next);
  FIELD(ncclConfigExt_t, key);
  FIELD(ncclConfigExt_t, val);
  FIELD(ncclConfigExt_t, key.vendorId);
  FIELD(ncclConfigExt_t, key.optionId);
  FIELD(ncclEncryptionConfig_t, size);
  FIELD(ncclEncryptionConfig_t, magic);
  FIELD(ncclEncryptionConfig_t, version);
  FIELD(ncclEncryptionConfig_t, mode);
  FIELD(ncclEncryptionConfig_t, psk);
  FIELD(ncclCommProperties_t, commHash);
  FIELD(ncclCommProperties_t, ginMinStride);
  FIELD(ncclCommProperties_t, ginConnectionType);
  FIELD(ncclCommProperties_t, ginSupport);
  FIELD(ncclCommProperties_t, devCommRuntimeVersionSize);
  FIELD(ncclCommProperties_t, cftSupport);
  FIELD(ncclCommProperties_t, cftMulticastSupport);
  FIELD(ncclCommProperties_t, cftCountedSupport);
#endif
#undef FIELD
#undef SIZE
}

void functions() {
#define FUNCTION(name) fact(#name, signature(&name));
#define TEAM(name) fact(#name, called<decltype(name(std::declval<ncclComm_t>())), ncclComm_t>());
#define TEAM_RANK(name)                                                                                     \
  fact(#name, called<decltype(name(std::declval<ncclComm_t>(), std::declval<ncclTeam_t>(), 0)), ncclComm_t, \
                     ncclTeam_t, int>());
#include FACTS_FUNCTIONS
}

}  // namespace

int main() {
  numbers();
  layouts();
  functions();
}

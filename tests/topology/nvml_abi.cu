// Compares src/device/topology/nvml.h with NVIDIA's nvml.h: constants, layout and prototypes, at compile time. Compiled
// as C++ if that header is found (a separate part of CUDA's toolkit).
#include <nvml.h>

#include <cstddef>
#include <cstdio>
#include <type_traits>

#include "device/topology/nvml.h"

namespace {

// As in tests/device/driver/driver_abi.cu: as many parameters, and each pair are both pointers or have the same size.
template <class A, class B>
constexpr bool same_parameter() {
  if constexpr (std::is_pointer_v<A> != std::is_pointer_v<B>) return false;
  else if constexpr (!std::is_pointer_v<A>) return sizeof(A) == sizeof(B) && alignof(A) == alignof(B);
  else if constexpr (requires {
                       sizeof(std::remove_pointer_t<A>);
                       sizeof(std::remove_pointer_t<B>);
                     })
    return sizeof(std::remove_pointer_t<A>) == sizeof(std::remove_pointer_t<B>);
  else return true;
}
template <class A, class B>
struct SamePrototype : std::false_type {};
template <class R, class... A, class S, class... B>
requires(sizeof...(A) == sizeof...(B)) struct SamePrototype<R (*)(A...), S (*)(B...)>
    : std::bool_constant<same_parameter<R, S>() && (same_parameter<A, B>() && ...)> {
};
static_assert(!SamePrototype<int (*)(int), int (*)(int, int)>::value);
static_assert(!SamePrototype<int (*)(int*), int (*)(size_t*)>::value);

#define RONDO_X(member, symbol, args) \
  static_assert(SamePrototype<decltype(rondo::Nvml::member), decltype(&symbol)>::value, #symbol);
RONDO_NVML(RONDO_X)
#undef RONDO_X

#define SAME(a, b) static_assert(static_cast<long long>(a) == static_cast<long long>(b), #a " is not " #b)
SAME(rondo::kNvmlSuccess, NVML_SUCCESS);
SAME(rondo::kNvmlInvalidArgument, NVML_ERROR_INVALID_ARGUMENT);
SAME(rondo::kNvmlNotSupported, NVML_ERROR_NOT_SUPPORTED);
SAME(rondo::kNvmlSameBoard, NVML_TOPOLOGY_INTERNAL);
SAME(rondo::kNvmlOneSwitch, NVML_TOPOLOGY_SINGLE);
SAME(rondo::kNvmlSwitches, NVML_TOPOLOGY_MULTIPLE);
SAME(rondo::kNvmlHostBridge, NVML_TOPOLOGY_HOSTBRIDGE);
SAME(rondo::kNvmlNumaNode, NVML_TOPOLOGY_NODE);
SAME(rondo::kNvmlSystem, NVML_TOPOLOGY_SYSTEM);
SAME(rondo::kNvmlP2pRead, NVML_P2P_CAPS_INDEX_READ);
SAME(rondo::kNvmlP2pWrite, NVML_P2P_CAPS_INDEX_WRITE);
SAME(rondo::kNvmlP2pNvlink, NVML_P2P_CAPS_INDEX_NVLINK);
SAME(rondo::kNvmlP2pAtomics, NVML_P2P_CAPS_INDEX_ATOMICS);
SAME(rondo::kNvmlP2pOk, NVML_P2P_STATUS_OK);
SAME(rondo::kNvmlRemoteGpu, NVML_NVLINK_DEVICE_TYPE_GPU);
SAME(rondo::kNvmlRemoteSwitch, NVML_NVLINK_DEVICE_TYPE_SWITCH);
static_assert(rondo::kNvmlMostLinks >= NVML_NVLINK_MAX_LINKS);
SAME(sizeof(rondo::NvmlPciInfo), sizeof(nvmlPciInfo_t));
SAME(offsetof(rondo::NvmlPciInfo, domain), offsetof(nvmlPciInfo_t, domain));
SAME(offsetof(rondo::NvmlPciInfo, bus), offsetof(nvmlPciInfo_t, bus));
SAME(offsetof(rondo::NvmlPciInfo, device), offsetof(nvmlPciInfo_t, device));
SAME(offsetof(rondo::NvmlPciInfo, bus_id), offsetof(nvmlPciInfo_t, busId));

}  // namespace

int main() {
  std::printf("NVML API %d: the table agrees with NVIDIA's header\n", NVML_API_VERSION);
  return 0;
}

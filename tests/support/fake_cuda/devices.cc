// Devices, their attributes, contexts, names of errors.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>

#include "support/fake_cuda/state.h"

namespace rondo::testing::fake {
namespace {

struct ErrorText {
  Result error;
  const char *name, *text;
};
constexpr ErrorText kErrors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
};

const ErrorText* find_error(Result error) {
  for (const ErrorText& e : kErrors)
    if (e.error == error) return &e;
  return nullptr;
}

struct Current {
  uint64_t of = 0;  // State::serial
  Context context = nullptr;
};
thread_local Current current;

const FakeDevice* find_device(State& st, Device device) {
  return device >= 0 && static_cast<size_t>(device) < st.machine.devices.size()
             ? &st.machine.devices[static_cast<size_t>(device)]
             : nullptr;
}

FakePeer peer_of(State& st, Device from, Device to) {
  if (st.machine.peers.empty()) return {};
  return st.machine.peers.at(static_cast<size_t>(from)).at(static_cast<size_t>(to));
}

}  // namespace

Context current_context() { return current.of == state().serial ? current.context : nullptr; }
void set_current_context(Context context) { current = {state().serial, context}; }

ContextHandle* need_context(State& st, Result& r) {
  ContextHandle* context = current_context();
  r = context == nullptr ? kErrorInvalidContext : context->broken;
  return r == kSuccess ? context : nullptr;
}

Result fake_init(unsigned flags) { return flags == 0 ? kSuccess : kErrorInvalidValue; }
Result fake_driver_version(int* version) {
  *version = state().machine.driver_version;
  return kSuccess;
}
Result fake_error_name(Result error, const char** text) {
  const ErrorText* e = find_error(error);
  *text = e != nullptr ? e->name : nullptr;
  return e != nullptr ? kSuccess : kErrorInvalidValue;
}
Result fake_error_string(Result error, const char** text) {
  const ErrorText* e = find_error(error);
  *text = e != nullptr ? e->text : nullptr;
  return e != nullptr ? kSuccess : kErrorInvalidValue;
}

Result fake_device_get(Device* device, int ordinal) {
  if (find_device(state(), ordinal) == nullptr) return kErrorInvalidDevice;
  *device = ordinal;
  return kSuccess;
}
Result fake_device_count(int* count) {
  *count = static_cast<int>(state().machine.devices.size());
  return kSuccess;
}
Result fake_device_name(char* name, int length, Device device) {
  const FakeDevice* d = find_device(state(), device);
  if (d == nullptr) return kErrorInvalidDevice;
  if (length <= 0) return kErrorInvalidValue;
  std::snprintf(name, static_cast<size_t>(length), "%s", d->name.c_str());
  return kSuccess;
}
Result fake_device_uuid(Uuid* uuid, Device device) {
  const FakeDevice* d = find_device(state(), device);
  if (d == nullptr) return kErrorInvalidDevice;
  *uuid = d->uuid;
  return kSuccess;
}
Result fake_device_pci_bus_id(char* text, int length, Device device) {
  const FakeDevice* d = find_device(state(), device);
  if (d == nullptr) return kErrorInvalidDevice;
  if (length < 13) return kErrorInvalidValue;
  std::snprintf(text, static_cast<size_t>(length), "%04X:%02X:%02X.0", d->pci_domain, d->pci_bus, d->pci_device);
  return kSuccess;
}
Result fake_device_total_memory(size_t* bytes, Device device) {
  const FakeDevice* d = find_device(state(), device);
  if (d == nullptr) return kErrorInvalidDevice;
  *bytes = d->memory_bytes;
  return kSuccess;
}
Result fake_device_attribute(int* value, int attribute, Device device) {
  const FakeDevice* d = find_device(state(), device);
  if (d == nullptr) return kErrorInvalidDevice;
  if (const auto it = d->attributes.find(attribute); it != d->attributes.end()) {
    *value = it->second;
    return kSuccess;
  }
  const std::map<int, int> all = {
      {kAttrMultiprocessorCount, d->multiprocessors},
      {kAttrMemoryClockRate, 2'619'000},
      {kAttrGlobalMemoryBusWidth, 5120},
      {kAttrComputeMajor, d->major},
      {kAttrComputeMinor, d->minor},
  };
  const auto it = all.find(attribute);
  if (it == all.end()) return kErrorInvalidValue;
  *value = it->second;
  return kSuccess;
}

Result fake_device_can_access_peer(int* can, Device device, Device peer) {
  State& st = state();
  if (find_device(st, device) == nullptr || find_device(st, peer) == nullptr) return kErrorInvalidDevice;
  *can = device != peer && peer_of(st, device, peer).access ? 1 : 0;
  return kSuccess;
}
Result fake_device_p2p_attribute(int* value, int attribute, Device from, Device to) {
  State& st = state();
  if (find_device(st, from) == nullptr || find_device(st, to) == nullptr || from == to) return kErrorInvalidDevice;
  const FakePeer p = peer_of(st, from, to);
  switch (attribute) {
    case kP2pNativeAtomic: *value = p.access && p.native_atomics ? 1 : 0; return kSuccess;
    default: return kErrorInvalidValue;
  }
}

Result fake_primary_context_retain(Context* context, Device device) {
  State& st = state();
  if (find_device(st, device) == nullptr) return kErrorInvalidDevice;
  Section section(st.mutex);
  ContextHandle* c = st.contexts[static_cast<size_t>(device)].get();
  ++c->retained;
  *context = c;
  return kSuccess;
}
Result fake_primary_context_release(Device device) {
  State& st = state();
  if (find_device(st, device) == nullptr) return kErrorInvalidDevice;
  Section section(st.mutex);
  ContextHandle* c = st.contexts[static_cast<size_t>(device)].get();
  if (c->retained == 0) return kErrorInvalidContext;
  --c->retained;
  return kSuccess;
}
Result fake_context_set_current(Context context) {
  State& st = state();
  bool known = context == nullptr;
  for (const auto& c : st.contexts) known = known || c.get() == context;
  if (!known) return kErrorInvalidContext;
  set_current_context(context);
  return kSuccess;
}
Result fake_context_get_current(Context* context) {
  *context = current_context();
  return kSuccess;
}
Result fake_context_get_device(Device* device) {
  const Context context = current_context();
  if (context == nullptr) return kErrorInvalidContext;
  *device = context->device;
  return kSuccess;
}
Result fake_context_enable_peer_access(Context peer, unsigned flags) {
  State& st = state();
  Section section(st.mutex);
  Result r;
  ContextHandle* context = need_context(st, r);
  if (context == nullptr) return r;
  if (flags != 0) return kErrorInvalidValue;
  bool known = false;
  for (const auto& c : st.contexts) known = known || c.get() == peer;
  if (!known || peer == context) return kErrorInvalidContext;
  if (!peer_of(st, context->device, peer->device).access) return kErrorPeerAccessUnsupported;
  return context->peers.insert(peer->device).second ? kSuccess : kErrorPeerAccessAlreadyEnabled;
}

bool may_reach(State& st, int from, int to) { return from == to || peer_of(st, from, to).access; }
bool is_lossy(State& st, int from, int to) { return peer_of(st, from, to).lossy; }

}  // namespace rondo::testing::fake

// ncclParam*: this process's NCCL variables, and the ignored ones (kIgnoredKey).
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

#include "nccl/abi.h"
#include "nccl/process.h"
#include "nccl/result.h"

namespace rondo::nccl {
namespace {

// A handle points to its key in kParameterKeys.
const char* key_of(ncclParamHandle_t handle) {
  for (const char* const* key = kParameterKeys; *key != nullptr; ++key)
    if (reinterpret_cast<const void*>(handle) == key) return *key;
  return nullptr;
}

// Empty if the variable is not set.
std::string value_of(const char* key) {
  if (std::strcmp(key, kIgnoredKey) == 0) return process().environment().ignored_text();
  const char* value = std::getenv(key);
  return value != nullptr ? value : "";
}

Expected<std::string> read(ncclParamHandle_t handle, const void* to) {
  if (to == nullptr) return null_argument("out");
  const char* key = key_of(handle);
  if (key == nullptr) return invalid_argument("the handle is not from ncclParamBind");
  return value_of(key);
}

template <class Number>
ncclResult_t get_number(ncclParamHandle_t handle, Number* to) {
  auto text = read(handle, to);
  if (!text.ok()) return report(text.status());
  Number value{};
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size())
    return report(invalid_argument("{} is '{}': not a number of {} bits", key_of(handle), *text, 8 * sizeof(Number)));
  *to = value;
  return ncclSuccess;
}

}  // namespace
}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT(google-build-using-namespace): entry points only from here

RONDO_NCCL(ncclResult_t, ParamBind)(ncclParamHandle_t* handle, const char* key) {
  if (handle == nullptr || key == nullptr) return report(null_argument(handle == nullptr ? "out" : "key"));
  const char* const* found = find_parameter(key);
  if (found == nullptr)
    return report(invalid_argument("'{}' is not a parameter (ncclParamGetAllParameterKeys lists them)", key));
  *handle = reinterpret_cast<ncclParamHandle_t>(const_cast<const char**>(found));
  return ncclSuccess;
}

RONDO_NCCL(ncclResult_t, ParamGetI8)(ncclParamHandle_t h, int8_t* value) { return get_number(h, value); }
RONDO_NCCL(ncclResult_t, ParamGetI16)(ncclParamHandle_t h, int16_t* value) { return get_number(h, value); }
RONDO_NCCL(ncclResult_t, ParamGetI32)(ncclParamHandle_t h, int32_t* value) { return get_number(h, value); }
RONDO_NCCL(ncclResult_t, ParamGetI64)(ncclParamHandle_t h, int64_t* value) { return get_number(h, value); }
RONDO_NCCL(ncclResult_t, ParamGetU8)(ncclParamHandle_t h, uint8_t* value) { return get_number(h, value); }
RONDO_NCCL(ncclResult_t, ParamGetU16)(ncclParamHandle_t h, uint16_t* value) { return get_number(h, value); }
RONDO_NCCL(ncclResult_t, ParamGetU32)(ncclParamHandle_t h, uint32_t* value) { return get_number(h, value); }
RONDO_NCCL(ncclResult_t, ParamGetU64)(ncclParamHandle_t h, uint64_t* value) { return get_number(h, value); }

RONDO_NCCL(ncclResult_t, ParamGetStr)(ncclParamHandle_t handle, const char** value) {
  auto text = read(handle, value);
  if (!text.ok()) return report(text.status());
  thread_local std::string kept;
  kept = *text;
  *value = kept.c_str();
  return ncclSuccess;
}

RONDO_NCCL(ncclResult_t, ParamGet)(ncclParamHandle_t handle, void* value, int capacity, int* length) {
  auto text = read(handle, value);
  if (!text.ok()) return report(text.status());
  const size_t bytes = text->size() + 1;  // with the final 0
  if (capacity < 0 || static_cast<size_t>(capacity) < bytes)
    return report(invalid_argument("maxLen is {}: {} bytes are needed", capacity, bytes));
  std::memcpy(value, text->c_str(), bytes);
  if (length != nullptr) *length = static_cast<int>(bytes);
  return ncclSuccess;
}

RONDO_NCCL(ncclResult_t, ParamGetParameter)(const char* key, const char** value, int* length) {
  if (key == nullptr || value == nullptr) return report(null_argument(key == nullptr ? "key" : "value"));
  if (find_parameter(key) == nullptr) return report(invalid_argument("'{}' is not a parameter", key));
  thread_local std::string kept;
  kept = value_of(key);
  *value = kept.c_str();
  if (length != nullptr) *length = static_cast<int>(kept.size());
  return ncclSuccess;
}

RONDO_NCCL(ncclResult_t, ParamGetAllParameterKeys)(const char*** keys, int* num) {
  if (keys == nullptr || num == nullptr) return report(null_argument(keys == nullptr ? "table" : "tableLen"));
  *keys = const_cast<const char**>(kParameterKeys);
  *num = 0;
  while (kParameterKeys[*num] != nullptr) ++*num;
  return ncclSuccess;
}

RONDO_NCCL(void, ParamDumpAll)() {
  for (const char* const* key = kParameterKeys; *key != nullptr; ++key)
    process().log().always(fmt::format("{} = '{}'", *key, value_of(*key)));
}

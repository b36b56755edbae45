#include "device/driver/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "base/function_table.h"

namespace rondo::cuda {
namespace {

constexpr int kOldestVersion = 12000;  // for cuLaunchKernelEx, and stream memory operations without a module parameter

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// The driver's name and text of an error. The table may lack these functions.
std::string error_text(const Driver* d, Result result) {
  const char *name = nullptr, *text = nullptr;
  if (d != nullptr && d->error_name != nullptr) d->error_name(result, &name);
  if (d != nullptr && d->error_string != nullptr) d->error_string(result, &text);
  if (name == nullptr) return fmt::format("CUDA error {}", result);
  return fmt::format("{} ({}{}{})", name, result, text != nullptr ? ": " : "", text != nullptr ? text : "");
}

std::string missing_symbols(void* library, Driver& table) {
  std::string missing;
#define RONDO_X(member, symbol, args)                                       \
  table.member = reinterpret_cast<Result(*) args>(dlsym(library, #symbol)); \
  if (table.member == nullptr) missing += missing.empty() ? #symbol : ", " #symbol;
  RONDO_CUDA_DRIVER(RONDO_X)
#undef RONDO_X
  return missing;
}

constexpr const char* kQueuesVariable = "CUDA_DEVICE_MAX_CONNECTIONS";

// CUDA reads the variable once. Before that its functions refuse to run.
void ask_for_queues(const Driver& table) {
  int count = 0;
  if (table.device_count(&count) == kErrorNotInitialized) setenv(kQueuesVariable, "32", 0);
}

std::string open_driver(Driver& table) {
  // Not by config/setting_table.h: librondo_fsdp has this file, and no settings.
  const std::string_view value = std::getenv("RONDO_CUDA") != nullptr ? std::getenv("RONDO_CUDA") : "";
  if (value == "0" || value == "off") return "CUDA is turned off (RONDO_CUDA=0)";
  // Never closed: the driver has its own threads and handlers.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* text = dlerror();
    return fmt::format("no NVIDIA driver: {}", text != nullptr ? text : "libcuda.so.1 cannot be opened");
  }
  const std::string missing = missing_symbols(library, table);
  // Check the version first: it is the error that a user can fix.
  int version = 0;
  if (table.driver_version != nullptr && table.driver_version(&version) == kSuccess && version < kOldestVersion)
    return fmt::format("the NVIDIA driver supports CUDA {}, but {} is needed", version_text(version),
                       version_text(kOldestVersion));
  if (!missing.empty()) return fmt::format("libcuda.so.1 lacks {}", missing);
  ask_for_queues(table);
  if (const Result r = table.init(0); r != kSuccess) return "cuInit: " + error_text(&table, r);
  int count = 0;
  if (const Result r = table.device_count(&count); r != kSuccess) return "cuDeviceGetCount: " + error_text(&table, r);
  if (count == 0) return "the NVIDIA driver shows no device (CUDA_VISIBLE_DEVICES?)";
  return {};
}

// A driver does not appear while a process runs.
using Table = FunctionTable<Driver, open_driver>;

}  // namespace

const Driver* driver() { return Table::get(); }
std::string why_no_driver() { return Table::why_not(); }
void set_driver(const Driver* table) { Table::replace(table); }

uint32_t num_hardware_queues() {
  constexpr int kDefault = 8, kMost = 32;
  const char* const text = std::getenv(kQueuesVariable);
  const int n = text != nullptr ? std::atoi(text) : 0;
  return static_cast<uint32_t>(n >= 1 && n <= kMost ? n : kDefault);
}

Status check(Result result, const char* what) {
  if (result == kSuccess) return {};
  std::string text = fmt::format("{}: {}", what, error_text(driver(), result));
  if (result == kErrorNotInitialized) text += "; a process forked after CUDA was used cannot use CUDA";
  return Status(result == kErrorOutOfMemory ? StatusCode::kExhausted : StatusCode::kCuda, std::move(text));
}

Expected<const Driver*> need_driver() {
  if (const Driver* d = driver(); d != nullptr) return d;
  return Status(StatusCode::kUnsupported, why_no_driver());
}

CurrentContext::CurrentContext(Context context) {
  const Driver* d = driver();
  RONDO_CHECK(d != nullptr);
  if (d->context_get_current(&before_) != kSuccess) before_ = nullptr;
  if (before_ == context) return;
  result_ = d->context_set_current(context);
  changed_ = result_ == kSuccess;
}

CurrentContext::~CurrentContext() {
  if (changed_) driver()->context_set_current(before_);  // fails only when the process ends
}

}  // namespace rondo::cuda

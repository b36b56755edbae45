#include "device/topology/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/function_table.h"
#include "config/setting_table.h"

namespace rondo {
namespace {

std::string open_nvml(Nvml& table) {
  if (const auto settings = read_process_settings(); settings.ok() && !settings->cuda)
    return "CUDA is turned off (RONDO_CUDA=0)";
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* text = dlerror();
    return text != nullptr ? text : "libnvidia-ml.so.1 cannot be opened";
  }
#define RONDO_X(member, symbol, args) table.member = reinterpret_cast<int(*) args>(dlsym(library, #symbol));
  RONDO_NVML(RONDO_X)
#undef RONDO_X
  if (table.init == nullptr || table.device_by_pci == nullptr)
    return "libnvidia-ml.so.1 lacks nvmlInit_v2 or other functions";
  if (const int r = table.init(); r != kNvmlSuccess) {
    const auto text_of = reinterpret_cast<const char* (*)(int)>(dlsym(library, "nvmlErrorString"));
    return fmt::format("nvmlInit: {} ({})", text_of != nullptr ? text_of(r) : "error", r);
  }
  return {};
}

using Table = FunctionTable<Nvml, open_nvml>;

}  // namespace

const Nvml* nvml() { return Table::get(); }
std::string why_no_nvml() { return Table::why_not(); }
void set_nvml(const Nvml* table) { Table::replace(table); }

std::string p2p_status_text(int status) {
  switch (status) {
    case kNvmlP2pOk: return {};
    case 1: return "the chipset does not support it";
    case 2: return "the GPU does not support it";
    case 3: return "not across these host bridges";
    case 4: return "turned off in the driver's registry";
    case 5: return "not supported";
    default: return fmt::format("status {}", status);
  }
}

}  // namespace rondo

// Modules, functions, kernels, and the resident blocks of a device.
#include <algorithm>
#include <cstring>

#include "support/fake_cuda/state.h"

namespace rondo::testing::fake {
namespace {

uint32_t most_blocks(const State& st, int device) {
  if (st.machine.resident_blocks != 0) return st.machine.resident_blocks;
  return static_cast<uint32_t>(st.machine.devices[static_cast<size_t>(device)].multiprocessors);
}

FunctionHandle* find_function(State& st, Function function) {
  for (const auto& [name, f] : st.functions)
    if (f.get() == function) return f.get();
  return nullptr;
}

// A copy of a kernel's argument, as cuLaunchKernelEx makes it, with the largest possible alignment.
struct alignas(64) Line {
  std::byte bytes[64];
};
using Args = std::vector<Line>;
Shared<Args> copy_args(const void* args, size_t bytes) {
  auto copy = make_hidden<Args>(bytes / sizeof(Line) + 1);
  if (bytes != 0) std::memcpy(copy->data(), args, bytes);
  return copy;
}

// Waits for room, runs the grid, frees the room.
void run_kernel(const FakeKernel& kernel, int device, const void* args, uint32_t grid, uint32_t threads,
                const std::function<void()>& begun) {
  State& st = state();
  uint32_t& resident = st.blocks_resident[static_cast<size_t>(device)];
  const uint32_t most = most_blocks(st, device);
  // More blocks than fit run in waves. That works only if no block waits for another, and such a grid has the device to
  // itself. Otherwise the grid never begins, because its last blocks would not.
  const bool never = grid > most && kernel.blocks_meet;
  const uint32_t blocks = std::min(grid, most);
  {
    Section section(st.mutex);
    st.changed.wait(section.lock(), [&] { return st.stopping || (!never && resident + blocks <= most); });
    if (st.stopping) return;
    resident += blocks;
  }
  begun();
  kernel.run(args, grid, threads);
  Section section(st.mutex);
  resident -= blocks;
  st.changed.notify_all();
}

}  // namespace

Result fake_module_load_data(Module* module, const void* image) {
  State& st = state();
  Section section(st.mutex);
  Result r;
  const ContextHandle* const context = need_context(st, r);
  if (context == nullptr) return r;
  if (r = may_disturb(st); r != kSuccess) return r;
  if (module == nullptr || image == nullptr) return kErrorInvalidValue;
  ++st.lock_holders;
  wait_until(st, section, "the loading of a module, for an idle context,", [&] {
    return std::all_of(st.streams.begin(), st.streams.end(), [&](const auto& one) {
      return one.second->context != context || one.second->completed == one.second->submitted;
    });
  });
  --st.lock_holders;
  st.changed.notify_all();
  auto m = std::make_unique<ModuleHandle>();
  *module = m.get();
  st.modules.emplace(m.get(), std::move(m));
  return kSuccess;
}

Result fake_module_unload(Module module) {
  State& st = state();
  Section section(st.mutex);
  if (const Result r = may_disturb(st); r != kSuccess) return r;
  return st.modules.erase(module) == 1 ? kSuccess : kErrorInvalidHandle;
}

Result fake_module_get_function(Function* function, Module module, const char* name) {
  State& st = state();
  Section section(st.mutex);
  if (st.modules.count(module) == 0) return kErrorInvalidHandle;
  if (function == nullptr || name == nullptr) return kErrorInvalidValue;
  if (const auto it = st.functions.find(name); it != st.functions.end()) {
    *function = it->second.get();
    return kSuccess;
  }
  std::optional<FakeKernel> kernel;
  if (const auto it = st.kernels.find(name); it != st.kernels.end()) kernel = it->second;
  else if (st.find_kernel) kernel = st.find_kernel(name);
  if (!kernel || kernel->run == nullptr) return kErrorNotFound;
  auto f = std::make_unique<FunctionHandle>();
  f->name = name;
  f->kernel = *kernel;
  *function = f.get();
  st.functions.emplace(name, std::move(f));
  return kSuccess;
}

Result fake_launch_kernel(const LaunchConfig* config, Function function, void** params, void** extra) {
  State& st = state();
  if (config == nullptr || extra != nullptr) return kErrorInvalidValue;
  const uint64_t grid = uint64_t{config->grid_x} * config->grid_y * config->grid_z;
  const uint64_t threads = uint64_t{config->block_x} * config->block_y * config->block_z;
  Op op;
  op.what = "a kernel";
  Event completion = nullptr;
  FakeKernel kernel;
  int device;
  {
    Section section(st.mutex);
    Result r;
    const auto s = find_stream(st, config->stream, r);
    if (s == nullptr) return r;
    const FunctionHandle* f = find_function(st, function);
    if (f == nullptr) return kErrorInvalidHandle;
    kernel = f->kernel;
    device = s->context->device;
    if (grid == 0 || grid > 0x7fffffff || threads == 0 || threads > static_cast<uint64_t>(kernel.max_threads) ||
        config->shared_bytes > 48 * 1024 || (kernel.args_bytes != 0 && (params == nullptr || params[0] == nullptr)))
      return kErrorInvalidValue;
    for (unsigned i = 0; i < config->num_attributes; ++i) {
      const LaunchAttribute& a = config->attributes[i];
      if (a.id == kLaunchCooperative) {
        if (a.cooperative != 0 && grid > most_blocks(st, device)) return kErrorCooperativeLaunchTooLarge;
      } else if (a.id == kLaunchCompletionEvent) {
        const auto it = st.events.find(a.launch_completion_event.event);
        if (it == st.events.end()) return kErrorInvalidHandle;
        if ((it->second->flags & kEventDisableTiming) == 0) return kErrorInvalidValue;  // as CUDA requires
        completion = it->first;
      } else if (a.id != kLaunchPriority) {
        return kErrorNotSupported;
      }
    }
  }
  const uint32_t emulated = std::min(static_cast<uint32_t>(threads), std::max(st.machine.block_threads, 1u));
  op.run = [kernel, device, args = copy_args(params != nullptr ? params[0] : nullptr, kernel.args_bytes),
            blocks = static_cast<uint32_t>(grid),
            emulated](const auto& begun) { run_kernel(kernel, device, args->data(), blocks, emulated, begun); };
  if (completion != nullptr) op.begun = make_hidden<Record>();
  const Shared<Record> record = op.begun;
  return submit(config->stream, std::move(op), [&](StreamHandle& s) {
    if (completion == nullptr) return;
    const auto it = st.events.find(completion);
    if (it == st.events.end()) return;
    EventHandle& e = *it->second;
    e.capture = s.capture;
    e.nodes.clear();
    if (s.capture == nullptr) {
      e.last = record;
    } else {  // the node that was just added: waits depend on its beginning
      e.last = nullptr;
      e.nodes.insert({s.last.begin()->node, true});
    }
  });
}

}  // namespace rondo::testing::fake

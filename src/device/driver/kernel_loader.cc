#include "device/driver/kernel_loader.h"

#include <fmt/format.h>

namespace rondo {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<cuda::Context, std::weak_ptr<KernelLoader>> loaders;
  bool any_image = false;
};

Registry& registry() {
  static Registry r;
  return r;
}

}  // namespace

std::shared_ptr<KernelLoader> KernelLoader::of(cuda::Context context) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  std::weak_ptr<KernelLoader>& slot = r.loaders[context];
  auto loader = slot.lock();
  if (loader == nullptr) {
    loader.reset(new KernelLoader(context));
    slot = loader;
  }
  return loader;
}

void KernelLoader::need_no_images() {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.any_image = true;
}

KernelLoader::~KernelLoader() {
  if (cuda::driver() == nullptr) return;
  cuda::CurrentContext current(context_);
  for (const auto& [image, module] : modules_) cuda::driver()->module_unload(module);
}

Status KernelLoader::launch_in_order(cuda::LaunchConfig& config, cuda::Function function, void** params, bool captured,
                                     std::span<const cuda::Event> told) {
  const cuda::Driver* d = cuda::driver();
  int version = 0;
  d->driver_version(&version);
  constexpr int kLaunchCompletion = 12030;
  cuda::LaunchAttribute attribute{};
  attribute.id = cuda::kLaunchCompletionEvent;
  RONDO_CHECK(!captured || told.size() < 2);
  if (captured || version < kLaunchCompletion) {
    if (version < kLaunchCompletion) {
      for (const cuda::Event e : told) RONDO_TRY(cuda::check(d->event_record(e, config.stream), "cuEventRecord"));
    } else if (!told.empty()) {
      attribute.launch_completion_event.event = told[0];
      config.attributes = &attribute;
      config.num_attributes = 1;
    }
    return cuda::check(d->launch_kernel(&config, function, params, nullptr), "cuLaunchKernelEx");
  }
  const std::lock_guard lock(mutex_);
  auto& [begun, side] = begun_[std::this_thread::get_id()];
  if (!told.empty() && side.context() == nullptr) {  // before the launch, because making it may wait for the device
    RONDO_TRY_ASSIGN(side, cuda::OwnedStream::make());
  }
  if (begun.context() == nullptr) {
    RONDO_TRY_ASSIGN(begun, cuda::OwnedEvent::make());
  } else {
    RONDO_TRY(cuda::check(d->stream_wait_event(config.stream, begun.get(), 0), "cuStreamWaitEvent"));
  }
  attribute.launch_completion_event.event = begun.get();
  config.attributes = &attribute;
  config.num_attributes = 1;
  RONDO_TRY(cuda::check(d->launch_kernel(&config, function, params, nullptr), "cuLaunchKernelEx"));
  if (told.empty()) return {};
  RONDO_TRY(cuda::check(d->stream_wait_event(side.get(), begun.get(), 0), "cuStreamWaitEvent"));
  for (const cuda::Event e : told) RONDO_TRY(cuda::check(d->event_record(e, side.get()), "cuEventRecord"));
  return {};
}

Expected<cuda::Function> KernelLoader::find(KernelImages images, std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (const auto it = functions_.find(name); it != functions_.end()) return it->second;
  static constexpr std::byte kNothing[1] = {};
  static constexpr KernelImage kNone{"none", kNothing, {}};
  const KernelImage* const image = registry().any_image ? &kNone : find_image(images, name);
  if (image == nullptr)
    return Status(StatusCode::kUnsupported,
                  images.empty()
                      ? fmt::format("this build has no kernels for devices (RONDO_CUDA was off, or there was no nvcc)")
                      : fmt::format("this build has no kernel {}", name));
  const cuda::Driver* d = cuda::driver();
  auto module = modules_.find(image->fatbin.data());
  if (module == modules_.end()) {
    cuda::Module loaded = nullptr;
    RONDO_TRY(cuda::check(d->module_load_data(&loaded, image->fatbin.data()),
                          fmt::format("loading the kernels {} (cuModuleLoadData)", image->name).c_str()));
    module = modules_.emplace(image->fatbin.data(), loaded).first;
  }
  cuda::Function function = nullptr;
  RONDO_TRY(cuda::check(d->module_get_function(&function, module->second, std::string(name).c_str()),
                        fmt::format("finding {} (cuModuleGetFunction)", name).c_str()));
  functions_.emplace(std::string(name), function);
  return function;
}

}  // namespace rondo

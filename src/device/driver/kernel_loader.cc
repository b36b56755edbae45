#include "device/driver/kernel_loader.h"

#include <fmt/format.h>

#include "device/driver/capture.h"

namespace rondo {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<cuda::Context, std::weak_ptr<KernelLoader>> loaders;
  bool any_image = false;
};

constexpr std::byte kNothing[1] = {};
constexpr KernelImage kNoImage{"none", kNothing, {}};

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
  for (const auto& [image, module] : modules_)
    if (module != nullptr) cuda::driver()->module_unload(module);
}

Expected<cuda::Stream> KernelLoader::setup_stream() {
  const std::lock_guard lock(mutex_);
  if (setup_.context() == nullptr) {
    RONDO_TRY_ASSIGN(setup_, cuda::OwnedStream::make());
  }
  return setup_.get();
}

Status KernelLoader::launch_in_order(cuda::LaunchConfig& config, cuda::Function function, void** params,
                                     std::span<const LaunchPart> parts, std::span<const cuda::Event> told) {
  constexpr int kTellsBegin = 12030;  // drivers that record an event when a kernel has begun
  const cuda::Driver* d = cuda::driver();
  int version = 0;
  d->driver_version(&version);
  auto launch = [&](cuda::Event on_begin) {
    cuda::LaunchAttribute attribute{};
    attribute.id = cuda::kLaunchCompletionEvent;
    attribute.launch_completion_event.event = on_begin;
    config.attributes = &attribute;
    config.num_attributes = on_begin != nullptr ? 1 : 0;
    return cuda::check(d->launch_kernel(&config, function, params, nullptr), "cuLaunchKernelEx");
  };
  const uint64_t capture = cuda::capture_of(config.stream);
  RONDO_CHECK(capture == 0 || told.size() < 2);
  if (version < kTellsBegin) {
    for (const cuda::Event e : told) RONDO_TRY(cuda::record(e, config.stream));
    told = {};
  }
  OfThread* mine;
  {
    const std::lock_guard lock(mutex_);
    mine = &threads_[std::this_thread::get_id()];
  }
  // Only this thread uses it. No lock: the driver blocks a launch while its queue is full.
  auto& [outside, captured, begun, side] = *mine;
  LaunchOrder& order = capture != 0 ? captured : outside;
  const bool aside = !told.empty() && capture == 0;
  if (aside && side.context() == nullptr) {  // before the launch, because making it may wait for the device
    RONDO_TRY_ASSIGN(side, cuda::OwnedStream::make());
    RONDO_TRY_ASSIGN(begun, cuda::OwnedEvent::make());
  }
  RONDO_TRY(order.begin(config.stream, capture, parts));
  RONDO_TRY(launch(aside ? begun.get() : told.empty() ? nullptr : told[0]));
  RONDO_TRY(order.launched(config.stream, parts));
  if (!aside) return {};
  RONDO_TRY(cuda::wait_for(side.get(), begun.get()));
  for (const cuda::Event e : told) RONDO_TRY(cuda::record(e, side.get()));
  return {};
}

Expected<cuda::Module> KernelLoader::module_of(const KernelImage& image) {
  cuda::Module& loaded = modules_[image.fatbin.data()];
  if (loaded != nullptr) return loaded;
  RONDO_TRY(cuda::check(cuda::driver()->module_load_data(&loaded, image.fatbin.data()),
                        fmt::format("loading the kernels {} (cuModuleLoadData)", image.name).c_str()));
  return loaded;
}

Status KernelLoader::load(KernelImages images) {
  if (registry().any_image) {
    const std::lock_guard lock(mutex_);
    return module_of(kNoImage).status();
  }
  for (const KernelImage& image : images)
    for (const std::string_view kernel : image.kernels) RONDO_TRY(find(images, kernel).status());
  return {};
}

Expected<cuda::Function> KernelLoader::find(KernelImages images, std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (const auto it = functions_.find(name); it != functions_.end()) return it->second;
  const KernelImage* const image = registry().any_image ? &kNoImage : find_image(images, name);
  if (image == nullptr)
    return Status(StatusCode::kUnsupported,
                  images.empty()
                      ? fmt::format("this build has no kernels for devices (RONDO_CUDA was off, or there was no nvcc)")
                      : fmt::format("this build has no kernel {}", name));
  RONDO_TRY_ASSIGN(const cuda::Module module, module_of(*image));
  cuda::Function function = nullptr;
  RONDO_TRY(cuda::check(cuda::driver()->module_get_function(&function, module, std::string(name).c_str()),
                        fmt::format("finding {} (cuModuleGetFunction)", name).c_str()));
  functions_.emplace(std::string(name), function);
  return function;
}

}  // namespace rondo

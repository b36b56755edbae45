// KernelLoader: the library's kernels on one device, loaded from their images. It also orders a thread's launches of
// kernels that wait, and has the stream for set-up. Thread safety: any thread; the device's context is current.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "device/driver/handles.h"
#include "device/driver/images.h"
#include "device/driver/launch_order.h"

namespace rondo {

class KernelLoader {
 public:
  /// The loader of this context; made if there is none.
  static std::shared_ptr<KernelLoader> of(cuda::Context context);
  ~KernelLoader();
  KernelLoader(const KernelLoader&) = delete;
  KernelLoader& operator=(const KernelLoader&) = delete;

  /// For set-up copies and fills: the host waits for them at once, and no capture includes them. The ranks of a device
  /// have one for all, because streams share hardware queues. Errors: kSystem.
  Expected<cuda::Stream> setup_stream();

  /// For tests whose driver finds kernels by name: no image is searched from now on.
  static void need_no_images();

  /// Loads all kernels of these images. The driver loads a kernel only when the context is idle, so a kernel that waits
  /// for another rank must not run before. Errors: as find.
  Status load(KernelImages images);

  /// Loads the kernel if load() did not. Errors: kUnsupported (this build has no kernels, or the image has none for the
  /// device), kCuda.
  Expected<cuda::Function> find(KernelImages images, std::string_view name);

  /// Launches a kernel whose blocks wait for other ranks, in this thread's LaunchOrder. The events `told`, at most one
  /// while the stream is captured, are recorded when the driver reports that all blocks have begun, at the
  /// latest when it ends; before driver 12.3 when the stream reaches it. Errors: kCuda.
  Status launch_in_order(cuda::LaunchConfig& config, cuda::Function function, void** params,
                         std::span<const LaunchPart> parts, std::span<const cuda::Event> told);

 private:
  explicit KernelLoader(cuda::Context context) : context_(context) {}
  Expected<cuda::Module> module_of(const KernelImage& image);  // mutex_ is locked
  const cuda::Context context_;
  std::mutex mutex_;
  cuda::OwnedStream setup_;
  std::map<const void*, cuda::Module> modules_;  // by image
  std::map<std::string, cuda::Function, std::less<>> functions_;
  struct OfThread {
    LaunchOrder order, captured;
    cuda::OwnedEvent begun;  // the last launch with events of the caller
    cuda::OwnedStream side;  // records them
  };
  std::map<std::thread::id, OfThread> threads_;
};

}  // namespace rondo

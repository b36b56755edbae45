// KernelLoader: the kernels of this library on one device, loaded from their images at first use.
//
// Thread safety: any thread; the device's context is current.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "cuda/driver.h"

namespace rondo {

class KernelLoader {
 public:
  /// The one of this context, made if nobody holds it.
  static std::shared_ptr<KernelLoader> of(cuda::Context context);
  ~KernelLoader();
  KernelLoader(const KernelLoader&) = delete;
  KernelLoader& operator=(const KernelLoader&) = delete;

  /// Tests with a driver of their own, which finds kernels by name: no image is looked for from now on.
  static void need_no_images();

  /// Errors: kUnsupported (this build has no kernels; the image holds none for the device), kSystem.
  Expected<cuda::Function> find(std::string_view name);

 private:
  explicit KernelLoader(cuda::Context context) : context_(context) {}
  const cuda::Context context_;
  std::mutex mutex_;
  std::map<const void*, cuda::Module> modules_;  // by image
  std::map<std::string, cuda::Function, std::less<>> functions_;
};

}  // namespace rondo

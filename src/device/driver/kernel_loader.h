// KernelLoader: the kernels of this library on one device, loaded from their images at first use; and the order in
// which a thread's launches of kernels that wait begin there.
//
// Thread safety: any thread; the device's context is current.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "device/driver/handles.h"

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

  /// Launches a kernel whose blocks wait for other ranks'. It begins after the one that this thread launched before, on
  /// whatever stream: then calls that come in one order on all ranks also find their place on the devices in that
  /// order, and none holds the place of one that it waits for. (Not while the stream is captured, nor before driver
  /// 12.3.) `told` are recorded when all its blocks have begun; before driver 12.3, when the stream has come to it; at
  /// most one while the stream is captured. Errors: kSystem.
  Status launch_in_order(cuda::LaunchConfig& config, cuda::Function function, void** params, bool captured,
                         std::span<const cuda::Event> told);

 private:
  explicit KernelLoader(cuda::Context context) : context_(context) {}
  const cuda::Context context_;
  std::mutex mutex_;
  std::map<const void*, cuda::Module> modules_;  // by image
  std::map<std::string, cuda::Function, std::less<>> functions_;
  struct Begun {
    cuda::OwnedEvent last;   // the last launch of a thread has begun
    cuda::OwnedStream side;  // where callers' events wait for that
  };
  std::map<std::thread::id, Begun> begun_;
};

}  // namespace rondo

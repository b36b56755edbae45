// Functions of a libcuda.so.1 whose results driver_test.cc sets in the environment: RONDO_TEST_CUDA_VERSION,
// RONDO_TEST_CUDA_INIT (cuInit's result), RONDO_TEST_CUDA_DEVICES. RONDO_TEST_CUDA_READY: CUDA is initialised already.
// cuInit prints the number of hardware queues that it reads, if RONDO_TEST_CUDA_QUEUES is set.
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace {
int number(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : fallback;
}
bool ready = number("RONDO_TEST_CUDA_READY", 0) != 0;
}  // namespace

extern "C" {
int cuInit(unsigned) {
  if (std::exchange(ready, true)) return 0;
  if (number("RONDO_TEST_CUDA_QUEUES", 0) != 0) std::printf("%d queues, ", number("CUDA_DEVICE_MAX_CONNECTIONS", 8));
  return number("RONDO_TEST_CUDA_INIT", 0);
}
int cuDriverGetVersion(int* version) {
  *version = number("RONDO_TEST_CUDA_VERSION", 12000);
  return 0;
}
int cuDeviceGetCount(int* count) {
  if (!ready) return 3;  // CUDA_ERROR_NOT_INITIALIZED
  *count = number("RONDO_TEST_CUDA_DEVICES", 1);
  return 0;
}
int cuGetErrorName(int error, const char** text) {
  *text = error == 100 ? "CUDA_ERROR_NO_DEVICE" : nullptr;
  return *text != nullptr ? 0 : 1;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == 100 ? "no CUDA-capable device is detected" : nullptr;
  return *text != nullptr ? 0 : 1;
}
}

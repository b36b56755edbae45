// Memory of a private FIFO: zero pages that use no memory until they are written.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>

namespace rondo::testing {

class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes) {
    at_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at_ == MAP_FAILED) std::abort();
  }
  ~Pages() { munmap(at_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* at(size_t offset) const { return static_cast<std::byte*>(at_) + offset; }

 private:
  void* at_;
  size_t bytes_;
};

}  // namespace rondo::testing

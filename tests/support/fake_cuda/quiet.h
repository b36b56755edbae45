// Annotations of the fake driver for ThreadSanitizer: its own locks are hidden, so that they create no order that CUDA
// does not have. CUDA's guarantees are pairs of happens_before(x) and happens_after(x).
//
// Without ThreadSanitizer only a mutex remains.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RONDO_FAKE_TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define RONDO_FAKE_TSAN 1
#endif

#ifdef RONDO_FAKE_TSAN
extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void __tsan_acquire(void* addr);
void __tsan_release(void* addr);
}
#endif

namespace rondo::testing::fake {

/// In its scope the sanitizer sees no access and no synchronisation of this thread.
class Quiet {
 public:
#ifdef RONDO_FAKE_TSAN
  Quiet() {
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Quiet() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  }
#else
  Quiet() {}
  ~Quiet() {}
#endif
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
};

/// A shared_ptr with a count that is hidden from the sanitizer: two threads that change a count would be ordered.
template <class T>
class Shared {
 public:
  Shared() = default;
  Shared(std::nullptr_t) {}                            // NOLINT(google-explicit-constructor)
  Shared(std::shared_ptr<T> p) { set(std::move(p)); }  // NOLINT(google-explicit-constructor)
  Shared(const Shared& o) { set(o.p_); }
  Shared(Shared&& o) noexcept { p_.swap(o.p_); }
  Shared& operator=(Shared o) noexcept {
    p_.swap(o.p_);
    return *this;
  }
  ~Shared() { set(nullptr); }
  T* get() const { return p_.get(); }
  T* operator->() const { return p_.get(); }
  T& operator*() const { return *p_; }
  bool operator==(const Shared& o) const { return p_ == o.p_; }
  bool operator==(std::nullptr_t) const { return p_ == nullptr; }
  explicit operator bool() const { return p_ != nullptr; }

 private:
  void set(std::shared_ptr<T> p) {
    const Quiet quiet;
    p_.swap(p);
    p.reset();  // here, not after the quiet scope
  }
  std::shared_ptr<T> p_;
};
template <class T, class... A>
Shared<T> make_hidden(A&&... args) {
  return Shared<T>(std::make_shared<T>(std::forward<A>(args)...));
}

/// Holds the fake's mutex, hidden from the sanitizer.
class Section {
 public:
  explicit Section(std::mutex& mutex) : lock_(mutex) {}
  std::unique_lock<std::mutex>& lock() { return lock_; }

 private:
  Quiet quiet_;  // from before locking until after unlocking
  std::unique_lock<std::mutex> lock_;
};

/// Outside of sections: orders this thread's earlier work before code after happens_after(token) elsewhere.
inline void happens_before([[maybe_unused]] const void* token) {
#ifdef RONDO_FAKE_TSAN
  __tsan_release(const_cast<void*>(token));
#endif
}
inline void happens_after([[maybe_unused]] const void* token) {
#ifdef RONDO_FAKE_TSAN
  __tsan_acquire(const_cast<void*>(token));
#endif
}

}  // namespace rondo::testing::fake

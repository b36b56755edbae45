#include "base/thread.h"

#include <fmt/format.h>

#include <memory>

#include "base/limits.h"

namespace rondo {
namespace {

void* run(void* body) {
  const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(body));
  (*owned)();
  return nullptr;
}

}  // namespace

Status Thread::start(std::string_view what, std::function<void()> body) {
  RONDO_CHECK(!joinable());
  auto owned = std::make_unique<std::function<void()>>(std::move(body));
  pthread_t thread;
  if (const int error = pthread_create(&thread, nullptr, run, owned.get()); error != 0)
    return Status(code_of(error), fmt::format("{} cannot be started: {}", what, errno_reason(error)));
  (void)owned.release();
  thread_ = thread;
  return {};
}

void Thread::join() {
  RONDO_CHECK(joinable());
  pthread_join(*thread_, nullptr);
  thread_.reset();
}

void Thread::detach() {
  RONDO_CHECK(joinable());
  pthread_detach(*thread_);
  thread_.reset();
}

}  // namespace rondo

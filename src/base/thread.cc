#include "base/thread.h"

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
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
    return make_error(code_of(error), "{} cannot be started: {}", what, errno_reason(error));
  (void)owned.release();
  started_.emplace(Started{thread});
  return {};
}

void Thread::join() {
  RONDO_CHECK(joinable());
  pthread_join(started_->thread, nullptr);
  started_.reset();
}

void Thread::detach() {
  RONDO_CHECK(joinable());
  pthread_detach(started_->thread);
  started_.reset();
}

Status run_concurrently(std::string_view what, size_t num, const std::function<Status(size_t)>& task) {
  std::vector<Status> results(num);
  std::deque<Thread> threads(num);
  for (size_t i = 1; i < num; ++i)
    if (Status s = threads[i].start(what, [&, i] { results[i] = task(i); }); !s.ok()) results[i] = std::move(s);
  if (num > 0) results[0] = task(0);
  for (Thread& t : threads)
    if (t.joinable()) t.join();
  for (Status& s : results) RONDO_TRY(std::move(s));
  return {};
}

}  // namespace rondo

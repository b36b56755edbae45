#include "engine/progress.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace rondo {

Expected<std::unique_ptr<ProgressThread>> ProgressThread::create(OperationQueue& queue,
                                                                 const std::optional<Binding>& binding) {
  std::unique_ptr<ProgressThread> made(new ProgressThread(queue, binding));
  RONDO_TRY(made->thread_.start(fmt::format("rank {}: the progress thread", queue.rank()), [raw = made.get()] {
    raw->bind();
    take_short_turns();
    raw->loop();
  }));
  queue.set_helper(made.get());
  return made;
}

ProgressThread::~ProgressThread() {
  if (!thread_.joinable()) return;  // it could not be started
  queue_.set_helper(nullptr);
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void ProgressThread::kick() {
  {
    std::lock_guard lock(mutex_);  // a thread about to sleep must see the admitted operation
    work_.notify_one();
  }
  ring(*queue_.bell());  // it may be waiting for an earlier operation's messages
}

void ProgressThread::bind() {
  if (!binding_) return;
  if (const Status s = bind_this_thread(*binding_); !s.ok())
    std::fprintf(stderr, "rondo: rank %d: its progress thread is %s\n", queue_.rank(),
                 std::string(s.message()).c_str());
}

void ProgressThread::loop() {
  while (!stop_) {
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [this] { return stop_ || queue_.needs_helper(); });
    }
    drive_while_needed();
  }
}

void ProgressThread::drive_while_needed() {
  OperationQueue* const queues[] = {&queue_};
  QueueWatch watch(queues);
  HostSpin spin(queue_.spin().in_background(), watch, queue_.bell());
  while (!stop_ && queue_.needs_helper()) {
    bool moved = false;
    if (queue_.drive()) {
      moved = queue_.step();
      queue_.leave();
    }
    if (moved) spin.moved();
    else spin.idle();
  }
  if (!queue_.contended()) queue_.rest();
}

}  // namespace rondo

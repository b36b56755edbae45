// Streams and their threads, copies, fills, memory operations, host functions.
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "support/fake_cuda/state.h"

namespace rondo::testing::fake {
namespace {

constexpr unsigned kWaitNor = 3, kWaitModeMask = 3;

void set_begun(State& st, Op& op) {
  const Section section(st.mutex);
  op.has_begun = true;
  st.changed.notify_all();
}

void run_op(State& st, Op& op) {
  thread_local std::minstd_rand random(std::random_device{}());
  const FakeLimits& limits = st.machine.limits;
  if (limits.delay_us != 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % limits.delay_us));
  op.run([&] {
    if (limits.queues != 0) set_begun(st, op);
    if (op.begun && !limits.late) finish(st, *op.begun);
  });
  if (op.begun && limits.late) finish(st, *op.begun);
}

// Returns whole zero pages of a large block to the kernel, which provides zero pages again. ThreadSanitizer would spend
// most of its time on writing them. It sees writes of the first and last pages.
void set_bytes(uintptr_t at, unsigned char value, size_t bytes) {
  constexpr size_t kPage = 4096, kSeen = 16 * kPage;
  if (value == 0 && bytes >= (size_t{1} << 20)) {
    const uintptr_t from = (at + kSeen + kPage - 1) / kPage * kPage, to = (at + bytes - kSeen) / kPage * kPage;
    if (madvise(reinterpret_cast<void*>(from), to - from, MADV_REMOVE) == 0) {
      std::memset(reinterpret_cast<void*>(at), value, from - at);
      std::memset(reinterpret_cast<void*>(to), value, at + bytes - to);
      return;
    }
  }
  std::memset(reinterpret_cast<void*>(at), value, bytes);
}

// A stream's thread: runs its operations in order, each after the operations of other streams that it follows.
void serve(State& st, const Shared<StreamHandle>& s) {
  for (;;) {
    Shared<Op> op;
    {
      Section section(st.mutex);
      s->work.wait(section.lock(), [&] { return st.stopping || !s->queue.empty() || s->destroyed; });
      if (st.stopping || s->queue.empty()) return;
      op = s->queue.front();
      for (const auto& one : op->after)
        st.changed.wait(section.lock(), [&] { return st.stopping || one.first->completed >= one.second; });
      st.changed.wait(section.lock(), [&] { return st.stopping || op->ahead == nullptr || op->ahead->has_begun; });
      if (st.stopping) return;
    }
    happens_after(op.get());
    for (const auto& [other, number] : op->after) happens_after(&other->done);
    run_op(st, *op);
    op->run = nullptr;
    happens_before(&s->done);
    Section section(st.mutex);
    op->after.clear();
    op->ahead = nullptr;
    op->has_begun = true;
    s->queue.pop_front();
    ++s->completed;
    st.changed.notify_all();
  }
}

// In a section. Adds the order with the legacy stream.
void order_with_legacy(State& st, const Shared<StreamHandle>& s, Op& op) {
  if (s->legacy) {
    for (const auto& [handle, other] : st.streams)
      if (other->context == s->context && other->blocking && other->completed < other->submitted)
        op.after.emplace_back(other, other->submitted);
  } else if (const auto& legacy = s->context->legacy;
             s->blocking && legacy != nullptr && legacy->completed < legacy->submitted) {
    op.after.emplace_back(legacy, legacy->submitted);
  }
}

// In a section. Refuses legacy work while a blocking stream captures, because it would join the capture.
Result refuse_implicit(State& st, const StreamHandle& s) {
  if (!s.legacy) return kSuccess;
  for (const auto& [handle, other] : st.streams)
    if (other->blocking && other->capture != nullptr && other->context == s.context)
      return invalidate(*other->capture, kErrorCaptureImplicit);
  return kSuccess;
}

// In a section: for queries and synchronisations of a stream.
Result may_wait_for(State& st, const StreamHandle& s) {
  if (s.capture != nullptr) return invalidate(*s.capture, kErrorStreamCaptureUnsupported);
  if (const Result r = refuse_implicit(st, s); r != kSuccess) return r;
  return may_disturb(st);
}

void wait_for_stream(State& st, StreamHandle& s) {
  {
    Section section(st.mutex);
    const uint64_t number = s.submitted;
    wait_until(st, section, "the host, for a stream,", [&] { return s.completed >= number; });
  }
  happens_after(&s.done);
}

// Memory kind of a copy's or fill's end.
enum class Place { kWrong, kDevice, kPinned, kPageable };
Place place_of(State& st, uintptr_t at, size_t bytes) {
  if (const Allocation* a = find_memory(st, at, bytes); a != nullptr)
    return a->kind == Allocation::Kind::kDevice || a->kind == Allocation::Kind::kImported ? Place::kDevice
                                                                                          : Place::kPinned;
  const bool device_address = at >= st.region && at < st.region_end;
  return device_address || at == 0 || find_memory(st, at, 1) != nullptr ? Place::kWrong : Place::kPageable;
}

Result copy(DevicePtr dst, DevicePtr src, size_t bytes, Stream stream) {
  State& st = state();
  Place from, to;
  bool capturing;
  Shared<StreamHandle> s;
  {
    Section section(st.mutex);
    Result r;
    s = find_stream(st, stream, r);
    if (s == nullptr) return r;
    if (bytes == 0) return kSuccess;
    from = place_of(st, src, bytes), to = place_of(st, dst, bytes);
    if (from == Place::kWrong || to == Place::kWrong) return kErrorInvalidValue;
    capturing = s->capture != nullptr;
  }
  Op op;
  op.what = "a copy";
  if (from == Place::kPageable && !capturing) {  // the driver copies it before it returns
    const auto* first = reinterpret_cast<const std::byte*>(src);
    op.run = [dst, staged = std::vector<std::byte>(first, first + bytes)](const auto&) {
      std::memcpy(reinterpret_cast<void*>(dst), staged.data(), staged.size());
    };
  } else {
    op.run = [dst, src, bytes](const auto&) {
      std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes);
    };
  }
  const Result r = submit(stream, std::move(op));
  if (r != kSuccess || to != Place::kPageable || capturing) return r;
  {
    const Section section(st.mutex);
    ++st.lock_holders;
  }
  wait_for_stream(st, *s);
  const Section section(st.mutex);
  --st.lock_holders;
  st.changed.notify_all();
  return r;
}

Result copy_and_wait(DevicePtr dst, DevicePtr src, size_t bytes) {
  State& st = state();
  {
    Section section(st.mutex);
    Result r;
    const auto s = find_stream(st, nullptr, r);
    if (s == nullptr) return r;
    if (r = may_wait_for(st, *s); r != kSuccess) return r;
  }
  if (const Result r = copy(dst, src, bytes, nullptr); r != kSuccess) return r;
  Section section(st.mutex);
  Result r;
  const auto s = find_stream(st, nullptr, r);
  section.lock().unlock();
  wait_for_stream(st, *s);
  return kSuccess;
}

// Acquires, as a wait in a stream does. Yields until the condition holds.
void poll(State& st, const BatchMemOp& op) {
  std::atomic_ref<uint32_t> word(*reinterpret_cast<uint32_t*>(op.value.address));
  const uint32_t value = op.value.value;
  for (;;) {
    const uint32_t now = word.load(std::memory_order_acquire);
    switch (op.value.flags & kWaitModeMask) {
      case kWaitGeq:
        if (static_cast<int32_t>(now - value) >= 0) return;
        break;
      case kWaitEq:
        if (now == value) return;
        break;
      case kWaitAnd:
        if ((now & value) != 0) return;
        break;
      case kWaitNor:
        if (~(now | value) != 0) return;
        break;
      default: return;
    }
    if (st.stopping.load(std::memory_order_relaxed)) return;
    sched_yield();
  }
}

Shared<StreamHandle> add_stream(State& st, ContextHandle& context, bool blocking) {
  auto s = make_hidden<StreamHandle>();
  s->context = &context;
  s->blocking = blocking;
  if (const uint32_t queues = st.machine.limits.queues; queues != 0) s->hardware_queue = context.next_queue++ % queues;
  st.streams.emplace(s.get(), s);
  return s;
}

}  // namespace

Shared<StreamHandle> find_stream(State& st, Stream stream, Result& r) {
  if (stream == nullptr || stream == reinterpret_cast<Stream>(1)) {  // CU_STREAM_LEGACY
    ContextHandle* context = need_context(st, r);
    if (context == nullptr) return nullptr;
    if (context->legacy == nullptr) {
      context->legacy = make_hidden<StreamHandle>();
      context->legacy->context = context;
      context->legacy->legacy = true;
    }
    return context->legacy;
  }
  if (stream == reinterpret_cast<Stream>(2)) {  // CU_STREAM_PER_THREAD
    ContextHandle* context = need_context(st, r);
    if (context == nullptr) return nullptr;
    auto& own = context->of_threads[std::this_thread::get_id()];
    if (own == nullptr) {
      own = add_stream(st, *context, true);
      own->of_thread = true;
    }
    return own;
  }
  const auto it = st.streams.find(stream);
  r = it == st.streams.end() ? kErrorInvalidHandle : it->second->context->broken;
  return r == kSuccess ? it->second : nullptr;
}

Result submit(Stream stream, Op op, const std::function<void(StreamHandle&)>& locked) {
  State& st = state();
  auto shared = make_hidden<Op>(std::move(op));
  happens_before(shared.get());
  Section section(st.mutex);
  wait_for_lock(st, section);
  Result r;
  const Shared<StreamHandle> s = find_stream(st, stream, r);
  if (s == nullptr) return r;
  if (s->capture != nullptr) {
    if (s->capture->invalid) return kErrorStreamCaptureInvalidated;
    add_node(st, *s, std::move(*shared));
    if (locked) locked(*s);
    return kSuccess;
  }
  if (r = refuse_implicit(st, *s); r != kSuccess) return r;
  if (const uint32_t most = st.machine.limits.operations; most != 0)
    wait_until(st, section, "a submission, for room in its stream,", [&] { return s->queue.size() < most; });
  if (locked) locked(*s);
  order_with_legacy(st, s, *shared);
  if (const uint32_t queues = st.machine.limits.queues; queues != 0) {
    Shared<Op>& end = st.queue_ends[static_cast<size_t>(s->context->device) * queues + s->hardware_queue];
    shared->ahead = std::exchange(end, shared);
  }
  s->queue.push_back(std::move(shared));
  ++s->submitted;
  if (!s->started) {
    s->started = true;
    ++st.serving;
    st.threads.emplace_back([&st, s] {
      serve(st, s);
      Section section(st.mutex);
      --st.serving;
      st.changed.notify_all();
    });
  }
  s->work.notify_all();
  return kSuccess;
}

void synchronize(State& st, ContextHandle& context) {
  std::vector<Shared<StreamHandle>> all;
  {
    Section section(st.mutex);
    for (const auto& [handle, s] : st.streams)
      if (s->context == &context) all.push_back(s);
    if (context.legacy != nullptr) all.push_back(context.legacy);
  }
  for (const auto& s : all) wait_for_stream(st, *s);
}

Result fake_context_synchronize() {
  State& st = state();
  ContextHandle* context;
  {
    Section section(st.mutex);
    Result r;
    context = need_context(st, r);
    if (context == nullptr) return r;
    for (const auto& c : st.captures)
      if (c->origin->context == context) return invalidate(*c, kErrorStreamCaptureUnsupported);
    if (r = may_disturb(st); r != kSuccess) return r;
  }
  synchronize(st, *context);
  return context->broken;
}

Result fake_stream_create(Stream* stream, unsigned flags, int priority) {
  State& st = state();
  Section section(st.mutex);
  Result r;
  ContextHandle* context = need_context(st, r);
  if (context == nullptr) return r;
  if (stream == nullptr || (flags & ~kStreamNonBlocking) != 0) return kErrorInvalidValue;
  *stream = add_stream(st, *context, (flags & kStreamNonBlocking) == 0).get();
  return kSuccess;
}

// Returns at once. The stream's remaining operations run, and then its thread ends.
Result fake_stream_destroy(Stream stream) {
  State& st = state();
  Section section(st.mutex);
  const auto it = st.streams.find(stream);
  if (it == st.streams.end()) return kErrorInvalidHandle;
  if (it->second->capture != nullptr) invalidate(*it->second->capture, kErrorStreamCaptureInvalidated);
  it->second->destroyed = true;
  it->second->work.notify_all();
  st.streams.erase(it);
  return kSuccess;
}

Result fake_stream_synchronize(Stream stream) {
  State& st = state();
  Shared<StreamHandle> s;
  {
    Section section(st.mutex);
    Result r;
    s = find_stream(st, stream, r);
    if (s == nullptr) return r;
    if (r = may_wait_for(st, *s); r != kSuccess) return r;
  }
  wait_for_stream(st, *s);
  return s->context->broken;
}

Result fake_stream_query(Stream stream) {
  State& st = state();
  Shared<StreamHandle> s;
  {
    Section section(st.mutex);
    Result r;
    s = find_stream(st, stream, r);
    if (s == nullptr) return r;
    if (r = may_wait_for(st, *s); r != kSuccess) return r;
    if (s->completed < s->submitted) return kErrorNotReady;
  }
  happens_after(&s->done);
  return kSuccess;
}

Result fake_memcpy_async(DevicePtr dst, DevicePtr src, size_t bytes, Stream stream) {
  return copy(dst, src, bytes, stream);
}
Result fake_memcpy_host_to_device_async(DevicePtr dst, const void* src, size_t bytes, Stream stream) {
  return copy(dst, reinterpret_cast<uintptr_t>(src), bytes, stream);
}
Result fake_memcpy_device_to_host(void* dst, DevicePtr src, size_t bytes) {
  return copy_and_wait(reinterpret_cast<uintptr_t>(dst), src, bytes);
}

Result fake_memset_d8_async(DevicePtr dst, unsigned char value, size_t bytes, Stream stream) {
  State& st = state();
  {
    Section section(st.mutex);
    Result r;
    if (find_stream(st, stream, r) == nullptr) return r;
    if (bytes == 0) return kSuccess;
    if (find_memory(st, dst, bytes) == nullptr) return kErrorInvalidValue;
  }
  Op op;
  op.what = "a fill";
  op.run = [dst, value, bytes](const auto&) { set_bytes(dst, value, bytes); };
  return submit(stream, std::move(op));
}

Result fake_stream_batch_mem_op(Stream stream, unsigned count, BatchMemOp* ops, unsigned flags) {
  State& st = state();
  if (ops == nullptr || count == 0 || count > 256 || flags != 0) return kErrorInvalidValue;
  std::vector<BatchMemOp> all(ops, ops + count);
  {
    Section section(st.mutex);
    Result r;
    if (find_stream(st, stream, r) == nullptr) return r;
    for (const BatchMemOp& op : all) {
      if (op.operation != kMemOpWaitValue32 && op.operation != kMemOpWriteValue32) return kErrorInvalidValue;
      if (op.value.address % 4 != 0 || find_memory(st, op.value.address, 4) == nullptr) return kErrorInvalidValue;
    }
  }
  Op op;
  const bool waits =
      std::any_of(all.begin(), all.end(), [](const auto& m) { return m.operation == kMemOpWaitValue32; });
  op.what = waits ? "a wait for a value in memory" : "a write of a value to memory";
  op.run = [all = std::move(all)](const auto&) {
    State& st = state();
    for (const BatchMemOp& m : all) {
      if (st.stopping) return;
      if (m.operation == kMemOpWaitValue32) poll(st, m);
      else
        std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(m.value.address))
            .store(m.value.value, std::memory_order_release);
    }
  };
  return submit(stream, std::move(op));
}

Result fake_launch_host_function(Stream stream, void (*function)(void*), void* data) {
  if (function == nullptr) return kErrorInvalidValue;
  Op op;
  op.what = "a host function";
  op.run = [function, data](const auto&) {
    in_callback() = true;
    function(data);
    in_callback() = false;
  };
  return submit(stream, std::move(op));
}

}  // namespace rondo::testing::fake

// Events: record, wait and query, also in captures and graphs.
#include "support/fake_cuda/state.h"

namespace rondo::testing::fake {
namespace {

constexpr unsigned kEventBlockingSync = 1;

EventHandle* find_event(State& st, Event event) {
  const auto it = st.events.find(event);
  return it != st.events.end() ? it->second.get() : nullptr;
}

// Graph nodes that record or wait for an event at each launch of the graph. A launch fixes their records. Launches of a
// graph run in order, so the oldest is the next to run.
using Pending = std::deque<Shared<Record>>;

Op external_record(Event event) {
  auto pending = make_hidden<Pending>();
  Op op;
  op.what = "a graph's event";
  op.launched = [pending, event](State& st) {
    pending->push_back(make_hidden<Record>());
    if (EventHandle* e = find_event(st, event); e != nullptr) e->last = pending->back(), e->capture = nullptr;
  };
  op.run = [pending](const auto&) {
    Shared<Record> record;
    {
      Section section(state().mutex);
      record = pending->front();
      pending->pop_front();
    }
    finish(state(), *record);
  };
  return op;
}

Op external_wait(Event event) {
  auto pending = make_hidden<Pending>();
  Op op;
  op.what = "a graph's wait for an event";
  op.launched = [pending, event](State& st) {
    const EventHandle* e = find_event(st, event);
    pending->push_back(e != nullptr ? e->last : nullptr);
  };
  op.run = [pending](const auto&) {
    State& st = state();
    Shared<Record> record;
    {
      Section section(st.mutex);
      record = pending->front();
      pending->pop_front();
      if (record == nullptr) return;
      st.changed.wait(section.lock(), [&] { return st.stopping || record->done; });
    }
    happens_after(&record->token);
  };
  return op;
}

}  // namespace

void finish(State& st, Record& record) {
  happens_before(&record.token);
  Section section(st.mutex);
  record.at = std::chrono::steady_clock::now();
  record.done = true;
  st.changed.notify_all();
}

Result fake_event_record_with_flags(Event event, Stream stream, unsigned flags) {
  if (flags == 0) return fake_event_record(event, stream);
  if (flags != kEventRecordExternal) return kErrorInvalidValue;
  State& st = state();
  Section section(st.mutex);
  Result r;
  const auto s = find_stream(st, stream, r);
  if (s == nullptr) return r;
  if (find_event(st, event) == nullptr) return kErrorInvalidHandle;
  if (s->capture == nullptr) return kErrorInvalidValue;  // external events are graph nodes
  if (s->capture->invalid) return kErrorStreamCaptureInvalidated;
  add_node(st, *s, external_record(event));
  return kSuccess;
}

Result fake_stream_wait_event(Stream stream, Event event, unsigned flags) {
  State& st = state();
  Shared<Record> record;
  {
    Section section(st.mutex);
    Result r;
    const auto s = find_stream(st, stream, r);
    if (s == nullptr) return r;
    EventHandle* e = find_event(st, event);
    if (e == nullptr) return kErrorInvalidHandle;
    if ((flags & ~1u) != 0) return kErrorInvalidValue;
    if (s->capture != nullptr && s->capture->invalid) return kErrorStreamCaptureInvalidated;
    if (flags == kEventWaitExternal && s->capture != nullptr) {
      add_node(st, *s, external_wait(event));
      return kSuccess;
    }
    if (e->capture != nullptr) {  // the waiting stream joins the event's capture
      if (e->capture->invalid) return kErrorStreamCaptureInvalidated;
      if (s->legacy) return invalidate(*e->capture, kErrorCaptureImplicit);
      if (s->capture != nullptr && s->capture != e->capture) {
        invalidate(*s->capture, kErrorStreamCaptureMerge);
        return invalidate(*e->capture, kErrorStreamCaptureMerge);
      }
      s->capture = e->capture;
      e->capture->streams.insert(s.get());
      s->last.insert(e->nodes.begin(), e->nodes.end());
      return kSuccess;
    }
    if (e->last == nullptr) return kSuccess;
    if (s->capture != nullptr) return invalidate(*s->capture, kErrorStreamCaptureIsolation);
    record = e->last;
  }
  Op op;
  op.what = "a wait for an event";
  op.run = [record](const auto&) {
    State& st = state();
    {
      Section section(st.mutex);
      st.changed.wait(section.lock(), [&] { return st.stopping || record->done; });
    }
    happens_after(&record->token);
  };
  return submit(stream, std::move(op));
}

Result fake_event_create(Event* event, unsigned flags) {
  State& st = state();
  Section section(st.mutex);
  wait_for_lock(st, section);
  Result r;
  if (need_context(st, r) == nullptr) return r;
  if (event == nullptr || (flags & ~(kEventBlockingSync | kEventDisableTiming | kEventInterprocess)) != 0)
    return kErrorInvalidValue;
  auto e = std::make_unique<EventHandle>();
  e->flags = flags;
  *event = e.get();
  st.events.emplace(e.get(), std::move(e));
  return kSuccess;
}

Result fake_event_destroy(Event event) {
  State& st = state();
  Section section(st.mutex);
  return st.events.erase(event) == 1 ? kSuccess : kErrorInvalidHandle;
}

Result fake_event_record(Event event, Stream stream) {
  State& st = state();
  auto record = make_hidden<Record>();
  {
    Section section(st.mutex);
    Result r;
    const auto s = find_stream(st, stream, r);
    if (s == nullptr) return r;
    EventHandle* e = find_event(st, event);
    if (e == nullptr) return kErrorInvalidHandle;
    if (s->capture != nullptr) {
      if (s->capture->invalid) return kErrorStreamCaptureInvalidated;
      e->capture = s->capture;
      e->nodes = s->last;
      e->last = nullptr;
      return kSuccess;
    }
  }
  Op op;
  op.what = "an event";
  op.run = [record](const auto&) { finish(state(), *record); };
  return submit(stream, std::move(op), [&](StreamHandle&) {
    if (EventHandle* e = find_event(st, event); e != nullptr) e->last = record, e->capture = nullptr;
  });
}

namespace {

// An event's record, once `ready` is true (in a section).
template <class Ready>
Result look_at(Event event, const Ready& ready) {
  State& st = state();
  Shared<Record> record;
  {
    Section section(st.mutex);
    EventHandle* e = find_event(st, event);
    if (e == nullptr) return kErrorInvalidHandle;
    if (e->capture != nullptr) {
      invalidate(*e->capture, kErrorCapturedEvent);
      return kErrorCapturedEvent;
    }
    if (const Result r = may_disturb(st); r != kSuccess || e->last == nullptr) return r;
    record = e->last;
    if (const Result r = ready(st, section, *record); r != kSuccess) return r;
  }
  happens_after(&record->token);
  return kSuccess;
}

}  // namespace

Result fake_event_query(Event event) {
  return look_at(event, [](State&, Section&, const Record& record) { return record.done ? kSuccess : kErrorNotReady; });
}

Result fake_event_synchronize(Event event) {
  return look_at(event, [](State& st, Section& section, const Record& record) {
    wait_until(st, section, "the host, for an event,", [&] { return record.done; });
    return kSuccess;
  });
}

Result fake_event_elapsed_ms(float* ms, Event begin, Event end) {
  State& st = state();
  Section section(st.mutex);
  const EventHandle *a = find_event(st, begin), *b = find_event(st, end);
  if (a == nullptr || b == nullptr || ((a->flags | b->flags) & kEventDisableTiming) != 0) return kErrorInvalidHandle;
  if (a->last == nullptr || b->last == nullptr) return kErrorInvalidHandle;
  if (!a->last->done || !b->last->done) return kErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(b->last->at - a->last->at).count();
  return kSuccess;
}

}  // namespace rondo::testing::fake

// Stream capture and graphs.
#include <algorithm>

#include "support/fake_cuda/state.h"

namespace rondo::testing {
namespace fake {
namespace {

thread_local int capture_mode = kCaptureModeGlobal;

// A launch of a graph. Nodes form chains, each run by a thread. A node after the last one of a chain extends it.
struct Replay {
  enum Stage : char { kWaiting, kBegun, kDone };
  explicit Replay(const GraphHandle& graph) : graph(graph), stage(graph.nodes.size(), kWaiting) {}
  const GraphHandle& graph;
  std::vector<Stage> stage;  // under the fake's mutex
  std::vector<std::vector<size_t>> chains;

  void cut_into_chains() {
    std::vector<size_t> chain_of(graph.nodes.size());
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      size_t chain = chains.size();
      for (const Dependency& d : graph.nodes[n].after)
        if (!d.begun && chains[chain_of[d.node]].back() == d.node) chain = chain_of[d.node];
      if (chain == chains.size()) chains.emplace_back();
      chains[chain].push_back(n);
      chain_of[n] = chain;
    }
  }

  // Tokens for the sanitizer: the node's address for its end, its entry in `stage` for its beginning.
  const void* token(size_t node, bool begun) const {
    return begun ? static_cast<const void*>(&stage[node]) : static_cast<const void*>(&graph.nodes[node]);
  }
  void reached(State& st, size_t node, Stage at) {
    happens_before(token(node, at == kBegun));
    Section section(st.mutex);
    stage[node] = at;
    st.changed.notify_all();
  }
  void run_chain(State& st, const std::vector<size_t>& chain) {
    for (const size_t n : chain) {
      const GraphHandle::Node& node = graph.nodes[n];
      {
        Section section(st.mutex);
        for (const Dependency& d : node.after)
          st.changed.wait(section.lock(), [&] { return st.stopping || stage[d.node] >= (d.begun ? kBegun : kDone); });
        if (st.stopping) return;
      }
      for (const Dependency& d : node.after) happens_after(token(d.node, d.begun));
      node.op.run([&] { reached(st, n, kBegun); });
      reached(st, n, kDone);
    }
  }
  void run(State& st) {
    cut_into_chains();
    std::vector<std::thread> threads;
    for (size_t c = 1; c < chains.size(); ++c) threads.emplace_back([&, c] { run_chain(st, chains[c]); });
    if (!chains.empty()) run_chain(st, chains[0]);
    for (std::thread& t : threads) t.join();
  }
};

// In a section. Streams of a capture return to their previous state.
void leave(State& st, const Shared<Capture>& capture) {
  for (const auto& [handle, s] : st.streams)
    if (s->capture == capture) {
      s->capture = nullptr;
      s->last.clear();
      s->last_nodes.clear();
    }
  st.captures.erase(std::remove(st.captures.begin(), st.captures.end(), capture), st.captures.end());
}

// True if every node is in `last` or before one of its nodes.
bool all_joined(const GraphHandle& graph, const std::set<Dependency>& last) {
  std::vector<bool> reached(graph.nodes.size(), false);
  for (const Dependency& d : last) reached[d.node] = reached[d.node] || !d.begun;
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    if (!reached[n]) return false;
    for (const Dependency& d : graph.nodes[n].after)
      if (!d.begun) reached[d.node] = true;
  }
  return true;
}

}  // namespace

Result invalidate(Capture& capture, Result why) {
  capture.invalid = true;
  return why;
}

Result may_disturb(State& st) {
  if (capture_mode == kCaptureModeRelaxed) return kSuccess;
  for (const auto& c : st.captures) {
    const bool own = c->thread == std::this_thread::get_id();
    const bool forbids =
        own ? c->mode != kCaptureModeRelaxed : c->mode == kCaptureModeGlobal && capture_mode == kCaptureModeGlobal;
    if (forbids) return invalidate(*c, kErrorStreamCaptureUnsupported);
  }
  return kSuccess;
}

void add_node(State& st, StreamHandle& stream, Op op) {
  GraphHandle& graph = *stream.capture->graph;
  graph.nodes.push_back({std::move(op), std::move(stream.last)});
  stream.last = {{graph.nodes.size() - 1, false}};
}

Result fake_stream_capture_info(Stream stream, int* status, uint64_t* id, Graph* graph, const void*** dependencies,
                                size_t* num_dependencies) {
  State& st = state();
  Section section(st.mutex);
  Result r;
  const auto s = find_stream(st, stream, r);
  if (s == nullptr) return r;
  if (s->legacy)
    for (const auto& c : st.captures)
      if (c->origin->blocking && c->origin->context == s->context) return 906;  // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
  const Capture* c = s->capture.get();
  *status = c == nullptr ? kCaptureNone : c->invalid ? kCaptureInvalidated : kCaptureActive;
  if (*status != kCaptureActive) return kSuccess;
  s->last_nodes.clear();
  for (const Dependency& d : s->last) s->last_nodes.push_back(&c->graph->nodes[d.node]);
  if (id != nullptr) *id = c->id;
  if (graph != nullptr) *graph = c->graph;
  if (dependencies != nullptr) *dependencies = s->last_nodes.data();
  if (num_dependencies != nullptr) *num_dependencies = s->last_nodes.size();
  return kSuccess;
}

Result fake_thread_exchange_capture_mode(int* mode) {
  if (mode == nullptr || *mode < kCaptureModeGlobal || *mode > kCaptureModeRelaxed) return kErrorInvalidValue;
  std::swap(*mode, capture_mode);
  return kSuccess;
}

}  // namespace fake

using namespace fake;  // NOLINT: what follows are FakeCuda's members

cuda::Result FakeCuda::begin_capture(cuda::Stream stream, int mode) {
  State& st = state();
  Section section(st.mutex);
  Result r;
  const auto s = find_stream(st, stream, r);
  if (s == nullptr) return r;
  if (s->legacy) return kErrorStreamCaptureUnsupported;
  if (s->capture != nullptr) return kErrorInvalidValue;
  auto graph = std::make_unique<GraphHandle>();
  auto c = make_hidden<Capture>();
  c->id = st.next_id++;
  c->mode = mode;
  c->thread = std::this_thread::get_id();
  c->origin = s.get();
  c->graph = graph.get();
  c->streams.insert(s.get());
  st.graphs.emplace(graph.get(), std::move(graph));
  s->capture = c;
  s->last.clear();
  st.captures.push_back(std::move(c));
  return kSuccess;
}

cuda::Result FakeCuda::end_capture(cuda::Stream stream, cuda::Graph* graph) {
  State& st = state();
  Result r = kSuccess;
  {
    Section section(st.mutex);
    *graph = nullptr;
    const auto s = find_stream(st, stream, r);
    if (s == nullptr) return r;
    const Shared<Capture> c = s->capture;
    if (c == nullptr) return kErrorInvalidValue;
    if (c->mode != kCaptureModeRelaxed && c->thread != std::this_thread::get_id())
      return kErrorStreamCaptureWrongThread;
    if (c->origin != s.get()) r = invalidate(*c, kErrorStreamCaptureUnmatched);
    else if (c->invalid) r = kErrorStreamCaptureInvalidated;
    else if (!all_joined(*c->graph, s->last)) r = kErrorStreamCaptureUnjoined;
    leave(st, c);
    if (r == kSuccess) *graph = c->graph;
    else st.graphs.erase(c->graph);
  }
  return r;
}

cuda::Result FakeCuda::launch_graph(cuda::Graph graph, cuda::Stream stream) {
  State& st = state();
  Op op;
  op.what = "a graph";
  op.run = [graph](const auto&) {
    State& running = state();
    Replay(*graph).run(running);
  };
  {
    Section section(st.mutex);
    if (st.graphs.count(graph) == 0) return kErrorInvalidHandle;
    Result r;
    const auto s = find_stream(st, stream, r);
    if (s == nullptr) return r;
    if (s->capture != nullptr) return invalidate(*s->capture, kErrorNotSupported);  // nested graphs are not supported
    // Launches of a graph run one after the other, whatever their streams.
    for (const GraphHandle::Node& node : graph->nodes)
      if (node.op.launched) node.op.launched(st);
    if (graph->last_stream != nullptr) op.after.emplace_back(graph->last_stream, graph->last_submitted);
  }
  return submit(stream, std::move(op), [&](StreamHandle& s) {
    Result ignored;
    graph->last_stream = find_stream(st, stream, ignored);
    graph->last_submitted = s.submitted + 1;
  });
}

cuda::Result FakeCuda::destroy_graph(cuda::Graph graph) {
  State& st = state();
  {
    Section section(st.mutex);
    if (st.graphs.count(graph) == 0) return kErrorInvalidHandle;
    if (const auto& s = graph->last_stream; s != nullptr)
      wait_until(st, section, "the host, for a graph's last launch,",
                 [&] { return s->completed >= graph->last_submitted; });
    st.graphs.erase(graph);
  }
  return kSuccess;
}

size_t FakeCuda::num_nodes(cuda::Graph graph) const {
  State& st = state();
  Section section(st.mutex);
  return st.graphs.count(graph) != 0 ? graph->nodes.size() : 0;
}

}  // namespace rondo::testing

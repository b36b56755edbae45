#include "gloo_calls.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>
#include <exception>
#include <memory>

namespace {

std::shared_ptr<gloo::rendezvous::Context> context;

template <class F>
int guarded(F call) {
  try {
    call();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gloo: %s\n", e.what());
    return -1;
  }
}

float* own_block(float* buffer, uint64_t count_elems) {
  return buffer + static_cast<uint64_t>(context->rank) * (count_elems / static_cast<uint64_t>(context->size));
}

void (*const kSum)(void*, const void*, const void*, size_t) = &gloo::sum<float>;

}  // namespace

int gloo_join(const char* folder, int rank, int nranks) {
  return guarded([&] {
    gloo::rendezvous::FileStore store(folder);
    auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1"));
    context = std::make_shared<gloo::rendezvous::Context>(rank, nranks);
    context->connectFullMesh(store, device);
  });
}
void gloo_leave() { context.reset(); }

int gloo_all_reduce(float* buffer, float* second, uint64_t count_elems) {
  return guarded([&] {
    gloo::AllreduceOptions options(context);
    if (second != nullptr) options.setInput(buffer, count_elems);
    options.setOutput(second != nullptr ? second : buffer, count_elems);
    options.setReduceFunction(kSum);
    gloo::allreduce(options);
  });
}
int gloo_all_gather(float* buffer, float* second, uint64_t count_elems) {
  return guarded([&] {
    gloo::AllgatherOptions options(context);
    if (second != nullptr)
      options.setInput(own_block(buffer, count_elems), count_elems / static_cast<uint64_t>(context->size));
    options.setOutput(second != nullptr ? second : buffer, count_elems);
    gloo::allgather(options);
  });
}
int gloo_broadcast(float* buffer, float*, uint64_t count_elems) {
  return guarded([&] {
    gloo::BroadcastOptions options(context);
    options.setOutput(buffer, count_elems);
    options.setRoot(0);
    gloo::broadcast(options);
  });
}
int gloo_reduce(float* buffer, float* second, uint64_t count_elems) {
  static std::unique_ptr<float[]> scratch;  // Gloo writes partial sums into every rank's output
  static uint64_t scratch_elems = 0;
  return guarded([&] {
    const bool keeps = context->rank != 0 && second == nullptr;
    if (keeps && scratch_elems < count_elems) scratch.reset(new float[scratch_elems = count_elems]);
    float* const result = second != nullptr ? second : keeps ? scratch.get() : buffer;
    gloo::ReduceOptions options(context);
    if (result != buffer) options.setInput(buffer, count_elems);
    options.setOutput(result, count_elems);
    options.setRoot(0);
    options.setReduceFunction(kSum);
    gloo::reduce(options);
  });
}
int gloo_all_to_all(float* buffer, float* second, uint64_t count_elems) {
  return guarded([&] {
    gloo::AlltoallOptions options(context);
    options.setInput(buffer, count_elems);
    options.setOutput(second, count_elems);
    gloo::alltoall(options);
  });
}
int gloo_barrier(float*, float*, uint64_t) {
  return guarded([&] {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  });
}

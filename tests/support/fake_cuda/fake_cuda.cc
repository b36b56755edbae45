#include "support/fake_cuda/fake_cuda.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "support/fake_cuda/state.h"

namespace rondo::testing {
namespace fake {
namespace {

State* the_state = nullptr;

enum Index : int {
#define RONDO_X(member, symbol, args) kIndex_##member,
  RONDO_CUDA_DRIVER(RONDO_X)
#undef RONDO_X
};
constexpr const char* kSymbols[] = {
#define RONDO_X(member, symbol, args) #symbol,
    RONDO_CUDA_DRIVER(RONDO_X)
#undef RONDO_X
};

constexpr Result kErrorNotPermitted = 800;

// Runs before every call: counts it and returns the error that it must fail with.
Result before(int index) {
  State& st = state();
  const bool harmless = index == kIndex_error_name || index == kIndex_error_string || index == kIndex_driver_version;
  if (!st.used) st.pid = getpid();  // made before a fork, used after it
  else if (getpid() != st.pid) return kErrorNotInitialized;
  st.used = true;
  Section section(st.mutex);
  const uint64_t call = ++st.num_calls[kSymbols[index]];
  if (harmless) return kSuccess;
  if (in_callback()) return kErrorNotPermitted;
  if (const auto it = st.failures.find(kSymbols[index]); it != st.failures.end() && it->second.first == call) {
    const Result error = it->second.second;
    st.failures.erase(it);
    return error;
  }
  return kSuccess;
}

template <int kIndex, auto kFunction>
struct Entry;
template <int kIndex, class... A, Result (*kFunction)(A...)>
struct Entry<kIndex, kFunction> {
  static Result call(A... a) {
    const Result r = before(kIndex);
    return r == kSuccess ? kFunction(a...) : r;
  }
};

uint64_t next_serial() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

void print(const char* kind, const cuda::StreamHandle& s) {
  if (s.queue.empty()) return;
  const Op& first = *s.queue.front();
  const bool stands = first.ahead != nullptr && !first.ahead->has_begun;
  const std::string ahead = stands ? fmt::format(" (behind {} of another stream)", first.ahead->what) : "";
  std::fprintf(stderr, "  %s %p of device %d, hardware queue %u: %s%s, %zu operations after it\n", kind,
               static_cast<const void*>(&s), s.context->device, s.hardware_queue, first.what, ahead.c_str(),
               s.queue.size() - 1);
}

// Prints the operations of every stream, for a thread that has waited too long.
void print_streams(State& st) {
  for (const auto& [handle, s] : st.streams) print("stream", *s);
  for (const auto& c : st.contexts)
    if (c->legacy) print("legacy stream", *c->legacy);
  for (size_t d = 0; d < st.blocks_resident.size(); ++d)
    std::fprintf(stderr, "  device %zu: %u blocks resident\n", d, st.blocks_resident[d]);
}

}  // namespace

State& state() {
  RONDO_CHECK(the_state != nullptr);
  return *the_state;
}

bool& in_callback() {
  thread_local bool inside = false;
  return inside;
}

void wait_until(State& st, Section& section, const char* what, const std::function<bool()>& ready) {
  const auto limit = std::chrono::duration<double>(st.machine.deadline_s);
  if (st.changed.wait_for(section.lock(), limit, ready)) return;
  std::fprintf(stderr, "fake CUDA: %s has waited for %g s\n", what, st.machine.deadline_s);
  print_streams(st);
  std::abort();
}

void wait_for_lock(State& st, Section& section) {
  wait_until(st, section, "a call, for the driver's lock,", [&] { return st.lock_holders == 0; });
}

State::State(FakeMachine m) : machine(std::move(m)), serial(next_serial()), pid(getpid()) {
  // Addresses of device memory; pages come later, from memfds.
  constexpr size_t kRegionBytes = size_t{64} << 30;
  void* at = mmap(nullptr, kRegionBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  RONDO_CHECK(at != MAP_FAILED);
  region = reinterpret_cast<uintptr_t>(at);
  region_end = region + kRegionBytes;
  constexpr uintptr_t kAlign = uintptr_t{2} << 20;
  region_next = (region + kAlign - 1) / kAlign * kAlign;
  queue_ends.resize(machine.devices.size() * machine.limits.queues);
  for (size_t d = 0; d < machine.devices.size(); ++d) {
    contexts.push_back(std::make_unique<ContextHandle>());
    contexts.back()->device = static_cast<int>(d);
  }
  open_block.assign(machine.devices.size(), nullptr);
  memory_used.assign(machine.devices.size(), 0);
  blocks_resident.assign(machine.devices.size(), 0);
}

State::~State() {
  {
    Section section(mutex);
    stopping = true;
    changed.notify_all();
    for (const auto& [handle, s] : streams) s->work.notify_all();
    for (const auto& c : contexts)
      if (c->legacy) c->legacy->work.notify_all();
    if (getpid() == pid) wait_until(*this, section, "the end, for kernels that run,", [&] { return serving == 0; });
  }
  if (getpid() == pid)
    for (std::thread& t : threads) t.join();
  else
    for (std::thread& t : threads) t.detach();  // they do not exist after the fork
  release_memory(*this);
}

}  // namespace fake

FakeLimits FakeLimits::from_env() {
  FakeLimits limits;
  const char* const value = std::getenv("FAKE_CUDA");
  std::istringstream words(value != nullptr ? value : "");
  for (std::string word; std::getline(words, word, ',');) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const uint32_t number = equals < word.size() ? static_cast<uint32_t>(std::stoul(word.substr(equals + 1))) : 1;
    if (name == "queues") limits.queues = number;
    else if (name == "operations") limits.operations = number;
    else if (name == "late") limits.late = number != 0;
    else if (name == "delay_us") limits.delay_us = number;
    else RONDO_CHECK(false);
  }
  return limits;
}

FakeMachine FakeMachine::uniform(int num_devices) {
  FakeMachine m;
  for (int d = 0; d < num_devices; ++d) {
    FakeDevice device;
    device.pci_bus = static_cast<uint32_t>(d + 1);
    m.devices.push_back(device);
  }
  return m;
}

FakeCuda::FakeCuda(FakeMachine machine) {
  RONDO_CHECK(fake::the_state == nullptr);
  for (size_t d = 0; d < machine.devices.size(); ++d) {
    cuda::Uuid& uuid = machine.devices[d].uuid;
    bool zero = true;
    for (const uint8_t b : uuid.bytes) zero = zero && b == 0;
    if (zero)
      for (size_t i = 0; i < sizeof uuid.bytes; ++i) uuid.bytes[i] = static_cast<uint8_t>(0xF0 + d * 17 + i);
  }
  fake::the_state = new fake::State(std::move(machine));
#define RONDO_X(member, symbol, args) table_.member = &fake::Entry<fake::kIndex_##member, &fake::fake_##member>::call;
  RONDO_CUDA_DRIVER(RONDO_X)
#undef RONDO_X
  cuda::set_driver(&table_);
  const uint32_t queues = fake::the_state->machine.limits.queues;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(queues != 0 ? queues : 32).c_str(), 1);
}

FakeCuda::~FakeCuda() {
  cuda::set_driver(nullptr);
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  delete fake::the_state;
  fake::the_state = nullptr;
}

void FakeCuda::add_kernel(std::string name, FakeKernel kernel) {
  fake::State& st = fake::state();
  fake::Section section(st.mutex);
  st.kernels[std::move(name)] = kernel;
}

void FakeCuda::find_kernels_with(std::function<std::optional<FakeKernel>(std::string_view)> find) {
  fake::State& st = fake::state();
  fake::Section section(st.mutex);
  st.find_kernel = std::move(find);
}

void FakeCuda::fail(std::string_view symbol, cuda::Result error, uint64_t nth) {
  bool known = false;
  for (const char* s : fake::kSymbols) known = known || symbol == s;
  RONDO_CHECK(known && nth >= 1);
  fake::State& st = fake::state();
  fake::Section section(st.mutex);
  st.failures[std::string(symbol)] = {st.num_calls[std::string(symbol)] + nth, error};
}

void FakeCuda::break_device(int ordinal, cuda::Result error) {
  fake::State& st = fake::state();
  fake::Section section(st.mutex);
  st.contexts.at(static_cast<size_t>(ordinal))->broken = error;
}

uint64_t FakeCuda::calls(std::string_view symbol) const {
  fake::State& st = fake::state();
  fake::Section section(st.mutex);
  const auto it = st.num_calls.find(symbol);
  return it == st.num_calls.end() ? 0 : it->second;
}

std::string FakeCuda::leaks() const {
  fake::State& st = fake::state();
  fake::Section section(st.mutex);
  std::string text = st.damage;
  for (const auto& [base, a] : st.memory) {
    constexpr const char* kKinds[] = {"device memory", "pinned host memory", "registered host memory", "mapping"};
    text += fmt::format("{} of {} bytes at {:#x}, device {}\n", kKinds[static_cast<int>(a.kind)], a.bytes, a.base,
                        a.device);
  }
  size_t streams = 0;
  for (const auto& [handle, s] : st.streams) streams += s->of_thread ? 0 : 1;
  if (streams != 0) text += fmt::format("{} streams\n", streams);
  if (!st.events.empty()) text += fmt::format("{} events\n", st.events.size());
  if (!st.modules.empty()) text += fmt::format("{} modules\n", st.modules.size());
  if (!st.graphs.empty()) text += fmt::format("{} graphs\n", st.graphs.size());
  for (const auto& c : st.contexts)
    if (c->retained != 0) text += fmt::format("context of device {} retained {} times\n", c->device, c->retained);
  return text;
}

}  // namespace rondo::testing

// Memory of an export, a save and a load in addition to the engine's, counted by this program's operator new.
// labels: unit
// separate
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "fsdp/checkpoint_support.h"

namespace {

std::atomic<int64_t> in_use{0}, most{0};

void* take(std::size_t size) noexcept {
  void* p = std::malloc(size == 0 ? 1 : size);
  if (p == nullptr) return nullptr;
  const int64_t now = in_use += static_cast<int64_t>(malloc_usable_size(p));
  int64_t seen = most;
  while (now > seen && !most.compare_exchange_weak(seen, now)) {
  }
  return p;
}
void give(void* p) noexcept {
  if (p != nullptr) in_use -= static_cast<int64_t>(malloc_usable_size(p));
  std::free(p);
}

}  // namespace

void* operator new(std::size_t size) {
  void* p = take(size);
  if (p == nullptr) std::abort();
  return p;
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return take(size); }
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return take(size); }
void operator delete(void* p) noexcept { give(p); }
void operator delete(void* p, std::size_t) noexcept { give(p); }
void operator delete[](void* p) noexcept { give(p); }
void operator delete[](void* p, std::size_t) noexcept { give(p); }

namespace rondo::fsdp::testing {
namespace {

constexpr uint64_t kUnitBytes = 4 << 20;
constexpr int64_t kRest = 1 << 20;  // headers, names, the communicator's memory for a message

// Maximum of allocated bytes, minus those in use before.
template <class Fn>
int64_t peak_of(Engine& engine, Fn fn) {
  EXPECT_TRUE(engine.communicator().barrier().ok());
  const int64_t before = in_use;
  EXPECT_TRUE(engine.communicator().barrier().ok());
  most = before;
  EXPECT_TRUE(engine.communicator().barrier().ok());
  const Status s = fn();
  EXPECT_TRUE(s.ok()) << s.to_string();
  EXPECT_TRUE(engine.communicator().barrier().ok());
  return most - before;
}

TEST(CheckpointMemory, AFullExportTakesOneUnitAndASaveNone) {
  const TempFolder folder;
  Model model;
  for (int u = 0; u < 6; ++u) model.units.push_back({"unit" + std::to_string(u), {{"w", {1024, 1024}}}});
  spawn(World::kThreads, 2, [&](Communicator& comm) {
    const auto plan = Plan::build(model, {.nranks = 2});
    ASSERT_TRUE(plan.ok());
    auto made = Engine::create(*plan, comm, {});
    ASSERT_TRUE(made.ok());
    Engine& engine = **made;
    ASSERT_TRUE(export_full(engine, [](auto&&...) { return Status(); }).ok());  // makes connections
    uint64_t whole = 0;
    const int64_t exported = peak_of(engine, [&] {
      return export_full(engine, [&](const std::string&, const Tensor&, const void*, uint64_t size_bytes) {
        whole += size_bytes;
        return Status();
      });
    });
    EXPECT_EQ(whole, comm.rank() == 0 ? 6 * kUnitBytes : 0);
    EXPECT_GE(exported, static_cast<int64_t>(kUnitBytes));
    EXPECT_LE(exported, static_cast<int64_t>(kUnitBytes) + kRest);
    EXPECT_LE(peak_of(engine, [&] { return save(engine, folder / "c"); }), kRest);
    // Both ranks have a buffer for checksums.
    EXPECT_LE(peak_of(engine, [&] { return load(engine, folder / "c").status(); }), 3 * kRest);
  });
}

}  // namespace
}  // namespace rondo::fsdp::testing

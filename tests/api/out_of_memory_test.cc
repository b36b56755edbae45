// Without memory the process ends inside the library. No exception crosses the C ABI, because its callers could not go
// on without cleanup. Replaces operator new, as sanitizers do, so it does not run with them.
// labels: mp
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "bootstrap/bootstrap_harness.h"
#include "rondo/rondo.h"

namespace {

std::atomic<bool> none_left = false;

}  // namespace

#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // they match after inlining
void* operator new(size_t bytes) {
  void* p = none_left ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace rondo {
namespace {

// How a process ends that makes the call without memory.
template <class Call>
std::string ends(const Call& call) {
  return testing::Child([&]() -> std::string {
           none_left = true;
           try {
             call();
           } catch (const std::bad_alloc&) {
             none_left = false;
             return "an exception has left the library";
           }
           none_left = false;
           return "nothing was allocated";
         })
      .join();
}

TEST(OutOfMemory, NoExceptionLeavesACFunction) {
  rondo_comm* comm = nullptr;
  EXPECT_EQ(ends([&] { rondo_comm_init_all(&comm, 1, nullptr); }), "killed by signal 6");
  rondo_unique_id id;
  EXPECT_EQ(ends([&] { rondo_get_unique_id(&id); }), "killed by signal 6");
  EXPECT_EQ(ends([&] { rondo_comm_init_rank(&comm, 1 << 28, &id, 0, nullptr); }), "killed by signal 6");
  ASSERT_EQ(rondo_comm_init_all(&comm, 1, nullptr), RONDO_OK);
  EXPECT_EQ(ends([&] { rondo_comm_split(comm, 0, 0, &comm, nullptr); }), "killed by signal 6");
  EXPECT_EQ(rondo_comm_destroy(comm), RONDO_OK);
}

}  // namespace
}  // namespace rondo

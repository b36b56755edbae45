#include "nccl/comm_hash.h"

#include <atomic>
#include <cstring>
#include <string_view>

#include "bootstrap/unique_id.h"

namespace rondo::nccl {

UniqueId rondo_id(const ncclUniqueId& id) {
  UniqueId own;
  static_assert(sizeof own.bytes == sizeof id.internal);
  std::memcpy(own.bytes, id.internal, sizeof own.bytes);
  return own;
}

uint64_t hash_of_id(const ncclUniqueId& id) { return fnv1a({id.internal, sizeof id.internal}); }

uint64_t hash_of_child(uint64_t parent, uint64_t nth, int colour) {
  const uint64_t parts[] = {parent, nth, static_cast<uint64_t>(colour)};
  return fnv1a({reinterpret_cast<const char*>(parts), sizeof parts});
}

uint64_t new_hash() {
  static std::atomic<uint64_t> count{0};
  const uint64_t parts[] = {count.fetch_add(1), reinterpret_cast<uintptr_t>(&count)};
  return fnv1a({reinterpret_cast<const char*>(parts), sizeof parts});
}

}  // namespace rondo::nccl

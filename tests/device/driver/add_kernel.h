// A kernel of the fake driver that adds to an int.
#pragma once

#include <cstdint>

namespace rondo::testing {

struct AddArgs {
  int* value;
  int by;
};

inline void add(const void* args, uint32_t, uint32_t) {
  const auto* a = static_cast<const AddArgs*>(args);
  *a->value += a->by;
}

}  // namespace rondo::testing

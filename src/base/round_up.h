#pragma once

#include <cstdint>

namespace rondo {

/// The next multiple of `to` that is not below n.
constexpr uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

}  // namespace rondo

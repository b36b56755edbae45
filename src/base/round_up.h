#pragma once

#include <cstdint>

namespace rondo {

/// The smallest multiple of `to` that is at least n.
constexpr uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

}  // namespace rondo

// Makes a Status with a formatted text. For a fixed text, use Status's constructor. This header includes fmt for its
// users.
//
// Thread safety: pure functions.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "rondo/status.h"

namespace rondo {

template <class... Args>
Status make_error(StatusCode code, fmt::format_string<Args...> text, Args&&... args) {
  return Status(code, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
Status invalid_argument(fmt::format_string<Args...> text, Args&&... args) {
  return make_error(StatusCode::kInvalidArgument, text, std::forward<Args>(args)...);
}
template <class... Args>
Status unsupported(fmt::format_string<Args...> text, Args&&... args) {
  return make_error(StatusCode::kUnsupported, text, std::forward<Args>(args)...);
}

}  // namespace rondo

// nlohmann-json for a library without exceptions: in a namespace of its own, so that a program which has the same
// functions with exceptions is not given ours by the linker. Nothing here may throw: parse with allow_exceptions =
// false, and look at a value's type before it is taken.
#pragma once

#define NLOHMANN_JSON_NAMESPACE nlohmann::rondo_without_exceptions
#define NLOHMANN_JSON_NAMESPACE_BEGIN \
  namespace nlohmann {                \
  inline namespace rondo_without_exceptions {
#define NLOHMANN_JSON_NAMESPACE_END \
  }                                 \
  }
#include <nlohmann/json.hpp>
#include <string>

namespace rondo::fsdp {

using Json = nlohmann::json;

inline std::string text_of(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}
/// JSON can say only what is UTF-8.
inline bool is_utf8(const std::string& text) {
  return text_of(text) == Json(text).dump(-1, ' ', false, Json::error_handler_t::ignore);
}

}  // namespace rondo::fsdp

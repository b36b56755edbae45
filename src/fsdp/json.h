// nlohmann-json for a library without exceptions: in a namespace of its own, so that a program which has the same
// functions with exceptions is not given ours by the linker. Nothing here may throw: parse with parse_json, and look
// at a value's type before it is taken.
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
#include <string_view>

namespace rondo::fsdp {

using Json = nlohmann::json;

/// What copies, writes or destroys a value may go down one call for each level: foreign bytes must not choose how many.
constexpr int kMostDepth = 64;

/// Whether brackets outside of strings are nested deeper. O(bytes), whether it is JSON or not.
inline bool is_deeper(std::string_view text, int most) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      else if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > most) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

/// Discarded (is_discarded()) unless it is JSON, nested no deeper than `most`.
inline Json parse_json(std::string_view text, int most = kMostDepth) {
  if (is_deeper(text, most)) return Json(Json::value_t::discarded);
  return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

inline std::string text_of(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}
/// JSON can say only what is UTF-8.
inline bool is_utf8(const std::string& text) {
  return text_of(text) == Json(text).dump(-1, ' ', false, Json::error_handler_t::ignore);
}

}  // namespace rondo::fsdp

// nlohmann-json without exceptions. It has its own namespace, so that the linker does not merge it with the program's
// own copy, which may use exceptions. Nothing here may throw: parse with parse_json, and check a value's type before
// you read it.
#pragma once

#define NLOHMANN_JSON_NAMESPACE nlohmann::rondo_without_exceptions
#define NLOHMANN_JSON_NAMESPACE_BEGIN \
  namespace nlohmann {                \
  inline namespace rondo_without_exceptions {
#define NLOHMANN_JSON_NAMESPACE_END \
  }                                 \
  }
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rondo::fsdp {

using Json = nlohmann::json;

/// Copying, writing or destroying a value may recurse at each level. This limit bounds that for foreign input.
constexpr int kMostDepth = 64;

/// True if brackets outside of strings are nested deeper than `most`. O(bytes). The text need not be JSON.
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

/// Returns a discarded value (is_discarded()) if the text is not JSON or is nested deeper than `most`.
inline Json parse_json(std::string_view text, int most = kMostDepth) {
  if (is_deeper(text, most)) return Json(Json::value_t::discarded);
  return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

/// The numbers of a list of whole numbers; nullopt for anything else.
inline std::optional<std::vector<uint64_t>> whole_numbers(const Json& json) {
  if (!json.is_array()) return std::nullopt;
  std::vector<uint64_t> numbers;
  for (const Json& n : json) {
    if (!n.is_number_unsigned()) return std::nullopt;
    numbers.push_back(n.get<uint64_t>());
  }
  return numbers;
}
/// The member of an object; null if it is absent.
inline const Json& member_of(const Json& object, const char* key) {
  static const Json none;
  const auto it = object.find(key);
  return it != object.end() ? *it : none;
}

inline std::string text_of(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}
/// True if JSON can represent the text.
inline bool is_utf8(const std::string& text) {
  return text_of(text) == Json(text).dump(-1, ' ', false, Json::error_handler_t::ignore);
}

}  // namespace rondo::fsdp

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
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace rondo::fsdp {

using Json = nlohmann::json;

/// Copying, writing or destroying a value may recurse at each level. This limit bounds that for foreign input.
constexpr int kMostDepth = 64;

/// Checks a text before it becomes a value: its depth, and repeated keys of the outermost object. JSON keeps one of two
/// equal keys, which would hide a tensor. (A parser callback would be quadratic: with one, the parser looks through
/// the whole object again after each member.)
struct JsonScan final : Json::json_sax_t {
  explicit JsonScan(int most_depth) : most(most_depth) {}
  bool start_object(size_t) override { return ++depth <= most; }
  bool end_object() override { return --depth >= 0; }
  bool start_array(size_t) override { return ++depth <= most; }
  bool end_array() override { return --depth >= 0; }
  bool key(std::string& name) override {
    if (depth == 1 && !seen.insert(name).second) twice = name;
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(Json::number_integer_t) override { return true; }
  bool number_unsigned(Json::number_unsigned_t) override { return true; }
  bool number_float(Json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  const int most;
  int depth = 0;
  std::set<std::string> seen;
  std::string twice;
};

/// Returns a discarded value (is_discarded()) if the text is not JSON or is nested deeper than `most`. Sets `twice` to
/// a repeated key of the outermost object, if there is one.
inline Json parse_json(std::string_view text, int most = kMostDepth, std::string* twice = nullptr) {
  JsonScan scan(most);
  if (!Json::sax_parse(text.begin(), text.end(), &scan)) return Json(Json::value_t::discarded);
  if (twice != nullptr) *twice = scan.twice;
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

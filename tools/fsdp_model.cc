#include "fsdp_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace rondo::tools {
namespace {

using Json = nlohmann::json;

Status wrong(const std::string& place, std::string_view expected) {
  return Status(StatusCode::kInvalidArgument, fmt::format("{}: expected {}", place, expected));
}

// Refuses unknown keys. A misspelt key would silently leave a default.
Status check_keys(const Json& object, const std::string& place, std::initializer_list<std::string_view> known) {
  if (!object.is_object()) return wrong(place.empty() ? "the file" : place, "an object");
  for (const auto& [key, value] : object.items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      return wrong(place.empty() ? key : place + "." + key, fmt::format("one of: {}", fmt::join(known, ", ")));
  return {};
}

Status read(const Json& object, const char* key, const std::string& place, bool needed, std::string* to) {
  const auto it = object.find(key);
  if (it == object.end() && !needed) return {};
  if (it == object.end() || !it->is_string()) return wrong(fmt::format("{}.{}", place, key), "a string");
  *to = it->get<std::string>();
  return {};
}

Status read(const Json& object, const char* key, const std::string& place, bool* to) {
  const auto it = object.find(key);
  if (it == object.end()) return {};
  if (!it->is_boolean()) return wrong(fmt::format("{}.{}", place, key), "true or false");
  *to = it->get<bool>();
  return {};
}

Status read(const Json& object, const char* key, const std::string& place, uint64_t least, uint64_t* to) {
  const auto it = object.find(key);
  if (it == object.end()) return {};
  if (!it->is_number_unsigned() || it->get<uint64_t>() < least)
    return wrong(fmt::format("{}.{}", place, key), fmt::format("a whole number from {}", least));
  *to = it->get<uint64_t>();
  return {};
}

Expected<fsdp::Tensor> read_tensor(const Json& json, const std::string& place) {
  RONDO_TRY(check_keys(json, place, {"name", "shape", "dtype", "trainable", "rows_together", "tied_to"}));
  fsdp::Tensor t;
  RONDO_TRY(read(json, "name", place, true, &t.name));
  const auto shape = json.find("shape");
  if (shape == json.end() || !shape->is_array()) return wrong(place + ".shape", "an array of whole numbers");
  for (const Json& d : *shape) {
    if (!d.is_number_unsigned()) return wrong(place + ".shape", "an array of whole numbers");
    t.shape.push_back(d.get<uint64_t>());
  }
  std::string dtype(dtype_name(t.dtype));
  RONDO_TRY(read(json, "dtype", place, false, &dtype));
  const auto known = dtype_from_name(dtype);
  if (!known) return wrong(place + ".dtype", "an element type, as float or bfloat16");
  t.dtype = *known;
  RONDO_TRY(read(json, "trainable", place, &t.trainable));
  RONDO_TRY(read(json, "rows_together", place, 1, &t.rows_together));
  RONDO_TRY(read(json, "tied_to", place, false, &t.tied_to));
  return t;
}

Status read_unit(const Json& json, const std::string& place, fsdp::Model* model) {
  RONDO_TRY(check_keys(json, place, {"name", "tensors", "repeat"}));
  constexpr uint64_t kMost = 100'000;
  fsdp::Unit unit;
  RONDO_TRY(read(json, "name", place, true, &unit.name));
  uint64_t repeat = 0;
  RONDO_TRY(read(json, "repeat", place, 1, &repeat));
  if (repeat > kMost) return wrong(place + ".repeat", fmt::format("at most {}", kMost));
  const auto tensors = json.find("tensors");
  if (tensors == json.end() || !tensors->is_array()) return wrong(place + ".tensors", "an array");
  for (size_t i = 0; i < tensors->size(); ++i) {
    RONDO_TRY_ASSIGN(fsdp::Tensor t, read_tensor((*tensors)[i], fmt::format("{}.tensors[{}]", place, i)));
    unit.tensors.push_back(std::move(t));
  }
  const std::string name = unit.name;
  for (uint64_t i = 0; i < std::max<uint64_t>(repeat, 1); ++i) {
    if (repeat > 0) unit.name = fmt::format("{}{}", name, i);
    model->units.push_back(unit);
  }
  return {};
}

}  // namespace

Expected<fsdp::Model> read_model(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return wrong("the file", "JSON");
  RONDO_TRY(check_keys(json, "", {"has_root", "units"}));
  fsdp::Model model;
  RONDO_TRY(read(json, "has_root", "", &model.has_root));
  const auto units = json.find("units");
  if (units == json.end() || !units->is_array() || units->empty())
    return wrong("units", "an array of units, not empty");
  for (size_t i = 0; i < units->size(); ++i) RONDO_TRY(read_unit((*units)[i], fmt::format("units[{}]", i), &model));
  return model;
}

}  // namespace rondo::tools

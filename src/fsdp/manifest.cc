#include "fsdp/manifest.h"

#include <algorithm>

#include "base/error.h"
#include "fsdp/json.h"
#include "fsdp/safetensors.h"

namespace rondo::fsdp {
namespace {

constexpr const char* kFormat = "rondo checkpoint";
constexpr uint64_t kVersion = 1;

Json encode_tensors(const std::map<std::string, StoredTensor>& tensors) {
  Json all = Json::object();
  for (const auto& [name, t] : tensors) {
    Json parts = Json::array();
    for (const StoredRows& p : t.parts) parts.push_back({p.file, p.first_row, p.num_rows});
    all[name] = {{"dtype", safetensors_name(t.dtype)}, {"shape", t.shape}, {"parts", std::move(parts)}};
  }
  return all;
}

// Decodes one document. The first error is returned.
class ManifestReader {
 public:
  explicit ManifestReader(const std::string& what) : what_(what) {}

  Status wrong(const std::string& place, std::string_view expected) const {
    return invalid_argument("'{}': {}: expected {}", what_, place, expected);
  }
  Status number(const Json& object, const char* key, const std::string& place, uint64_t most, uint64_t* to) const {
    const Json& value = member_of(object, key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > most)
      return wrong(place + key, fmt::format("a whole number up to {}", most));
    *to = value.get<uint64_t>();
    return {};
  }
  Status text(const Json& object, const char* key, const std::string& place, std::string* to) const {
    const Json& value = member_of(object, key);
    if (!value.is_string()) return wrong(place + key, "a string");
    *to = value.get_ref<const std::string&>();
    return {};
  }
  Expected<const Json*> member(const Json& object, const char* key, Json::value_t type, const char* expected) const {
    const Json& value = member_of(object, key);
    if (value.type() != type) return wrong(key, expected);
    return &value;
  }

  Status files(const Json& array, Contents* to) const {
    for (size_t i = 0; i < array.size(); ++i) {
      const std::string place = fmt::format("files[{}].", i);
      if (!array[i].is_object()) return wrong(place, "an object");
      StoredFile f;
      RONDO_TRY(text(array[i], "name", place, &f.path));
      if (f.path.empty() || f.path[0] == '/' || f.path.find("..") != std::string::npos)
        return wrong(place + "name", "a file of this folder");
      RONDO_TRY(number(array[i], "bytes", place, INT64_MAX, &f.size_bytes));
      RONDO_TRY(text(array[i], "sha256", place, &f.sha256));
      if (f.sha256.size() != 64) return wrong(place + "sha256", "64 hexadecimal digits");
      to->files.push_back(std::move(f));
    }
    return {};
  }

  Status tensors(const Json& object, const char* key, size_t num_files, std::map<std::string, StoredTensor>* to) const {
    for (const auto& [name, json] : object.items()) {
      const std::string place = fmt::format("{}.{}.", key, name);
      if (!json.is_object()) return wrong(place, "an object");
      StoredTensor t{.name = name, .shape = {}, .parts = {}};
      std::string dtype;
      RONDO_TRY(text(json, "dtype", place, &dtype));
      const auto known = safetensors_dtype(dtype);
      if (!known) return wrong(place + "dtype", "a type that rondo has");
      t.dtype = *known;
      auto shape = whole_numbers(member_of(json, "shape"));
      if (!shape) return wrong(place + "shape", "a list of whole numbers");
      t.shape = std::move(*shape);
      if (!tensor_bytes(t.dtype, t.shape)) return wrong(place + "shape", "no more elements than memory has bytes");
      const Json& parts = member_of(json, "parts");
      if (!parts.is_array()) return wrong(place + "parts", "a list");
      for (const Json& part : parts) {
        const auto p = whole_numbers(part);
        if (!p || p->size() != 3 || (*p)[0] >= num_files) return wrong(place + "parts", "[file, first row, rows]");
        t.parts.push_back({(*p)[0], (*p)[1], (*p)[2]});
      }
      RONDO_TRY(check_rows(what_, &t));
      to->emplace(name, std::move(t));
    }
    return {};
  }

  // Checks that the parts of a file need no more bytes than the file has. This bounds all later reads.
  Status fits(const Contents& c) const {
    std::vector<uint64_t> held(c.files.size());
    for (const auto* tensors : {&c.parameters, &c.states})
      for (const auto& [name, t] : *tensors) {
        const uint64_t rows = rows_of(t.shape), row_bytes = rows == 0 ? 0 : *tensor_bytes(t.dtype, t.shape) / rows;
        for (const StoredRows& p : t.parts) {
          const uint64_t part_bytes = p.num_rows * row_bytes, file_bytes = c.files[p.file].size_bytes;
          if (part_bytes > file_bytes - held[p.file])
            return wrong(fmt::format("tensor '{}'", name), fmt::format("no more bytes than the size of '{}', {} bytes",
                                                                       c.files[p.file].path, file_bytes));
          held[p.file] += part_bytes;
        }
      }
    return {};
  }

  Status optimizer(const Json& object, Contents* to) const {
    uint64_t steps = 0;
    RONDO_TRY(number(object, "steps", "optimizer.", INT64_MAX, &steps));
    to->optimizer_steps = static_cast<int64_t>(steps);
    const Json& states = member_of(object, "states");
    if (!states.is_array()) return wrong("optimizer.states", "a list of names");
    for (const Json& s : states) {
      if (!s.is_string()) return wrong("optimizer.states", "a list of names");
      to->state_names.push_back(s.get<std::string>());
    }
    return {};
  }

 private:
  const std::string& what_;
};

}  // namespace

Status check_rows(const std::string& what, StoredTensor* t) {
  std::ranges::sort(t->parts, {}, [](const StoredRows& p) { return std::pair(p.first_row, p.num_rows); });
  auto wrong = [&](uint64_t row, const char* why) {
    return invalid_argument("'{}': tensor '{}': row {} {}", what, t->name, row, why);
  };
  uint64_t at = 0;
  const uint64_t rows = rows_of(t->shape);
  for (const StoredRows& p : t->parts) {
    if (p.first_row > at) return wrong(at, "is in no file");
    if (p.first_row < at) return wrong(p.first_row, "occurs twice");
    if (__builtin_add_overflow(at, p.num_rows, &at) || at > rows) return wrong(rows, "is beyond its shape");
  }
  if (at < rows || t->parts.empty()) return wrong(at, "is in no file");
  return {};
}

std::string encode_manifest(const Contents& c) {
  Json files = Json::array();
  for (const StoredFile& f : c.files)
    files.push_back({{"name", f.path}, {"bytes", f.size_bytes}, {"sha256", f.sha256}});
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"ranks", c.nranks},
               {"files", std::move(files)},
               {"parameters", encode_tensors(c.parameters)},
               {"states", encode_tensors(c.states)},
               {"ties", Json::object()},
               {"optimizer", {{"steps", c.optimizer_steps}, {"states", c.state_names}}},
               {"items", parse_json(c.items, kMostDepth - 1)}};
  for (const auto& [name, partner] : c.ties) json["ties"][name] = partner;
  return text_of(json) + "\n";
}

Expected<Contents> decode_manifest(const std::string& text, const std::string& what) {
  const ManifestReader d(what);
  const Json json = parse_json(text);
  if (!json.is_object()) return d.wrong("the file", fmt::format("a JSON object, nested at most {} deep", kMostDepth));
  std::string format;
  RONDO_TRY(d.text(json, "format", "", &format));
  if (format != kFormat) return d.wrong("format", fmt::format("'{}'", kFormat));
  uint64_t version = 0, ranks = 0;
  RONDO_TRY(d.number(json, "version", "", UINT64_MAX, &version));
  if (version != kVersion) return d.wrong("version", fmt::format("{}: a newer rondo wrote this file", kVersion));
  RONDO_TRY(d.number(json, "ranks", "", INT32_MAX, &ranks));
  if (ranks == 0) return d.wrong("ranks", "at least 1");
  Contents c;
  c.nranks = static_cast<int>(ranks);
  using Type = Json::value_t;
  RONDO_TRY_ASSIGN(const Json* files, d.member(json, "files", Type::array, "a list"));
  RONDO_TRY(d.files(*files, &c));
  RONDO_TRY_ASSIGN(const Json* parameters, d.member(json, "parameters", Type::object, "an object"));
  RONDO_TRY(d.tensors(*parameters, "parameters", c.files.size(), &c.parameters));
  RONDO_TRY_ASSIGN(const Json* states, d.member(json, "states", Type::object, "an object"));
  RONDO_TRY(d.tensors(*states, "states", c.files.size(), &c.states));
  RONDO_TRY(d.fits(c));
  RONDO_TRY_ASSIGN(const Json* ties, d.member(json, "ties", Type::object, "an object"));
  for (const auto& [name, partner] : ties->items()) {
    if (!partner.is_string()) return d.wrong("ties." + name, "a tensor's name");
    c.ties[name] = partner.get<std::string>();
  }
  RONDO_TRY_ASSIGN(const Json* optimizer, d.member(json, "optimizer", Type::object, "an object"));
  RONDO_TRY(d.optimizer(*optimizer, &c));
  RONDO_TRY_ASSIGN(const Json* items, d.member(json, "items", Type::object, "an object"));
  c.items = text_of(*items);
  return c;
}

}  // namespace rondo::fsdp

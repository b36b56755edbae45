#include "fsdp/safetensors.h"

#include <algorithm>
#include <tuple>

#include "base/codec.h"
#include "base/error.h"
#include "fsdp/json.h"

namespace rondo::fsdp {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr const char* kMetadata = "__metadata__";
constexpr uint64_t kMostFileBytes = (uint64_t{1} << 63) - 1 - kLengthBytes - kMostHeaderBytes;  // of tensors

template <class... Args>
Status bad_file(const std::string& file, fmt::format_string<Args...> why, Args&&... args) {
  return invalid_argument("'{}' is not a valid safetensors file: {}", file,
                          fmt::format(why, std::forward<Args>(args)...));
}
template <class... Args>
Status bad_tensor(const std::string& file, const std::string& name, fmt::format_string<Args...> why, Args&&... args) {
  return bad_file(file, "tensor '{}': {}", name, fmt::format(why, std::forward<Args>(args)...));
}

Expected<Json> parse_header(std::string_view text, const std::string& file) {
  std::string twice;
  Json json = parse_json(text, kMostDepth, &twice);
  if (!json.is_object())
    return bad_file(file, "its header is not a JSON object or is nested deeper than {}", kMostDepth);
  if (!twice.empty()) return bad_tensor(file, twice, "it occurs twice");
  return json;
}

Expected<TensorEntry> read_entry(const std::string& name, const Json& json, const std::string& file) {
  TensorEntry t{.name = name, .shape = {}};
  if (!json.is_object()) return bad_tensor(file, name, "expected an object with dtype, shape and data_offsets");
  const Json& dtype = member_of(json, "dtype");
  if (!dtype.is_string()) return bad_tensor(file, name, "its dtype is not a string");
  const auto known = safetensors_dtype(dtype.get_ref<const std::string&>());
  if (!known) return bad_tensor(file, name, "rondo has no type '{}'", dtype.get_ref<const std::string&>());
  t.dtype = *known;
  auto shape = whole_numbers(member_of(json, "shape"));
  if (!shape) return bad_tensor(file, name, "its shape is not a list of whole numbers");
  t.shape = std::move(*shape);
  const auto offsets = whole_numbers(member_of(json, "data_offsets"));
  if (!offsets || offsets->size() != 2) return bad_tensor(file, name, "its data_offsets are not two whole numbers");
  t.begin = (*offsets)[0], t.end = (*offsets)[1];
  const auto bytes = tensor_bytes(t.dtype, t.shape);
  if (!bytes) return bad_tensor(file, name, "its shape has more elements than memory has bytes");
  if (t.end < t.begin || t.end - t.begin != *bytes)
    return bad_tensor(file, name, "data_offsets {} .. {} are not the {} bytes of its shape", t.begin, t.end, *bytes);
  return t;
}

Status read_metadata(const Json& json, const std::string& file, std::map<std::string, std::string>* to) {
  if (!json.is_object()) return bad_file(file, "__metadata__ is not an object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) return bad_file(file, "__metadata__ '{}' is not a string", key);
    (*to)[key] = value.get_ref<const std::string&>();
  }
  return {};
}

// Sorts tensors by file position and checks that they fill the data without gaps.
Status place(uint64_t data_begin, uint64_t data_bytes, const std::string& file, std::vector<TensorEntry>* tensors) {
  std::sort(tensors->begin(), tensors->end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t at = 0;
  for (TensorEntry& t : *tensors) {
    if (t.begin != at)
      return bad_tensor(file, t.name, "it begins at byte {}, but the data before it ends at {}", t.begin, at);
    at = t.end;
    if (at > data_bytes)
      return bad_tensor(file, t.name, "it ends at byte {}, the file has {}: it is cut off", at, data_bytes);
    t.begin += data_begin, t.end += data_begin;
  }
  if (at != data_bytes) return bad_file(file, "{} bytes at its end belong to no tensor", data_bytes - at);
  return {};
}

Expected<uint64_t> header_bytes(std::string_view start, uint64_t file_bytes, const std::string& file) {
  if (file_bytes < kLengthBytes || start.size() < kLengthBytes) return bad_file(file, "it has less than 8 bytes");
  const uint64_t length = Decoder(start).get<uint64_t>();
  if (length > file_bytes - kLengthBytes)
    return bad_file(file, "its header should have {} bytes, the file has {}", length, file_bytes);
  if (length > kMostHeaderBytes)
    return bad_file(file, "its header has {} bytes, at most {} are read", length, kMostHeaderBytes);
  return length;
}

// A type that the format does not define has rondo's name.
constexpr struct {
  Dtype dtype;
  std::string_view name;
} kNames[] = {{Dtype::kInt8, "I8"},       {Dtype::kUint8, "U8"},           {Dtype::kInt32, "I32"},
              {Dtype::kUint32, "U32"},    {Dtype::kInt64, "I64"},          {Dtype::kUint64, "U64"},
              {Dtype::kFloat16, "F16"},   {Dtype::kFloat32, "F32"},        {Dtype::kFloat64, "F64"},
              {Dtype::kBfloat16, "BF16"}, {Dtype::kFloat8E4m3, "F8_E4M3"}, {Dtype::kFloat8E5m2, "F8_E5M2"}};

}  // namespace

std::string_view safetensors_name(Dtype dtype) {
  for (const auto& row : kNames)
    if (row.dtype == dtype) return row.name;
  return dtype_name(dtype);
}

std::optional<Dtype> safetensors_dtype(std::string_view name) {
  for (const auto& row : kNames)
    if (row.name == name) return row.dtype;
  const std::optional<Dtype> other = dtype_from_name(name);
  return other && safetensors_name(*other) == name ? other : std::nullopt;
}

std::optional<uint64_t> tensor_bytes(Dtype dtype, const std::vector<uint64_t>& shape) {
  uint64_t bytes = dtype_bytes(dtype);
  for (const uint64_t n : shape)
    if (__builtin_mul_overflow(bytes, n, &bytes)) return std::nullopt;
  return bytes;
}

Expected<std::string> encode_safetensors(Safetensors* file) {
  std::ranges::sort(file->tensors, [](const TensorEntry& a, const TensorEntry& b) {
    const uint32_t of_a = dtype_bytes(a.dtype), of_b = dtype_bytes(b.dtype);
    return of_a != of_b ? of_a > of_b : a.name < b.name;
  });
  Json header = Json::object();
  if (!file->metadata.empty()) header[kMetadata] = file->metadata;
  uint64_t at = 0;
  for (TensorEntry& t : file->tensors) {
    if (header.contains(t.name) || t.name == kMetadata)
      return invalid_argument("tensor '{}': two tensors have this name", t.name);
    if (!is_utf8(t.name)) return invalid_argument("tensor '{}': its name is not UTF-8", t.name);
    const auto bytes = tensor_bytes(t.dtype, t.shape);
    if (!bytes || *bytes > kMostFileBytes - at)
      return invalid_argument("tensor '{}': with it the file would have more bytes than a file can have", t.name);
    t.begin = at, t.end = at + *bytes;
    at = t.end;
    header[t.name] = {{"dtype", safetensors_name(t.dtype)}, {"shape", t.shape}, {"data_offsets", {t.begin, t.end}}};
  }
  std::string text = text_of(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMostHeaderBytes)
    return invalid_argument("{} tensors need a header of {} bytes, but readers accept at most {}", file->tensors.size(),
                            text.size(), kMostHeaderBytes);
  for (TensorEntry& t : file->tensors) t.begin += kLengthBytes + text.size(), t.end += kLengthBytes + text.size();
  return encode(uint64_t{text.size()}) + text;
}

Expected<Safetensors> decode_safetensors(std::string_view start, uint64_t file_bytes, const std::string& what) {
  RONDO_TRY_ASSIGN(const uint64_t length, header_bytes(start, file_bytes, what));
  if (start.size() < kLengthBytes + length) return bad_file(what, "its header is cut off");
  RONDO_TRY_ASSIGN(const Json json, parse_header(start.substr(kLengthBytes, length), what));
  Safetensors file;
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadata) {
      RONDO_TRY(read_metadata(value, what, &file.metadata));
      continue;
    }
    RONDO_TRY_ASSIGN(TensorEntry t, read_entry(name, value, what));
    file.tensors.push_back(std::move(t));
  }
  RONDO_TRY(place(kLengthBytes + length, file_bytes - kLengthBytes - length, what, &file.tensors));
  return file;
}

Expected<Safetensors> read_safetensors(const File& file) {
  std::string start(std::min<uint64_t>(kLengthBytes, file.size_bytes()), '\0');
  RONDO_TRY(file.read(0, start.size(), start.data()));
  RONDO_TRY_ASSIGN(const uint64_t length, header_bytes(start, file.size_bytes(), file.path()));
  start.resize(kLengthBytes + length);
  RONDO_TRY(file.read(0, start.size(), start.data()));
  return decode_safetensors(start, file.size_bytes(), file.path());
}

}  // namespace rondo::fsdp

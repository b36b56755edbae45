// Headers of safetensors files: a little-endian length of 8 bytes, JSON of that length, then the tensors' bytes without
// gaps.
//
//   {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
//
// Written files align every tensor to its elements. Input may come from anywhere: it is checked completely before it is
// used. Errors name file, tensor and reason. Thread safety: pure functions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/file.h"
#include "rondo/types.h"

namespace rondo::fsdp {

/// Longer headers are refused. The format's own library has the same limit.
constexpr uint64_t kMostHeaderBytes = 100'000'000;

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  // byte range in the file
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct Safetensors {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;  // in file order
};

/// The safetensors name, for example "F32".
std::string_view safetensors_name(Dtype dtype);
std::optional<Dtype> safetensors_dtype(std::string_view name);
/// nullopt if the size does not fit 64 bits.
std::optional<uint64_t> tensor_bytes(Dtype dtype, const std::vector<uint64_t>& shape);
inline uint64_t rows_of(const std::vector<uint64_t>& shape) { return shape.empty() ? 1 : shape[0]; }

/// Orders the tensors by alignment and name, sets begin and end, and returns the file's header. Errors:
/// kInvalidArgument (a name is not UTF-8 or occurs twice, the header is too long, or the file would be too large).
Expected<std::string> encode_safetensors(Safetensors* file);
/// start: the first bytes of the file, at least its header. what: its name in errors. Errors: kInvalidArgument.
Expected<Safetensors> decode_safetensors(std::string_view start, uint64_t file_bytes, const std::string& what);
Expected<Safetensors> read_safetensors(const File& file);

}  // namespace rondo::fsdp

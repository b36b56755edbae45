// Headers of safetensors files: a little-endian length of 8 bytes, JSON of that length, then the tensors' bytes one
// after the other without holes.
//
//   {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
//
// Written so that every tensor is aligned to its elements. What is read may come from anywhere: it is checked wholly
// before any of it is used, and errors name file, tensor and what is wrong.
//
// Thread safety: pure functions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/file.h"
#include "rondo/types.h"

namespace rondo::fsdp {

/// Longer ones are refused, here as by the format's own library.
constexpr uint64_t kMostHeaderBytes = 100'000'000;

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes in the file
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct Safetensors {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;  // as they lie
  const TensorEntry* find(std::string_view name) const;
};

/// "F32", ...: as safetensors names it.
std::string_view safetensors_name(Dtype dtype);
std::optional<Dtype> safetensors_dtype(std::string_view name);
/// Nothing when it does not fit 64 bits.
std::optional<uint64_t> tensor_bytes(Dtype dtype, const std::vector<uint64_t>& shape);
inline uint64_t rows_of(const std::vector<uint64_t>& shape) { return shape.empty() ? 1 : shape[0]; }

/// Orders the tensors by alignment and name, places them (begin, end), and gives the file's beginning. Errors:
/// kInvalidArgument (a name that is no UTF-8, twice the same, too long a header, more bytes than a file can have).
Expected<std::string> encode_safetensors(Safetensors* file);
/// start: the file's first bytes, its header at least; what names it in errors. Errors: kInvalidArgument.
Expected<Safetensors> decode_safetensors(std::string_view start, uint64_t file_bytes, const std::string& what);
Expected<Safetensors> read_safetensors(const File& file);

}  // namespace rondo::fsdp

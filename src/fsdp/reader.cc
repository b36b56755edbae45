#include "fsdp/reader.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace rondo::fsdp {

namespace {

constexpr size_t kMostOpen = 8;  // a rank's rows are in a few files at a time, and parameters and states alternate

}  // namespace

Expected<const File*> Reader::open(size_t i) {
  for (auto it = open_.begin(); it != open_.end(); ++it)
    if (it->first == i) {
      open_.splice(open_.begin(), open_, it);
      return &open_.front().second;
    }
  const StoredFile& stored = contents_.files[i];
  RONDO_TRY_ASSIGN(File file, File::open(stored.path));
  if (file.size_bytes() != stored.size_bytes)
    return invalid_argument("'{}' has {} bytes but was written with {}", stored.path, file.size_bytes(),
                            stored.size_bytes);
  if (!headers_.contains(i)) {
    RONDO_TRY_ASSIGN(Safetensors header, read_safetensors(file));
    Tensors tensors;
    for (TensorEntry& t : header.tensors) {
      std::string name = t.name;
      tensors.emplace(std::move(name), std::move(t));
    }
    headers_.emplace(i, std::move(tensors));
  }
  open_.emplace_front(i, std::move(file));
  if (open_.size() > kMostOpen) open_.pop_back();
  return &open_.front().second;
}

Status Reader::read_bytes(const StoredTensor& t, uint64_t first_byte, uint64_t size_bytes, void* to) {
  const uint64_t row_bytes = tensor_bytes(t.dtype, t.shape).value_or(0) / rows_of(t.shape);
  auto* at = static_cast<char*>(to);
  for (const StoredRows& p : t.parts) {
    const uint64_t part = p.first_row * row_bytes;
    const uint64_t from = std::max(first_byte, part);
    const uint64_t end = std::min(first_byte + size_bytes, part + p.num_rows * row_bytes);
    if (from >= end) continue;
    RONDO_TRY_ASSIGN(const File* file, open(p.file));
    std::vector<uint64_t> shape = t.shape;
    if (!shape.empty()) shape[0] = p.num_rows;
    const Tensors& tensors = headers_.at(p.file);
    const auto entry = tensors.find(t.name);
    if (entry == tensors.end() || entry->second.dtype != t.dtype || entry->second.shape != shape)
      return invalid_argument("'{}' does not hold tensor '{}' as {} [{}]", file->path(), t.name, dtype_name(t.dtype),
                              fmt::join(shape, ", "));
    RONDO_TRY(file->read(entry->second.begin + (from - part), end - from, at));
    at += end - from;
  }
  return {};
}

}  // namespace rondo::fsdp

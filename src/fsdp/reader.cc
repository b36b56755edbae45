#include "fsdp/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace rondo::fsdp {

Expected<const Reader::Opened*> Reader::open(size_t i) {
  if (const auto it = opened_.find(i); it != opened_.end()) return &it->second;
  const StoredFile& stored = contents_.files[i];
  RONDO_TRY_ASSIGN(File file, File::open(stored.path));
  if (file.size_bytes() != stored.size_bytes)
    return Status(StatusCode::kInvalidArgument, fmt::format("'{}' has {} bytes, and was written with {}", stored.path,
                                                            file.size_bytes(), stored.size_bytes));
  RONDO_TRY_ASSIGN(Safetensors header, read_safetensors(file));
  Opened opened{std::move(file), {}};
  for (TensorEntry& t : header.tensors) {
    std::string name = t.name;
    opened.tensors.emplace(std::move(name), std::move(t));
  }
  return &opened_.emplace(i, std::move(opened)).first->second;
}

Status Reader::read(const StoredTensor& t, uint64_t first_row, uint64_t num_rows, void* to) {
  const uint64_t whole = tensor_bytes(t.dtype, t.shape).value_or(0), row_bytes = whole / rows_of(t.shape);
  auto* at = static_cast<char*>(to);
  for (const StoredRows& p : t.parts) {
    const uint64_t from = std::max(first_row, p.first_row);
    const uint64_t end = std::min(first_row + num_rows, p.first_row + p.num_rows);
    if (from >= end) continue;
    RONDO_TRY_ASSIGN(const Opened* opened, open(p.file));
    std::vector<uint64_t> shape = t.shape;
    if (!shape.empty()) shape[0] = p.num_rows;
    const auto entry = opened->tensors.find(t.name);
    if (entry == opened->tensors.end() || entry->second.dtype != t.dtype || entry->second.shape != shape)
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("'{}' should hold tensor '{}' as {} [{}], and does not", opened->file.path(), t.name,
                                dtype_name(t.dtype), fmt::join(shape, ", ")));
    const uint64_t size_bytes = (end - from) * row_bytes;
    RONDO_TRY(opened->file.read(entry->second.begin + (from - p.first_row) * row_bytes, size_bytes, at));
    at += size_bytes;
  }
  return {};
}

}  // namespace rondo::fsdp

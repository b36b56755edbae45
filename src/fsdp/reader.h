// Reads rows of tensors from whatever files hold them. A file's header is read and checked when the first row is wanted
// from it, and kept; of the files only the last few stay open, for there may be more than a process can have.
//
// Thread safety: one thread at a time.
#pragma once

#include <list>
#include <map>
#include <string>
#include <utility>

#include "fsdp/safetensors.h"
#include "rondo/fsdp/checkpoint.h"

namespace rondo::fsdp {

class Reader {
 public:
  /// contents must outlive it.
  explicit Reader(const Contents& contents) : contents_(contents) {}
  /// num_rows > 0 rows of a tensor of contents, one after the other. Errors: kInvalidArgument (a file is not what
  /// contents says), kSystem.
  Status read(const StoredTensor& tensor, uint64_t first_row, uint64_t num_rows, void* to);
  /// The same for bytes of a tensor, from one of its first byte on.
  Status read_bytes(const StoredTensor& tensor, uint64_t first_byte, uint64_t size_bytes, void* to);

 private:
  using Tensors = std::map<std::string, TensorEntry>;
  Expected<const File*> open(size_t file);

  const Contents& contents_;
  std::map<size_t, Tensors> headers_;
  std::list<std::pair<size_t, File>> open_;  // the one used last in front
};

}  // namespace rondo::fsdp

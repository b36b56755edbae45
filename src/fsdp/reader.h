// Reads rows of tensors from the files of a checkpoint. A file's header is read and checked at the first row read from
// it, and is then kept. Only the last few files stay open, because a checkpoint may have more files than a process may
// open. Thread safety: one thread at a time.
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
  /// Reads a byte range of a tensor of contents. Errors: kInvalidArgument (a file differs from contents), kSystem.
  Status read_bytes(const StoredTensor& tensor, uint64_t first_byte, uint64_t size_bytes, void* to);

 private:
  using Tensors = std::map<std::string, TensorEntry>;
  Expected<const File*> open(size_t file);

  const Contents& contents_;
  std::map<size_t, Tensors> headers_;
  std::list<std::pair<size_t, File>> open_;  // last used first
};

}  // namespace rondo::fsdp

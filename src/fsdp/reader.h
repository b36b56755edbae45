// Reads rows of tensors from whatever files hold them. A file is opened, and its header checked, when the first row is
// wanted from it.
//
// Thread safety: one thread at a time.
#pragma once

#include <map>
#include <string>

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

 private:
  struct Opened {
    File file;
    std::map<std::string, TensorEntry, std::less<>> tensors;
  };
  Expected<const Opened*> open(size_t file);

  const Contents& contents_;
  std::map<size_t, Opened> opened_;
};

}  // namespace rondo::fsdp

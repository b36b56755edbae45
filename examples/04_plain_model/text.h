// The training text: files of this machine as ids of characters, and the micro-batches cut from it.
//
// Thread safety: a value; concurrent reads are safe.
#pragma once

#include <rondo/status.h>

#include <cstdint>
#include <string>
#include <vector>

namespace plain {

struct Text {
  std::vector<int> ids;  // of the text's bytes, in order
  std::string alphabet;  // the byte of each id

  /// A file, or all files of a folder in the order of their names, without links. Errors: kSystem (none can be read),
  /// kInvalidArgument (fewer than `least` characters).
  static rondo::Expected<Text> load(const std::string& path, size_t least);
};

struct MicroBatch {
  std::vector<int> tokens, targets;  // batch x length: a character, and the one that follows it
};

/// Micro-batch `number` of a training run: pieces of text with random starts that depend only on the number.
MicroBatch cut(const Text& text, uint64_t number, size_t batch, size_t length);

}  // namespace plain

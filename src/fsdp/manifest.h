// checkpoint.json describes a rondo checkpoint without its tensor values. It is written last: a folder that has it is
// complete.
//
//   {"format": "rondo checkpoint", "version": 1, "ranks": 2,
//    "files": [{"name": "shard-00001-model-00001-of-00001.safetensors", "bytes": 640, "sha256": "..."}],
//    "parameters": {"layer0.w": {"dtype": "F32", "shape": [7, 7], "parts": [[FILE, FIRST_ROW, ROWS], ...]}},
//    "states": {"layer0.w.momentum_buffer": ...}, "ties": {"root.head": "root.embedding"},
//    "optimizer": {"steps": 3, "states": ["momentum_buffer"]}, "items": {...}}
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <utility>

#include "base/error.h"
#include "rondo/fsdp/checkpoint.h"

namespace rondo::fsdp {

constexpr const char* kManifest = "checkpoint.json";
constexpr uint64_t kMostManifestBytes = 256'000'000;

/// Returns "'path': why" as kInvalidArgument.
template <class... Args>
Status bad_checkpoint(const std::string& path, fmt::format_string<Args...> why, Args&&... args) {
  return invalid_argument("'{}': {}", path, fmt::format(why, std::forward<Args>(args)...));
}

/// File paths are relative here. items is JSON; it may have one nesting level less than a manifest.
std::string encode_manifest(const Contents& contents);
/// Errors: kInvalidArgument, which names `what` and the place. The result is safe to use: tensors have no missing rows,
/// each part fits its file, and file names have no "..".
Expected<Contents> decode_manifest(const std::string& text, const std::string& what);

/// Compares size and SHA-256. Errors: kInvalidArgument, kSystem.
Status verify_file(const StoredFile& stored);

/// Sorts a tensor's parts. Returns kInvalidArgument unless they cover each of its rows once.
Status check_rows(const std::string& what, StoredTensor* tensor);

}  // namespace rondo::fsdp

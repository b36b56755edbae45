// checkpoint.json: what a checkpoint of rondo holds, without its tensors' values. Written last, so that a folder that
// has it is complete.
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

#include "rondo/fsdp/checkpoint.h"

namespace rondo::fsdp {

constexpr const char* kManifest = "checkpoint.json";
constexpr uint64_t kMostManifestBytes = 256'000'000;

/// "'path': why", kInvalidArgument.
Status bad_checkpoint(const std::string& path, const std::string& why);

/// Paths of files are relative here. items is JSON, nested one level less than a manifest may be.
std::string encode_manifest(const Contents& contents);
/// Errors: kInvalidArgument, which name `what` and the place. Rows of a tensor without gaps, files that exist in the
/// list and are as large as what is said to be in them, names without "..": what it says can be used.
Expected<Contents> decode_manifest(const std::string& text, const std::string& what);

/// Size and SHA-256. Errors: kInvalidArgument, kSystem.
Status verify_file(const StoredFile& stored);

/// Sorts a tensor's parts; kInvalidArgument unless they are all of its rows, each once.
Status check_rows(const std::string& what, StoredTensor* tensor);

}  // namespace rondo::fsdp

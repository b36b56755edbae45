// Saves and loads the state that an Engine trains. Each rank writes the rows it owns into its own safetensors file. Any
// number of ranks with any strategy can read them back.
//
//   DIR/checkpoint.json                                  placement, checksums, optimizer's steps, caller's items
//   DIR/shard-00001-model-00001-of-00001.safetensors     rows of parameters, of rank 0
//   DIR/optimizer/shard-00001-model-...                  optimizer state of the same rows
//
// The files have the format of PyTorch's distributed checkpoints over safetensors; its HuggingFaceStorageReader loads
// them. A parameter is named full_name(unit, tensor); its optimizer state appends ".exp_avg", for example. Only the
// first of several tied tensors is stored.
//
// A checkpoint contains the plan's tensors and the state of the engine's own optimizer. The caller must save the state
// of its own optimizer (Engine::step(instead), torch::optim) and tensors outside the plan, such as a module's buffers
// (the averages of BatchNorm).
//
// A checkpoint is complete or absent: it is written to DIR.saving, synced, and takes DIR's place in one step. The next
// save removes a crash's leftovers (DIR.saving).
//
// Thread safety: save, load, export_full and save_full are collective over the engine's ranks, between two steps. The
// others are pure functions of files. Two jobs must not save to one folder at once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "rondo/fsdp/engine.h"

namespace rondo::fsdp {

struct SaveOptions {
  /// Other state needed to resume (position in the data, seeds, ...) as a JSON object, nested at most 63 deep. Rank 0's
  /// is stored.
  std::string items = "{}";
  bool optimizer = true;
};

/// Writes a checkpoint that all ranks can load; replicas share the work. All ranks must see `directory`, and its parent
/// must exist. An older checkpoint there is replaced; a folder with anything else in it is refused. Each byte is
/// written once and hashed on the way, without copies. Errors are equal on all ranks, name the rank, and leave the old
/// checkpoint: kInvalidArgument, kSystem (no space, no permission), kUnsupported (the file system cannot exchange two
/// folders, therefore cannot replace one). Two exceptions: after an error of a collective the new checkpoint may be
/// there. After "cannot sync folder" of the parent it is there, but a crash of the machine may bring back the old one,
/// which stays as DIR.saving until the next save.
RONDO_API Status save(Engine& engine, const std::string& directory, const SaveOptions& options = {});

struct LoadOptions {
  bool verify = true;  // ranks divide the files and read each once for its checksum
  bool optimizer = true;
  /// Ignores tensors that are not in the plan, such as buffers in other tools' files. Otherwise they are an error.
  bool ignore_surplus = false;
};

struct Loaded {
  std::string items = "{}";
  /// The state and step count of the engine's own optimizer were loaded. The caller's own optimizer starts afresh
  /// unless the caller saved its state.
  bool has_optimizer = false;
};

/// Loads a checkpoint of any number of ranks, or parameters only: from one .safetensors file, a folder with
/// model.safetensors or model.safetensors.index.json, or a folder that PyTorch saved by rows. Each rank reads the rows
/// it owns. Tensors, shapes and types must match the plan; ignore_surplus permits more tensors. Errors are equal on all
/// ranks and name file and tensor: kInvalidArgument, kSystem. After an error while reading values, the engine holds
/// part of them.
RONDO_API Expected<Loaded> load(Engine& engine, const std::string& path, const LoadOptions& options = {});

/// Called on rank 0 for each tensor except tied copies, in the plan's order, with all its bytes in its own type.
using Sink =
    std::function<Status(const std::string& name, const Tensor& tensor, const void* data, uint64_t size_bytes)>;
/// Gathers the parameters on rank 0, one unit at a time. It needs the bytes of the largest unit in addition to the
/// engine's memory. An error from the sink ends it on all ranks.
RONDO_API Status export_full(Engine& engine, const Sink& sink);
/// Writes the parameters into one file (model.safetensors, for example) that safetensors' and Hugging Face's libraries
/// load. Its metadata lists ties. Otherwise as export_full. After an error the old file is unchanged.
RONDO_API Status save_full(Engine& engine, const std::string& file);

/// Rows of a tensor in one file. A tensor of shape {} is one row.
struct StoredRows {
  size_t file = 0;
  uint64_t first_row = 0, num_rows = 0;
};
struct StoredTensor {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<uint64_t> shape;
  std::vector<StoredRows> parts;  // by first_row; together all rows
};
struct StoredFile {
  std::string path;
  uint64_t size_bytes = 0;
  std::string sha256 = {};  // hexadecimal; empty: unknown
};
struct Contents {
  int nranks = 0;  // number of ranks that saved it; 0: not saved by rondo
  std::vector<StoredFile> files;
  std::map<std::string, StoredTensor> parameters, states;
  std::map<std::string, std::string> ties;  // from a tensor that is not stored to the stored one
  std::vector<std::string> state_names;     // exp_avg, ...
  int64_t optimizer_steps = 0;
  std::string items = "{}";
};

/// The contents of a path that load() accepts. Errors: kInvalidArgument, kSystem, which name the file.
RONDO_API Expected<Contents> inspect(const std::string& path);
/// Compares size and SHA-256 of every file. O(bytes). Errors: kInvalidArgument, which names the file; kUnsupported: no
/// checksums.
RONDO_API Status verify(const Contents& contents);
/// Writes the parameters into one file, as save_full, through a buffer of 1 MiB. An error leaves no unfinished file.
/// Errors: kInvalidArgument, kSystem.
RONDO_API Status consolidate(const Contents& contents, const std::string& file);

}  // namespace rondo::fsdp

// Saves and loads what an Engine trains: each rank writes what it owns into its own safetensors file, any other number
// of ranks with any other strategy reads it back.
//
//   DIR/checkpoint.json                                  what lies where, checksums, optimizer's steps, caller's items
//   DIR/shard-00001-model-00001-of-00001.safetensors     rows of parameters, of rank 0
//   DIR/optimizer/shard-00001-model-...                  the same rows of what the optimizer keeps
//
// The files are those of PyTorch's distributed checkpoints over safetensors: its HuggingFaceStorageReader loads them.
// A parameter is called full_name(unit, tensor), its optimizer state that and ".exp_avg" say. Of tied tensors the first
// is stored.
//
// What is in it: the plan's tensors and what the engine's own optimizer keeps. Not in it: what an optimizer of the
// caller's keeps (Engine::step(instead), torch::optim), and tensors beside the plan, as a module's buffers (the
// averages of BatchNorm). Whoever has those saves them too.
//
// A checkpoint is complete or not there: it is written into DIR.saving, synced, and takes DIR's place in one step. What
// a crash leaves of DIR.saving the next save removes.
//
// Thread safety: save, load, export_full and save_full are collective over the engine's ranks, between two steps; the
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
  /// Whatever else is needed to go on, as a JSON object, nested at most 63 deep: position in the data, seeds, ... That
  /// of rank 0 counts.
  std::string items = "{}";
  bool optimizer = true;
};

/// Writes a checkpoint that all ranks can then load; replicas share the work. `directory` lies where all ranks see it,
/// and its parent exists. An older checkpoint there is replaced; a folder with anything else in it is refused. Each
/// byte is written once, hashed on the way, without copies. Errors, equal on all ranks, name the rank, and leave what
/// was there: kInvalidArgument, kSystem (no space, no permission), kUnsupported (the file system cannot exchange two
/// folders, so that nothing can be replaced there). Two do not: after one of the collectives the new checkpoint may be
/// there; after "cannot sync folder" of the parent it is there, but a crash of the machine may bring back the old one,
/// which stays as DIR.saving until the next save.
RONDO_API Status save(Engine& engine, const std::string& directory, const SaveOptions& options = {});

struct LoadOptions {
  bool verify = true;  // ranks share the checksums out, and read each file once for them
  bool optimizer = true;
  /// Tensors that the plan does not have, as buffers in files of others, are passed over; otherwise they are an error.
  bool ignore_surplus = false;
};

struct Loaded {
  std::string items = "{}";
  /// What the engine's own optimizer keeps, and its steps, were in it and taken over. Of an optimizer of the caller's
  /// it says nothing: that starts afresh, unless the caller has saved what it keeps.
  bool has_optimizer = false;
};

/// Loads a checkpoint of any number of ranks; or the parameters alone from one .safetensors file, a folder with
/// model.safetensors or model.safetensors.index.json, or a folder that PyTorch has saved by rows. Each rank reads the
/// rows that it owns. Tensors, shapes and types must be those of the plan; with ignore_surplus there may be more
/// tensors. Errors, equal on all ranks, name file and tensor; after one while values are read the engine holds some of
/// them: kInvalidArgument, kSystem.
RONDO_API Expected<Loaded> load(Engine& engine, const std::string& path, const LoadOptions& options = {});

/// Called on rank 0 for each tensor but tied ones, in the plan's order, with all of its bytes in its own type.
using Sink =
    std::function<Status(const std::string& name, const Tensor& tensor, const void* data, uint64_t size_bytes)>;
/// Brings the parameters to rank 0, one unit at a time: it needs the bytes of the largest unit beside what the engine
/// has. An error of the sink ends it on all ranks.
RONDO_API Status export_full(Engine& engine, const Sink& sink);
/// Writes the parameters into one file, model.safetensors say, which safetensors' and Hugging Face's libraries load.
/// Ties stand in its metadata. As export_full; the file is complete or as it was.
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
  std::vector<StoredRows> parts;  // by first_row; they are all rows
};
struct StoredFile {
  std::string path;
  uint64_t size_bytes = 0;
  std::string sha256 = {};  // hexadecimal; empty: not known
};
struct Contents {
  int nranks = 0;  // that saved it; 0: rondo did not
  std::vector<StoredFile> files;
  std::map<std::string, StoredTensor> parameters, states;
  std::map<std::string, std::string> ties;  // of a tensor that is not stored to the one that is
  std::vector<std::string> state_names;     // exp_avg, ...
  int64_t optimizer_steps = 0;
  std::string items = "{}";
};

/// What a path that load() takes holds. Errors: kInvalidArgument, kSystem, which name the file.
RONDO_API Expected<Contents> inspect(const std::string& path);
/// Compares size and SHA-256 of every file. O(bytes). Errors: kInvalidArgument, which names the file; kUnsupported:
/// there are no checksums.
RONDO_API Status verify(const Contents& contents);
/// Writes the parameters into one file, as save_full; of their values nothing is held but a buffer of 1 MiB, and an
/// error leaves no unfinished file behind. Errors: kInvalidArgument, kSystem.
RONDO_API Status consolidate(const Contents& contents, const std::string& file);

}  // namespace rondo::fsdp

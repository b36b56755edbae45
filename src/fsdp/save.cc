// save(): every rank writes its file, and rank 0 writes the rest. After each stage all ranks agree on success.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "fsdp/agree.h"
#include "fsdp/file.h"
#include "fsdp/folder.h"
#include "fsdp/json.h"
#include "fsdp/manifest.h"
#include "fsdp/row_ranges.h"
#include "rondo/fsdp/checkpoint.h"

namespace rondo::fsdp {
namespace {

// What every rank reports to rank 0 about its file.
struct Record {
  uint64_t size_bytes = 0;  // 0: the rank has no file
  char sha256[64] = {};
};

// One rank's part of a tensor, as a file stores it.
struct Piece {
  std::string name;
  const Tensor* tensor;
  uint64_t first_row, num_rows;
  Dtype dtype;
  const void* data;
};

std::vector<uint64_t> shape_of(const Tensor& t, uint64_t num_rows) {
  std::vector<uint64_t> shape = t.shape;
  if (!shape.empty()) shape[0] = num_rows;
  return shape;
}

// Address of an element of the tensor. Null for a tensor without elements.
const void* data_at(const Part* part, uint64_t first) {
  return part == nullptr
             ? nullptr
             : static_cast<const std::byte*>(part->master) + (first - part->first) * dtype_bytes(part->dtype);
}
const void* state_at(const Part* part, size_t state, uint64_t first) {
  return part == nullptr ? nullptr : part->states[state] + (first - part->first);
}

class Saving {
 public:
  Saving(Engine& engine, std::string folder, const SaveOptions& options)
      : engine_(engine),
        plan_(engine.plan()),
        comm_(engine.communicator()),
        calls_(engine.communicator(), engine.device()),
        folder_(std::move(folder)),
        options_(options) {
    const OptimizerConfig& optimizer = engine.optimizer();
    for (int i = 0; options.optimizer && i < optimizer_states(optimizer); ++i)
      states_.push_back(optimizer_state_name(optimizer, i));
  }

  Status run();

 private:
  Status check() const;
  Status write_mine(std::vector<Record>* mine);
  Expected<Record> write_file(const std::string& path, const std::vector<Piece>& pieces) const;
  Status write_values(Writer& writer, const void* data, uint64_t size_bytes, Sha256* hash) const;
  Contents describe(const std::vector<Record>& records) const;
  Status finish(const std::vector<Record>& records);
  std::string beside() const { return folder_ + kBeside; }

  Engine& engine_;
  const Plan& plan_;
  Communicator& comm_;
  HostCalls calls_;
  const std::string folder_;
  const SaveOptions& options_;
  std::vector<std::string> states_;
  bool replaced_ = false;  // the new checkpoint is in place
};

Status Saving::check() const {
  if (folder_.empty() || folder_ == "/")
    return Status(StatusCode::kInvalidArgument, "directory: expected the name of a folder");
  RONDO_TRY(check_names(plan_));
  if (!parse_json(options_.items, kMostDepth - 1).is_object())  // the manifest adds one nesting level
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("options.items: expected a JSON object, nested at most {} deep", kMostDepth - 1));
  return {};
}

Status Saving::run() {
  RONDO_TRY(agree(calls_, check()));
  const bool first = comm_.rank() == 0;
  std::vector<Record> mine(2), all(2 * static_cast<size_t>(comm_.size()));
  Status s = agree(calls_, first ? begin_folder(folder_, !states_.empty()) : Status());
  if (s.ok()) s = agree(calls_, write_mine(&mine));
  if (s.ok()) s = calls_.all_gather(mine.data(), all.data(), 2 * sizeof(Record), Dtype::kUint8);
  if (s.ok()) s = agree(calls_, first ? finish(all) : Status());
  // After the exchange DIR.saving holds the old checkpoint. It stays after an error: a crash may restore either one.
  if (!s.ok() && first && !replaced_) (void)remove_checkpoint(beside());
  return s;
}

// Writes the parameters, then the same rows of the optimizer's states.
Status Saving::write_mine(std::vector<Record>* mine) {
  RONDO_TRY(engine_.settled());
  const std::vector<Part> parts = engine_.parts();
  std::map<std::pair<size_t, size_t>, const Part*> owned;
  for (const Part& p : parts) owned[{static_cast<size_t>(p.unit), p.tensor}] = &p;
  std::vector<Piece> params, states;
  for (const RowRange& s : row_ranges(plan_, comm_.rank())) {
    const UnitPlan& unit = plan_.units()[s.unit];
    const Tensor& t = unit.tensors[s.tensor];
    const std::string name = full_name(unit, t);
    const uint64_t elems = unit.placed[s.tensor].num_elems,
                   first = elems == 0 ? 0 : elems / rows_of(t.shape) * s.first_row;
    const Part* part = elems == 0 ? nullptr : owned.at({s.unit, s.tensor});
    params.push_back({name, &t, s.first_row, s.num_rows, t.dtype, data_at(part, first)});
    for (size_t k = 0; t.trainable && k < states_.size(); ++k)
      states.push_back(
          {name + "." + states_[k], &t, s.first_row, s.num_rows, Dtype::kFloat32, state_at(part, k, first)});
  }
  const std::string name = shard_name(comm_.rank());
  RONDO_TRY_ASSIGN((*mine)[0], write_file(beside() + "/" + name, params));
  RONDO_TRY_ASSIGN((*mine)[1], write_file(fmt::format("{}/{}/{}", beside(), kOptimizerFolder, name), states));
  return {};
}

// A rank without rows writes no file, because PyTorch refuses a file without tensors.
Expected<Record> Saving::write_file(const std::string& path, const std::vector<Piece>& pieces) const {
  if (pieces.empty()) return Record{};
  Safetensors file;
  Json info = Json::object();
  std::map<std::string, const Piece*> by_name;
  for (const Piece& p : pieces) {
    file.tensors.push_back({p.name, p.dtype, shape_of(*p.tensor, p.num_rows)});
    std::vector<uint64_t> offsets(p.tensor->shape.size());
    if (!offsets.empty()) offsets[0] = p.first_row;
    info[p.name] = {{"saved_offsets", offsets}};
    by_name[p.name] = &p;
  }
  file.metadata = {{"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", text_of(info)}, {"format", "pt"}};
  RONDO_TRY_ASSIGN(const std::string header, encode_safetensors(&file));
  RONDO_TRY_ASSIGN(Writer writer, Writer::create(path));
  Sha256 hash;
  RONDO_TRY(writer.write(header.data(), header.size(), &hash));
  Record record{header.size(), {}};
  for (const TensorEntry& t : file.tensors) {
    RONDO_TRY(write_values(writer, by_name.at(t.name)->data, t.end - t.begin, &hash));
    record.size_bytes += t.end - t.begin;
  }
  RONDO_TRY(writer.finish());
  const std::string digest = hash.finish();
  std::memcpy(record.sha256, digest.data(), sizeof record.sha256);
  return record;
}

// Writes host memory directly. Device memory is copied in pieces.
Status Saving::write_values(Writer& writer, const void* data, uint64_t size_bytes, Sha256* hash) const {
  Device& owner = engine_.owner();
  if (owner.memory() == rondo::Memory::kHost) return writer.write(data, size_bytes, hash);
  std::vector<std::byte> piece(std::min(kPieceBytes, size_bytes));
  for (uint64_t at = 0, n = 0; at < size_bytes; at += n) {
    n = std::min<uint64_t>(piece.size(), size_bytes - at);
    RONDO_TRY(owner.read(piece.data(), static_cast<const std::byte*>(data) + at, n));
    RONDO_TRY(writer.write(piece.data(), n, hash));
  }
  return {};
}

// The plan determines which rows are in which file. Only sizes and checksums come from the ranks.
Contents Saving::describe(const std::vector<Record>& records) const {
  Contents c;
  c.nranks = comm_.size();
  c.items = options_.items;
  c.state_names = states_;
  c.optimizer_steps = options_.optimizer ? engine_.optimizer_steps() : 0;
  auto add = [](std::map<std::string, StoredTensor>* to, const std::string& name, Dtype dtype, const Tensor& t,
                const StoredRows& rows) {
    to->try_emplace(name, StoredTensor{name, dtype, t.shape, {}}).first->second.parts.push_back(rows);
  };
  for (Rank r = 0; r < comm_.size(); ++r) {
    size_t files[2] = {};
    for (const size_t kind : {0, 1}) {
      const Record& record = records[2 * static_cast<size_t>(r) + kind];
      files[kind] = c.files.size();
      if (record.size_bytes == 0) continue;
      const std::string name = kind == 0 ? shard_name(r) : fmt::format("{}/{}", kOptimizerFolder, shard_name(r));
      c.files.push_back({name, record.size_bytes, std::string(record.sha256, sizeof record.sha256)});
    }
    for (const RowRange& s : row_ranges(plan_, r)) {
      const Tensor& t = plan_.units()[s.unit].tensors[s.tensor];
      const std::string name = full_name(plan_.units()[s.unit], t);
      add(&c.parameters, name, t.dtype, t, {files[0], s.first_row, s.num_rows});
      for (size_t k = 0; t.trainable && k < states_.size(); ++k)
        add(&c.states, name + "." + states_[k], Dtype::kFloat32, t, {files[1], s.first_row, s.num_rows});
    }
  }
  for (const UnitPlan& unit : plan_.units())
    for (const Tensor& t : unit.tensors)
      if (!t.tied_to.empty()) c.ties[full_name(unit, t)] = full_name(unit, unit.tensors[first_of_tied(unit, t)]);
  return c;
}

Status Saving::finish(const std::vector<Record>& records) {
  const std::string manifest = encode_manifest(describe(records));
  if (manifest.size() > kMostManifestBytes)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("'{}': a {} of {} bytes, with options.items of {}, could not be loaded: at most {}",
                              folder_, kManifest, manifest.size(), options_.items.size(), kMostManifestBytes));
  if (!states_.empty()) RONDO_TRY(sync_folder(beside() + "/" + kOptimizerFolder));
  RONDO_TRY_ASSIGN(Writer writer, Writer::create(beside() + "/" + kManifest));
  RONDO_TRY(writer.write(manifest.data(), manifest.size()));
  RONDO_TRY(writer.finish());
  RONDO_TRY(sync_folder(beside()));
  return replace_folder(folder_, &replaced_);
}

}  // namespace

Status save(Engine& engine, const std::string& directory, const SaveOptions& options) {
  std::string folder = directory;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return Saving(engine, folder, options).run();
}

}  // namespace rondo::fsdp

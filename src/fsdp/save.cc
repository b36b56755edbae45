// save(): every rank writes its file, and rank 0 writes the rest. After each stage all ranks agree on success.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string>

#include "base/error.h"
#include "fsdp/file.h"
#include "fsdp/folder.h"
#include "fsdp/host_calls.h"
#include "fsdp/json.h"
#include "fsdp/manifest.h"
#include "fsdp/row_ranges.h"
#include "rondo/fsdp/checkpoint.h"

namespace rondo::fsdp {
namespace {

// Every rank's report to rank 0 about its file.
struct Record {
  uint64_t size_bytes = 0;  // 0: the rank has no file
  char sha256[64] = {};
};

// One rank's part of a tensor or of its optimizer state, as a file stores it.
struct Piece {
  std::string name;
  const Tensor* tensor;
  RowRange rows;
  Dtype dtype;
  std::optional<size_t> state;  // nothing: the tensor itself
};

std::vector<uint64_t> shape_of(const Tensor& t, uint64_t num_rows) {
  std::vector<uint64_t> shape = t.shape;
  if (!shape.empty()) shape[0] = num_rows;
  return shape;
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

  Status run() {
    RONDO_TRY(calls_.agree(check()));
    const bool first = comm_.rank() == 0;
    std::vector<Record> mine(2), all(2 * static_cast<size_t>(comm_.size()));
    Status s = calls_.agree(first ? begin_folder(folder_, !states_.empty()) : Status());
    if (s.ok()) s = calls_.agree(write_mine(&mine));
    if (s.ok()) s = calls_.all_gather(mine.data(), all.data(), 2 * sizeof(Record), Dtype::kUint8);
    if (s.ok()) s = calls_.agree(first ? finish(all) : Status());
    // After the exchange DIR.saving holds the old checkpoint. It stays after an error: a crash may restore either one.
    if (!s.ok() && first && !replaced_) (void)remove_checkpoint(beside());
    return s;
  }

 private:
  Status check() const {
    if (folder_.empty() || folder_ == "/") return invalid_argument("directory: expected the name of a folder");
    RONDO_TRY(check_names(plan_));
    if (!parse_json(options_.items, kMostDepth - 1).is_object())  // the manifest adds one nesting level
      return invalid_argument("options.items: expected a JSON object, nested at most {} deep", kMostDepth - 1);
    return {};
  }

  Status write_mine(std::vector<Record>* mine) {
    RONDO_TRY(engine_.settled());
    parts_ = engine_.parts();
    const auto [params, states] = pieces_of(comm_.rank());
    const std::string name = shard_name(comm_.rank());
    RONDO_TRY_ASSIGN((*mine)[0], write_file(beside() + "/" + name, params));
    RONDO_TRY_ASSIGN((*mine)[1], write_file(fmt::format("{}/{}/{}", beside(), kOptimizerFolder, name), states));
    return {};
  }

  // A rank stores rows of parameters, and the same rows of the optimizer's states.
  std::array<std::vector<Piece>, 2> pieces_of(Rank r) const {
    std::array<std::vector<Piece>, 2> all;
    for (const RowRange& rows : row_ranges(plan_, r)) {
      const UnitPlan& unit = plan_.units()[rows.unit];
      const Tensor& t = unit.tensors[rows.tensor];
      const std::string name = full_name(unit, t);
      all[0].push_back({name, &t, rows, t.dtype, {}});
      for (size_t k = 0; t.trainable && k < states_.size(); ++k)
        all[1].push_back({name + "." + states_[k], &t, rows, Dtype::kFloat32, k});
    }
    return all;
  }

  // Address of this rank's values. Null for a tensor without elements.
  const void* data_of(const Piece& p) const {
    const uint64_t elems = plan_.units()[p.rows.unit].placed[p.rows.tensor].num_elems;
    if (elems == 0) return nullptr;
    const auto part = std::lower_bound(parts_.begin(), parts_.end(), p.rows, [](const Part& a, const RowRange& b) {
      return std::pair(static_cast<size_t>(a.unit), a.tensor) < std::pair(b.unit, b.tensor);
    });
    const uint64_t skipped = elems / rows_of(p.tensor->shape) * p.rows.first_row - part->first;
    if (p.state) return part->states[*p.state] + skipped;
    return static_cast<const std::byte*>(part->master) + skipped * dtype_bytes(part->dtype);
  }

  // A rank without rows writes no file, because PyTorch refuses a file without tensors.
  Expected<Record> write_file(const std::string& path, const std::vector<Piece>& pieces) const {
    if (pieces.empty()) return Record{};
    Safetensors file;
    Json info = Json::object();
    std::map<std::string, const Piece*> by_name;
    for (const Piece& p : pieces) {
      file.tensors.push_back({p.name, p.dtype, shape_of(*p.tensor, p.rows.num_rows)});
      std::vector<uint64_t> offsets(p.tensor->shape.size());
      if (!offsets.empty()) offsets[0] = p.rows.first_row;
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
      RONDO_TRY(write_values(writer, data_of(*by_name.at(t.name)), t.end - t.begin, &hash));
      record.size_bytes += t.end - t.begin;
    }
    RONDO_TRY(writer.finish());
    const std::string digest = hash.finish();
    std::memcpy(record.sha256, digest.data(), sizeof record.sha256);
    return record;
  }

  // Writes host memory directly. Device memory is copied in pieces.
  Status write_values(Writer& writer, const void* data, uint64_t size_bytes, Sha256* hash) const {
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
  Contents describe(const std::vector<Record>& records) const {
    Contents c;
    c.nranks = comm_.size();
    c.items = options_.items;
    c.state_names = states_;
    c.optimizer_steps = options_.optimizer ? engine_.optimizer_steps() : 0;
    for (Rank r = 0; r < comm_.size(); ++r) {
      const auto pieces = pieces_of(r);
      for (const size_t kind : {0, 1}) {
        const Record& record = records[2 * static_cast<size_t>(r) + kind];
        for (const Piece& p : pieces[kind])
          (kind == 0 ? c.parameters : c.states)
              .try_emplace(p.name, StoredTensor{p.name, p.dtype, p.tensor->shape, {}})
              .first->second.parts.push_back({c.files.size(), p.rows.first_row, p.rows.num_rows});
        if (record.size_bytes == 0) continue;
        const std::string name = kind == 0 ? shard_name(r) : fmt::format("{}/{}", kOptimizerFolder, shard_name(r));
        c.files.push_back({name, record.size_bytes, std::string(record.sha256, sizeof record.sha256)});
      }
    }
    for (const UnitPlan& unit : plan_.units())
      for (const Tensor& t : unit.tensors)
        if (!t.tied_to.empty()) c.ties[full_name(unit, t)] = full_name(unit, unit.tensors[first_of_tied(unit, t)]);
    return c;
  }

  Status finish(const std::vector<Record>& records) {
    const std::string manifest = encode_manifest(describe(records));
    if (manifest.size() > kMostManifestBytes)
      return invalid_argument("'{}': a {} of {} bytes, with options.items of {}, could not be loaded: at most {}",
                              folder_, kManifest, manifest.size(), options_.items.size(), kMostManifestBytes);
    if (!states_.empty()) RONDO_TRY(sync_folder(beside() + "/" + kOptimizerFolder));
    RONDO_TRY_ASSIGN(Writer writer, Writer::create(beside() + "/" + kManifest));
    RONDO_TRY(writer.write(manifest.data(), manifest.size()));
    RONDO_TRY(writer.finish());
    RONDO_TRY(sync_folder(beside()));
    return replace_folder(folder_, &replaced_);
  }

  std::string beside() const { return folder_ + kBeside; }

  Engine& engine_;
  const Plan& plan_;
  Communicator& comm_;
  HostCalls calls_;
  const std::string folder_;
  const SaveOptions& options_;
  std::vector<std::string> states_;
  std::vector<Part> parts_;  // of this rank, in the order of units and tensors
  bool replaced_ = false;    // the new checkpoint is in place
};

}  // namespace

Status save(Engine& engine, const std::string& directory, const SaveOptions& options) {
  std::string folder = directory;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return Saving(engine, folder, options).run();
}

}  // namespace rondo::fsdp

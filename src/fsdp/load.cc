// load(): every rank compares the stored tensors with its plan, then reads the rows that it owns.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>

#include "fsdp/host_calls.h"
#include "fsdp/manifest.h"
#include "fsdp/reader.h"
#include "fsdp/row_ranges.h"
#include "rondo/fsdp/checkpoint.h"

namespace rondo::fsdp {
namespace {

class Loading {
 public:
  Loading(Engine& engine, const std::string& path, const LoadOptions& options)
      : engine_(engine),
        plan_(engine.plan()),
        comm_(engine.communicator()),
        calls_(engine.communicator(), engine.device()),
        path_(path),
        options_(options) {}

  Expected<Loaded> run() {
    RONDO_TRY(calls_.agree(open()));
    if (options_.verify) RONDO_TRY(calls_.agree(verify_share()));
    const Status mine = read();
    const Status gathered = engine_.masters_changed();  // collective, so it also runs if reading failed
    RONDO_TRY(calls_.agree(mine.ok() ? gathered : mine));
    if (has_optimizer_) engine_.set_optimizer_steps(contents_.optimizer_steps);
    return Loaded{contents_.items, has_optimizer_};
  }

 private:
  Status open() {
    RONDO_TRY(check_names(plan_));
    RONDO_TRY_ASSIGN(contents_, inspect(path_));
    RONDO_TRY(match_parameters());
    has_optimizer_ = options_.optimizer && (contents_.optimizer_steps > 0 || !contents_.state_names.empty());
    return has_optimizer_ ? match_states() : Status();
  }

  Status match_parameters() {
    std::set<std::string> known;
    for (size_t u = 0; u < plan_.units().size(); ++u) {
      const UnitPlan& unit = plan_.units()[u];
      for (size_t t = 0; t < unit.tensors.size(); ++t) {
        known.insert(full_name(unit, unit.tensors[t]));
        if (!unit.tensors[t].tied_to.empty()) continue;
        RONDO_TRY_ASSIGN((stored_[{u, t}]), find(unit, unit.tensors[t]));
      }
    }
    std::vector<std::string> surplus;
    for (const auto& [name, t] : contents_.parameters)
      if (!known.contains(name)) surplus.push_back(name);
    if (surplus.empty() || options_.ignore_surplus) return {};
    const size_t shown = std::min<size_t>(surplus.size(), 5);
    return bad_checkpoint(path_, "{} tensors are not in the plan: {}{}; load with ignore_surplus = true to ignore them",
                          surplus.size(),
                          fmt::join(surplus.begin(), surplus.begin() + static_cast<ptrdiff_t>(shown), ", "),
                          shown < surplus.size() ? ", ..." : "");
  }

  Status match_states() {
    const OptimizerConfig& optimizer = engine_.optimizer();
    std::vector<std::string> names;
    for (int i = 0; i < optimizer_states(optimizer); ++i) names.push_back(optimizer_state_name(optimizer, i));
    const char* remedy = "load with optimizer = false to start without its state";
    if (contents_.state_names != names)
      return bad_checkpoint(path_, "its optimizer has states [{}], this one has [{}]: {}",
                            fmt::join(contents_.state_names, ", "), fmt::join(names, ", "), remedy);
    for (const auto& [where, stored] : stored_) {
      const Tensor& t = plan_.units()[where.first].tensors[where.second];
      for (size_t k = 0; t.trainable && k < names.size(); ++k) {
        const auto it = contents_.states.find(stored->name + "." + names[k]);
        if (it == contents_.states.end() || it->second.shape != t.shape || it->second.dtype != Dtype::kFloat32)
          return bad_checkpoint(path_, "there is no '{}.{}' of its shape in float, which its optimizer needs: {}",
                                stored->name, names[k], remedy);
      }
    }
    return {};
  }

  // Finds the tensor, or one tied to it with the same shape: other programs may store it under any of the tied names.
  Expected<const StoredTensor*> find(const UnitPlan& unit, const Tensor& t) {
    const size_t index = static_cast<size_t>(&t - unit.tensors.data());
    auto it = contents_.parameters.find(full_name(unit, t));
    for (const Tensor& other : unit.tensors)
      if (it == contents_.parameters.end() && first_of_tied(unit, other) == index && other.shape == t.shape)
        it = contents_.parameters.find(full_name(unit, other));
    if (it == contents_.parameters.end())
      return bad_checkpoint(path_, "there is no tensor '{}', which the plan has", full_name(unit, t));
    const StoredTensor& s = it->second;
    if (s.shape != t.shape)
      return bad_checkpoint(path_, "tensor '{}' has shape [{}] but [{}] in the plan", s.name, fmt::join(s.shape, ", "),
                            fmt::join(t.shape, ", "));
    if (s.dtype != t.dtype)
      return bad_checkpoint(path_, "tensor '{}' has type {} but {} in the plan", s.name, dtype_name(s.dtype),
                            dtype_name(t.dtype));
    return &s;
  }

  Status verify_share() const {
    for (size_t i = 0; i < contents_.files.size(); ++i)
      if (!contents_.files[i].sha256.empty() &&
          i % static_cast<size_t>(comm_.size()) == static_cast<size_t>(comm_.rank()))
        RONDO_TRY(verify_file(contents_.files[i]));
    return {};
  }

  Status read() {
    Reader reader(contents_);
    const OptimizerConfig& optimizer = engine_.optimizer();
    for (const Part& part : engine_.parts()) {
      const auto u = static_cast<size_t>(part.unit);
      const Tensor& t = plan_.units()[u].tensors[part.tensor];
      const StoredTensor& stored = *stored_.at({u, part.tensor});
      RONDO_TRY(read_values(reader, stored, part.first, part.num_elems, part.master));
      for (int k = 0; has_optimizer_ && t.trainable && k < optimizer_states(optimizer); ++k) {
        const std::string name = stored.name + "." + optimizer_state_name(optimizer, k);
        RONDO_TRY(read_values(reader, contents_.states.at(name), part.first, part.num_elems,
                              part.states[static_cast<size_t>(k)]));
      }
    }
    return {};
  }

  // Reads values to their destination. For a device it copies them in pieces.
  Status read_values(Reader& reader, const StoredTensor& stored, uint64_t first_elem, uint64_t num_elems, void* to) {
    const uint64_t size = dtype_bytes(stored.dtype), first = first_elem * size, bytes = num_elems * size;
    Device& owner = engine_.owner();
    if (owner.memory() == rondo::Memory::kHost) return reader.read_bytes(stored, first, bytes, to);
    std::vector<std::byte> piece(std::min(kPieceBytes, bytes));
    for (uint64_t at = 0, n = 0; at < bytes; at += n) {
      n = std::min<uint64_t>(piece.size(), bytes - at);
      RONDO_TRY(reader.read_bytes(stored, first + at, n, piece.data()));
      RONDO_TRY(owner.write(static_cast<std::byte*>(to) + at, piece.data(), n));
    }
    return {};
  }

  Engine& engine_;
  const Plan& plan_;
  Communicator& comm_;
  HostCalls calls_;
  const std::string& path_;
  const LoadOptions& options_;
  Contents contents_;
  bool has_optimizer_ = false;
  std::map<std::pair<size_t, size_t>, const StoredTensor*> stored_;  // by unit and tensor
};

}  // namespace

Expected<Loaded> load(Engine& engine, const std::string& path, const LoadOptions& options) {
  return Loading(engine, path, options).run();
}

}  // namespace rondo::fsdp

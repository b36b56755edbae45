// Collects the whole model at rank 0, one unit at a time. The ranks of the first shard group send their parts.
#include <algorithm>
#include <memory>
#include <string>

#include "base/error.h"
#include "fsdp/host_calls.h"
#include "fsdp/row_ranges.h"
#include "rondo/fsdp/checkpoint.h"

namespace rondo::fsdp {
namespace {

const std::byte* own_part(const std::vector<Part>& parts, size_t unit, size_t segment, const UnitPlan& plan) {
  for (const Part& p : parts)
    if (static_cast<size_t>(p.unit) == unit && plan.placed[p.tensor].segment == segment)
      return static_cast<const std::byte*>(p.master);  // the first match is the start of the part
  return nullptr;
}

// Writes the complete segments one after the other to `to` (only on rank 0).
Status collect(Engine& engine, HostCalls& calls, const std::vector<Part>& parts, size_t u, std::byte* to) {
  const UnitPlan& unit = engine.plan().units()[u];
  const Communicator& comm = engine.communicator();
  for (size_t i = 0; i < unit.segments.size(); ++i) {
    const Segment& s = unit.segments[i];
    const uint32_t size = dtype_bytes(s.master);
    for (Rank r = 0; r < engine.plan().shard_ranks(); ++r) {
      const uint64_t count = s.counts[static_cast<size_t>(r)], offset = s.offsets[static_cast<size_t>(r)];
      if (count == 0) continue;
      const std::byte* mine = r == comm.rank() ? own_part(parts, u, i, unit) : nullptr;
      if (r == 0 && comm.rank() == 0) RONDO_TRY(engine.owner().read(to + offset * size, mine, count * size));
      if (r > 0 && comm.rank() == 0) RONDO_TRY(calls.recv(to + offset * size, count, s.master, r));
      if (r > 0 && comm.rank() == r) RONDO_TRY(calls.send(mine, count, s.master, 0));
    }
    if (to != nullptr) to += s.num_elems * size;
  }
  return {};
}

Status hand_out(const UnitPlan& unit, const std::byte* from, const Sink& sink) {
  for (size_t t = 0; t < unit.tensors.size(); ++t) {
    const Tensor& tensor = unit.tensors[t];
    if (!tensor.tied_to.empty()) continue;
    uint64_t at = 0;
    for (size_t i = 0; i < unit.placed[t].segment; ++i)
      at += unit.segments[i].num_elems * dtype_bytes(unit.segments[i].master);
    const uint32_t size = dtype_bytes(tensor.dtype);
    at += unit.placed[t].offset_elems * size;
    RONDO_TRY(sink(full_name(unit, tensor), tensor, from + at, unit.placed[t].num_elems * size));
  }
  return {};
}

uint64_t unit_bytes(const UnitPlan& unit) {
  uint64_t bytes = 0;
  for (const Segment& s : unit.segments) bytes += s.num_elems * dtype_bytes(s.master);
  return bytes;
}

}  // namespace

Status export_full(Engine& engine, const Sink& sink) {
  const std::vector<UnitPlan>& units = engine.plan().units();
  HostCalls calls(engine.communicator(), engine.device());
  const bool first = engine.communicator().rank() == 0;
  uint64_t most = 1;
  for (const UnitPlan& unit : units) most = std::max(most, unit_bytes(unit));
  std::unique_ptr<std::byte[]> whole(first ? new (std::nothrow) std::byte[most] : nullptr);
  const bool room = !first || whole != nullptr;
  RONDO_TRY(calls.agree(room ? engine.settled()
                             : make_error(StatusCode::kSystem, "no memory for the whole of the largest unit")));
  const std::vector<Part> parts = engine.parts();
  for (size_t u = 0; u < units.size(); ++u) {
    RONDO_TRY(collect(engine, calls, parts, u, whole.get()));
    RONDO_TRY(calls.agree(first ? hand_out(units[u], whole.get(), sink) : Status()));
  }
  return {};
}

Status save_full(Engine& engine, const std::string& path) {
  HostCalls calls(engine.communicator(), engine.device());
  const bool first = engine.communicator().rank() == 0;
  Safetensors plain;
  plain.metadata["format"] = "pt";
  for (const UnitPlan& unit : engine.plan().units())
    for (const Tensor& t : unit.tensors) {
      if (t.tied_to.empty()) plain.tensors.push_back({full_name(unit, t), t.dtype, t.shape});
      else plain.metadata[full_name(unit, t)] = full_name(unit, unit.tensors[first_of_tied(unit, t)]);
    }
  std::unique_ptr<WholeFile> file;
  auto open = [&]() -> Status {
    RONDO_TRY(check_names(engine.plan()));
    RONDO_TRY_ASSIGN(const std::string header, encode_safetensors(&plain));
    if (!first) return {};
    RONDO_TRY_ASSIGN(WholeFile created, WholeFile::create(path));
    file = std::make_unique<WholeFile>(std::move(created));
    return file->write_at(0, header.data(), header.size());
  };
  RONDO_TRY(calls.agree(open()));
  std::map<std::string, uint64_t> begin;
  for (const TensorEntry& t : plain.tensors) begin[t.name] = t.begin;
  RONDO_TRY(export_full(engine, [&](const std::string& name, const Tensor&, const void* data, uint64_t size_bytes) {
    return file->write_at(begin.at(name), data, size_bytes);
  }));
  return calls.agree(first ? file->finish() : Status());
}

}  // namespace rondo::fsdp

#include "trace/read_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "base/codec.h"

namespace rondo {
namespace {

// From the clock's zero to 146 years later: differences then fit into 64 bits with a margin.
bool can_be(const ClockPair& p, int64_t offset_ns) {
  constexpr int64_t kMost_ns = int64_t{1} << 62;
  const auto within = [](int64_t ns) { return ns >= 0 && ns < kMost_ns; };
  return within(p.monotonic_ns) && within(p.realtime_ns) && offset_ns > -kMost_ns && offset_ns < kMost_ns &&
         within(p.realtime_ns + offset_ns);
}

// Checks a record's references: the plan, its instruction, times that do not overflow.
const char* fault_of(const TraceFile& file, const StepRecord& r) {
  if (r.plan >= file.plans.size()) return "refers to a missing plan";
  const auto& lanes = file.plans[r.plan].lanes;
  switch (static_cast<RecordKind>(r.kind)) {
    case RecordKind::kStep:
      if (lanes.empty()) return nullptr;
      if (r.lane >= lanes.size() || r.pc >= lanes[r.lane].size()) return "refers to a missing instruction";
      return r.done_ticks() < r.begin_ticks ? "ends before it begins" : nullptr;
    case RecordKind::kPorts:
      return std::bit_cast<StepPorts>(r).count > StepPorts::kPorts ? "counts more ports than it holds" : nullptr;
    case RecordKind::kUnused: break;
  }
  return "has an unknown kind";
}

Status damaged(const Decoder& r, std::string_view what) {
  return Status(StatusCode::kInvalidArgument, fmt::format("{} (at byte {})", what, r.position()));
}

std::string system_error(const std::string& path, std::string_view what) {
  return fmt::format("{}: {}: {}", path, what, std::strerror(errno));
}

}  // namespace

std::optional<uint32_t> message_number(const TraceFile& file, size_t index, size_t port) {
  const std::vector<StepRecord>& records = file.records;
  const StepRecord& r = records[index];
  const TracedInstruction* i = file.instruction(r);
  if (i == nullptr || port >= i->recv.size() + i->send.size()) return std::nullopt;
  if (port == 0 && !i->recv.empty()) return r.recv_step;
  if (port == i->recv.size()) return r.send_step;
  const size_t further = port - (i->recv.empty() ? 0 : 1) - (port > i->recv.size() ? 1 : 0);
  for (size_t k = index + 1; k < records.size() && records[k].kind == static_cast<uint64_t>(RecordKind::kPorts); ++k) {
    const auto p = std::bit_cast<StepPorts>(records[k]);
    if (further >= p.first && further < p.first + p.count) return p.steps[further - p.first];
  }
  return std::nullopt;
}

Expected<TraceFile> decode_trace(std::string_view bytes) {
  Decoder r(bytes);
  TraceFile file;
  TraceLayout h;
  header_fields(r, file, h);
  const std::string_view magic(h.magic, sizeof h.magic);
  const TraceIdentity& who = file.identity;
  if (!r.ok() || magic != kTraceMagic) return damaged(r, "is not a trace of rondo");
  if (h.record_bytes != sizeof(StepRecord)) return damaged(r, "has records of another version");
  if (who.nranks < 1 || who.rank < 0 || who.rank >= who.nranks) return damaged(r, "has an impossible rank");
  if (!can_be(file.start, file.clock_offset_ns) || !can_be(file.end, file.clock_offset_ns))
    return damaged(r, "has an impossible clock");
  if (r(file.host, file.why, file.plans); !r.ok()) return damaged(r, "ends, or is damaged, within its plans");
  if (r(file.spans, file.spans_lost); !r.ok()) return damaged(r, "ends, or is damaged, within its spans");
  for (size_t i = 0; i < file.spans.size(); ++i)
    if (file.spans[i].end < file.spans[i].begin)
      return damaged(r, fmt::format("has a span that ends before it begins: {}", i));
  if (h.num_records > file.num_written || r.left() % sizeof(StepRecord) != 0 ||
      r.left() / sizeof(StepRecord) != h.num_records)
    return damaged(r, fmt::format("has {} bytes of records instead of {} records", r.left(), h.num_records));
  file.records.resize(h.num_records);
  const std::string_view raw = r.raw(r.left());
  if (!raw.empty()) std::memcpy(static_cast<void*>(file.records.data()), raw.data(), raw.size());
  for (size_t i = 0; i < file.records.size(); ++i)
    if (const char* fault = fault_of(file, file.records[i])) return damaged(r, fmt::format("record {} {}", i, fault));
  return file;
}

Expected<TraceFile> read_trace(const std::string& path) {
  std::FILE* f = std::fopen(path.c_str(), "rb");
  if (f == nullptr) return Status(StatusCode::kSystem, system_error(path, "cannot be opened"));
  std::string bytes;
  char buffer[1 << 16];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, f)) > 0;) bytes.append(buffer, n);
  const bool failed = std::ferror(f) != 0;
  std::fclose(f);
  if (failed) return Status(StatusCode::kSystem, system_error(path, "cannot be read"));
  auto file = decode_trace(bytes);
  if (!file.ok()) return Status(file.status().code(), fmt::format("{} {}", path, file.status().message()));
  return file;
}

Expected<std::vector<TraceFile>> read_traces(const std::string& path) {
  std::vector<std::string> paths;
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    paths.push_back(path);
  } else {
    for (std::filesystem::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
      if (it->path().extension() == kTraceSuffix) paths.push_back(it->path().string());
    if (error) return Status(StatusCode::kSystem, fmt::format("{}: {}", path, error.message()));
  }
  if (paths.empty())
    return Status(StatusCode::kInvalidArgument, fmt::format("{} holds no *{} file", path, kTraceSuffix));
  std::vector<TraceFile> files;
  for (const std::string& p : paths) {
    RONDO_TRY_ASSIGN(TraceFile file, read_trace(p));
    files.push_back(std::move(file));
  }
  std::sort(files.begin(), files.end(), [](const TraceFile& a, const TraceFile& b) {
    return std::tuple(a.identity.communicator, a.identity.rank, a.start.monotonic_ns) <
           std::tuple(b.identity.communicator, b.identity.rank, b.start.monotonic_ns);
  });
  return files;
}

}  // namespace rondo

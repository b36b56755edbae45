#include "trace/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "base/codec.h"
#include "base/new_file.h"

namespace rondo {

template <class C>
void fields(C& c, TracedConnection& t) {
  c(t.writer, t.reader, t.tag, t.group, t.form);
}

template <class C>
void fields(C& c, TracedInstruction& i) {
  c(i.verb, i.flags, i.src_buffer, i.dst_buffer, i.src_chunk, i.dst_chunk, i.recv, i.send, i.recv_peers, i.send_peers);
  if constexpr (C::kDecodes)
    if (verb_name(i.verb) == "?" || i.src_buffer > Buffer::kScratch || i.dst_buffer > Buffer::kScratch) {
      i = {};  // no value that is none of its type
      c.fail();
    }
}

template <class C>
void fields(C& c, TracedPlan& p) {
  uint64_t shape = p.shape.packed(), count_elems = p.shape.count_elems;
  c(shape, count_elems);
  if constexpr (C::kDecodes) p.shape = OperationShape::unpack(shape, count_elems);
  c(p.algorithm, p.protocol, p.reason, p.loop_elems, p.num_loops, p.lanes);
  if constexpr (C::kDecodes)
    if (static_cast<int>(p.shape.collective) >= kNumCollectives || static_cast<int>(p.shape.dtype) >= kNumDtypes ||
        static_cast<int>(p.shape.op) >= kNumOps || p.shape.row >= kNumRows)
      c.fail();
}

template <class C>
void fields(C& c, TraceSpan& s) {
  c(s.track, s.name, s.begin, s.end);
}

namespace {

struct Header {
  char magic[8];
  uint32_t record_bytes;
  int32_t rank, nranks;
  uint32_t reserved;
  uint64_t communicator;
  int64_t pid, clock_offset_ns;
  ClockPair start, end;
  uint64_t num_written, num_records;
};

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

std::string first_line(const char* path) {
  std::string text;
  if (std::FILE* f = std::fopen(path, "r")) {
    char line[128] = {};
    if (std::fgets(line, sizeof line, f) != nullptr) text.assign(line, std::strcspn(line, "\n"));
    std::fclose(f);
  }
  return text;
}

}  // namespace

std::string this_host() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return fmt::format("{} {}", name, first_line("/proc/sys/kernel/random/boot_id"));
}

std::optional<uint32_t> TraceFile::message_number(size_t index, size_t port) const {
  const StepRecord& r = records[index];
  const TracedInstruction* i = instruction(r);
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

std::string encode_trace_head(const TraceFile& head, uint64_t num_records) {
  Header h{};
  std::memcpy(h.magic, kTraceMagic.data(), sizeof h.magic);
  h.record_bytes = sizeof(StepRecord);
  h.rank = head.identity.rank;
  h.nranks = head.identity.nranks;
  h.communicator = head.identity.communicator;
  h.pid = head.pid;
  h.clock_offset_ns = head.clock_offset_ns;
  h.start = head.start;
  h.end = head.end;
  h.num_written = head.num_written;
  h.num_records = num_records;
  Encoder e;
  e.packed(h);
  e(head.host, head.why, head.plans, head.spans, head.spans_lost);
  return e.take();
}

Expected<TraceFile> decode_trace(std::string_view bytes) {
  Decoder r(bytes);
  Header h{};
  r.packed(h);
  const std::string_view magic(h.magic, sizeof h.magic);
  if (!r.ok() || magic != kTraceMagic) return damaged(r, "is not a trace of rondo");
  if (h.record_bytes != sizeof(StepRecord)) return damaged(r, "has records of another version");
  if (h.nranks < 1 || h.rank < 0 || h.rank >= h.nranks) return damaged(r, "has an impossible rank");
  if (!can_be(h.start, h.clock_offset_ns) || !can_be(h.end, h.clock_offset_ns))
    return damaged(r, "has an impossible clock");
  TraceFile file;
  file.identity = {h.communicator, h.rank, h.nranks};
  file.pid = h.pid;
  file.clock_offset_ns = h.clock_offset_ns;
  file.start = h.start;
  file.end = h.end;
  file.num_written = h.num_written;
  if (r(file.host, file.why, file.plans); !r.ok()) return damaged(r, "ends, or is damaged, within its plans");
  if (r(file.spans, file.spans_lost); !r.ok()) return damaged(r, "ends, or is damaged, within its spans");
  for (size_t i = 0; i < file.spans.size(); ++i)
    if (file.spans[i].end < file.spans[i].begin)
      return damaged(r, fmt::format("has a span that ends before it begins: {}", i));
  if (h.num_records > h.num_written || r.left() % sizeof(StepRecord) != 0 ||
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

Status write_file(const std::string& path, std::span<const std::string_view> pieces) {
  std::error_code error;
  if (const auto directory = std::filesystem::path(path).parent_path(); !directory.empty()) {
    std::filesystem::create_directories(directory, error);
    if (error)
      return Status(StatusCode::kSystem, fmt::format("{}: cannot be created: {}", directory.string(), error.message()));
  }
  return write_whole_file(path, pieces);
}

}  // namespace rondo

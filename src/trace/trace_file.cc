#include "trace/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "base/byte_stream.h"
#include "base/new_file.h"

namespace rondo {
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

void put(ByteWriter& w, const TracedConnection& c) {
  w.put(c.writer);
  w.put(c.reader);
  w.put(c.tag);
  w.put(c.group);
  w.put(c.form);
}
constexpr size_t kConnectionBytes = 13;

template <class T, class PutOne>
void put_list(ByteWriter& w, const std::vector<T>& list, PutOne put_one) {
  w.put(static_cast<uint32_t>(list.size()));
  for (const T& x : list) put_one(x);
}

void put(ByteWriter& w, const TracedInstruction& i) {
  w.put(i.verb);
  w.put(i.flags);
  w.put(i.src_buffer);
  w.put(i.dst_buffer);
  w.put(i.src_chunk);
  w.put(i.dst_chunk);
  put_list(w, i.recv, [&](const TracedConnection& c) { put(w, c); });
  put_list(w, i.send, [&](const TracedConnection& c) { put(w, c); });
  put_list(w, i.recv_peers, [&](int32_t r) { w.put(r); });
  put_list(w, i.send_peers, [&](int32_t r) { w.put(r); });
}

void put(ByteWriter& w, const TracedPlan& p) {
  w.put(p.shape.packed());
  w.put(p.shape.count_elems);
  w.put_text(p.algorithm);
  w.put_text(p.protocol);
  w.put_text(p.reason);
  w.put(p.loop_elems);
  w.put(p.num_loops);
  put_list(w, p.lanes, [&](const std::vector<TracedInstruction>& lane) {
    put_list(w, lane, [&](const TracedInstruction& i) { put(w, i); });
  });
}

std::vector<TracedConnection> get_connections(ByteReader& r) {
  std::vector<TracedConnection> list(r.get_count(kConnectionBytes));
  for (TracedConnection& c : list) {
    c.writer = r.get<int32_t>();
    c.reader = r.get<int32_t>();
    c.tag = r.get<uint16_t>();
    c.group = r.get<uint16_t>();
    c.form = r.get<uint8_t>();
  }
  return list;
}

std::vector<int32_t> get_ranks(ByteReader& r) {
  std::vector<int32_t> list(r.get_count(sizeof(int32_t)));
  for (int32_t& rank : list) rank = r.get<int32_t>();
  return list;
}

Buffer get_buffer(ByteReader& r) {
  const auto b = r.get<uint8_t>();
  if (b > static_cast<uint8_t>(Buffer::kScratch)) r.fail();
  return r.ok() ? static_cast<Buffer>(b) : Buffer::kIn;
}

TracedInstruction get_instruction(ByteReader& r) {
  TracedInstruction i;
  i.verb = static_cast<Verb>(r.get<uint8_t>());
  if (verb_name(i.verb) == "?") r.fail();
  i.flags = r.get<uint8_t>();
  i.src_buffer = get_buffer(r);
  i.dst_buffer = get_buffer(r);
  i.src_chunk = r.get<int32_t>();
  i.dst_chunk = r.get<int32_t>();
  i.recv = get_connections(r);
  i.send = get_connections(r);
  i.recv_peers = get_ranks(r);
  i.send_peers = get_ranks(r);
  return i;
}

TracedPlan get_plan(ByteReader& r) {
  TracedPlan p;
  const auto packed = r.get<uint64_t>();
  p.shape = OperationShape::unpack(packed, r.get<uint64_t>());
  if (static_cast<int>(p.shape.collective) >= kNumCollectives || static_cast<int>(p.shape.dtype) >= kNumDtypes ||
      static_cast<int>(p.shape.op) >= kNumOps || p.shape.row >= kNumRows)
    r.fail();
  p.algorithm = r.get_text();
  p.protocol = r.get_text();
  p.reason = r.get_text();
  p.loop_elems = r.get<uint64_t>();
  p.num_loops = r.get<uint64_t>();
  p.lanes.resize(r.get_count(sizeof(uint32_t)));
  for (auto& lane : p.lanes) {
    const size_t num_instructions = r.get_count(28);  // an instruction without ports
    for (size_t i = 0; i < num_instructions && r.ok(); ++i) lane.push_back(get_instruction(r));
  }
  return p;
}

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

Status damaged(const ByteReader& r, std::string_view what) {
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
  ByteWriter w;
  w.put(h);
  w.put_text(head.host);
  w.put_text(head.why);
  put_list(w, head.plans, [&](const TracedPlan& p) { put(w, p); });
  put_list(w, head.spans, [&](const TraceSpan& s) {
    w.put_text(s.track);
    w.put_text(s.name);
    w.put(s.begin);
    w.put(s.end);
  });
  w.put(head.spans_lost);
  return w.take();
}

Expected<TraceFile> decode_trace(std::string_view bytes) {
  ByteReader r(bytes);
  const auto h = r.get<Header>();
  const std::string_view magic(h.magic, sizeof h.magic);
  if (!r.ok() || (magic != kTraceMagic && magic != kTraceMagicWithoutSpans))
    return damaged(r, "is not a trace of rondo");
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
  file.host = r.get_text();
  file.why = r.get_text();
  const size_t num_plans = r.get_count(36);  // a plan of no lanes
  for (size_t i = 0; i < num_plans && r.ok(); ++i) file.plans.push_back(get_plan(r));
  if (!r.ok()) return damaged(r, "ends, or is damaged, within its plans");
  const size_t num_spans = magic == kTraceMagic ? r.get_count(24) : 0;  // without texts
  for (size_t i = 0; i < num_spans && r.ok(); ++i) {
    TraceSpan& s = file.spans.emplace_back();
    s.track = r.get_text();
    s.name = r.get_text();
    s.begin = r.get<uint64_t>();
    s.end = r.get<uint64_t>();
    if (s.end < s.begin) return damaged(r, fmt::format("has a span that ends before it begins: {}", i));
  }
  if (magic == kTraceMagic) file.spans_lost = r.get<uint64_t>();
  if (!r.ok()) return damaged(r, "ends, or is damaged, within its spans");
  if (h.num_records > h.num_written || r.left() % sizeof(StepRecord) != 0 ||
      r.left() / sizeof(StepRecord) != h.num_records)
    return damaged(r, fmt::format("has {} bytes of records instead of {} records", r.left(), h.num_records));
  file.records.resize(h.num_records);
  const std::string_view raw = r.get_bytes(r.left());
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

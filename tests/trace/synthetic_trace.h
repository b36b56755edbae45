// Hand-made traces: two ranks that send to each other, with chosen times. Thread safety: values.
#pragma once

#include <cstdio>
#include <string>
#include <unistd.h>

#include <filesystem>

#include "trace/trace_file.h"

namespace rondo::testing {

/// A temporary folder of this test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "trace_test.XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Rank `rank` of two: lane 0 sends chunk 0 to the other rank, lane 1 receives and adds chunk 1 from it.
inline TracedPlan exchange_plan(int32_t rank) {
  const int32_t peer = 1 - rank;
  TracedPlan p;
  p.shape = {Collective::kAllReduce, Dtype::kFloat32, Op::kSum, 0, 1000};
  p.algorithm = "exchange";
  p.protocol = "simple";
  p.reason = "the \"only\" one";
  p.loop_elems = 500;
  p.num_loops = 2;
  TracedInstruction send, recv;
  send.verb = Verb::kSend;
  send.src_chunk = 0;
  send.send = {{rank, peer, 3, 0, false}};
  send.send_peers = {peer};
  recv.verb = Verb::kRecvReduceCopy;
  recv.src_chunk = recv.dst_chunk = 1;
  recv.dst_buffer = Buffer::kOut;
  recv.recv = {{peer, rank, 3, 0, false}};
  recv.recv_peers = {peer};
  p.lanes = {{send}, {recv}};
  return p;
}

struct StepTimes {
  uint64_t begin = 0, data = 0, room = 0, order = 0, work = 0;
};

inline StepRecord make_step(uint64_t sequence, uint16_t lane, uint32_t message, const StepTimes& t) {
  StepRecord r{};
  r.sequence = sequence;
  r.kind = static_cast<uint64_t>(RecordKind::kStep);
  r.lane = lane;
  r.begin_ticks = t.begin;
  r.wait_data_ticks = t.data;
  r.wait_room_ticks = t.room;
  r.wait_order_ticks = t.order;
  r.work_ticks = t.work;
  r.bytes_low = 2000;
  r.loop = message;
  (lane == 0 ? r.send_step : r.recv_step) = message;
  return r;
}

/// A tick is half a nanosecond; the trace lasts a millisecond.
inline TraceFile exchange_file(int32_t rank) {
  TraceFile f;
  f.identity = {0xc0ffee, rank, 2};
  f.pid = 4711 + rank;
  f.host = "node7 1234";
  f.start = {1'000'000, 5'000'000, 1'700'000'000'000'000'000};
  f.end = {3'000'000, 6'000'000, 1'700'000'000'001'000'000};
  f.plans = {exchange_plan(rank)};
  return f;
}

inline std::string encode(const TraceFile& f) {
  return encode_trace_head(f, f.records.size()) +
         std::string(reinterpret_cast<const char*>(f.records.data()), f.records.size() * sizeof(StepRecord));
}

/// The output of `write` to a file.
template <class Write>
std::string text_of(Write write) {
  std::FILE* file = std::tmpfile();
  write(file);
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  const size_t got = std::fread(text.data(), 1, text.size(), file);
  std::fclose(file);
  text.resize(got);
  return text;
}

}  // namespace rondo::testing

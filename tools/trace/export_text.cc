#include "trace/export_text.h"

#include "trace/export.h"
#include "trace/read_trace.h"

namespace rondo {
namespace {

constexpr std::string_view kBufferNames[] = {"in", "out", "scratch"};

// Lists only the first few ranks. An all-to-all of hundreds would make the output unreadable.
std::string ranks_text(const std::vector<int32_t>& ranks) {
  constexpr size_t kShown = 8;
  std::string text = "[";
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) text += fmt::format("{}{}", i != 0 ? "," : "", ranks[i]);
  return text + "]";
}

std::string chunk_member(std::string_view name, Buffer buffer, int32_t chunk) {
  if (chunk < 0) return "";
  return fmt::format(",\"{}\":\"{}[{}]\"", name, kBufferNames[static_cast<int>(buffer)], chunk);
}

std::string flag_names(uint8_t flags) {
  std::string text;
  auto add = [&](uint8_t flag, const char* name) {
    if ((flags & flag) != 0) text += text.empty() ? name : std::string(" ") + name;
  };
  add(kFlagFinal, "final");
  add(kFlagDirect, "direct");
  add(kFlagCredit, "credit");
  return text;
}

std::string port_members(const TraceFile& file, size_t index, const TracedInstruction& i) {
  std::string text;
  auto add = [&](const char* what, const std::vector<int32_t>& peers, const std::vector<TracedConnection>& connections,
                 size_t first_port) {
    if (peers.empty()) return;
    text += fmt::format(",\"{}_peers\":{},\"num_{}_peers\":{}", what, ranks_text(peers), what, peers.size());
    if (connections.empty()) return;
    text += fmt::format(",\"{}_tag\":{},\"{}_group\":{}", what, connections[0].tag, what, connections[0].group);
    if (const auto number = message_number(file, index, first_port))
      text += fmt::format(",\"{}_message\":{}", what, *number);
  };
  add("recv", i.recv_peers, i.recv, 0);
  add("send", i.send_peers, i.send, i.recv.size());
  return text;
}

}  // namespace

uint64_t operation_key(const TraceFile& file, const StepRecord& r) {
  const OperationShape& s = file.plans[r.plan].shape;
  if (!is_point_to_point(s.collective)) return r.sequence;
  return r.sequence | (uint64_t{1} + s.root) << 42 | uint64_t{is_matched(s)} << 41 |
         uint64_t{s.collective == Collective::kSend} << 40;
}

std::string shape_text(const OperationShape& s) {
  std::string text = fmt::format("{} of {} {}", collective_name(s.collective), s.count_elems, dtype_name(s.dtype));
  if (collective_reduces(s.collective)) text += fmt::format(" {}", op_name(s.op));
  return text;
}

std::string plan_members(const TracedPlan& plan) {
  const OperationShape& s = plan.shape;
  std::string text = fmt::format("\"operation\":\"{}\",\"count_elems\":{},\"dtype\":\"{}\"",
                                 collective_name(s.collective), s.count_elems, dtype_name(s.dtype));
  if (collective_reduces(s.collective)) text += fmt::format(",\"op\":\"{}\"", op_name(s.op));
  if (collective_is_rooted(s.collective)) text += fmt::format(",\"root\":{}", s.root);
  if (s.row != 0) {
    const TypeRow row = row_at(s.row, s.dtype);
    text += fmt::format(",\"wire\":\"{}\",\"accumulator\":\"{}\",\"output\":\"{}\"", dtype_name(row.wire),
                        dtype_name(row.accumulator), dtype_name(row.output));
  }
  return text + fmt::format(",\"algorithm\":{},\"protocol\":{},\"reason\":{},\"loops\":{}", json_quoted(plan.algorithm),
                            json_quoted(plan.protocol), json_quoted(plan.reason), plan.num_loops);
}

std::string step_members(const TraceFile& file, size_t index) {
  const StepRecord& r = file.records[index];
  std::string text =
      fmt::format("\"sequence\":{},\"channel\":{},\"lane\":{},\"step\":{},\"loop\":{},\"bytes\":{}",
                  uint64_t{r.sequence}, uint64_t{r.channel}, uint64_t{r.lane}, uint64_t{r.pc}, r.loop, r.bytes());
  const TracedPlan& plan = file.plans[r.plan];
  text += fmt::format(",\"plan\":{},\"operation\":\"{}\",\"algorithm\":{},\"protocol\":{}", uint64_t{r.plan},
                      collective_name(plan.shape.collective), json_quoted(plan.algorithm), json_quoted(plan.protocol));
  const TracedInstruction* i = file.instruction(r);
  if (i == nullptr) return text;
  text += fmt::format(",\"verb\":\"{}\"", verb_name(i->verb));
  if (i->flags != 0) text += fmt::format(",\"flags\":\"{}\"", flag_names(i->flags));
  text += chunk_member("src", i->src_buffer, i->src_chunk) + chunk_member("dst", i->dst_buffer, i->dst_chunk);
  return text + port_members(file, index, *i);
}

}  // namespace rondo

#include "device/engine/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace rondo {
namespace {

constexpr uint32_t align16(uint64_t bytes) { return static_cast<uint32_t>((bytes + 15) / 16 * 16); }

// The place of an end in the list of ends that a lane uses, in the order of first use.
uint16_t place_in(std::vector<uint16_t>& ends, uint16_t end) {
  const auto place = static_cast<size_t>(std::find(ends.begin(), ends.end(), end) - ends.begin());
  if (place == ends.size()) ends.push_back(end);
  return static_cast<uint16_t>(place);
}

class Lowering {
 public:
  Lowering(const Program& program, const DeviceShape& shape, PortIndex& ports)
      : p_(program), shape_(shape), ports_(ports) {}

  Expected<Lowered> run() {
    if (p_.lanes.size() > DeviceProgram::kMaxLanes)
      return unsupported("{} lanes: a device runs at most {}", p_.lanes.size(), DeviceProgram::kMaxLanes);
    RONDO_CHECK(shape_.num_channels >= 1);
    fill_header();
    fill_counts();
    for (size_t lane = 0; lane < p_.lanes.size(); ++lane) RONDO_TRY(add_lane(lane));
    h_.entry_steps = entry_steps(p_);
    return Lowered{flatten(), c_};
  }

 private:
  ConnectionForm form_of_step(const ProgramStep& s) const {
    return s.is(kFlagCredit) ? ConnectionForm::kLines : form_of(h_.protocol);
  }

  void fill_header() {
    h_.num_lanes = static_cast<uint32_t>(p_.lanes.size());
    h_.rank = static_cast<uint32_t>(p_.rank);
    h_.protocol = p_.protocol == Protocol::kInline ? shape_.short_messages : DeviceProtocol::kSimple;
    h_.row = p_.operation.row;
    for (int b = 0; b < 3; ++b) h_.elem_bytes[b] = static_cast<uint8_t>(p_.elem_bytes[b]);
    h_.wire_bytes = static_cast<uint8_t>(p_.wire_bytes);
    h_.own_type = static_cast<uint8_t>(p_.types.input);
    h_.wire_type = static_cast<uint8_t>(p_.types.wire);
    h_.out_type = static_cast<uint8_t>(p_.types.output);
    h_.premul = p_.premul;
    h_.direct = p_.direct;
    h_.divide_by = p_.divide_by;
    h_.scratch_like = p_.scratch_like_in ? Buffer::kIn : Buffer::kOut;
    h_.pushes = p_.pushes ? 1 : 0;
    h_.loop_elems = p_.loop_elems;
    if (!p_.direct && shape_.message_bytes != 0)
      h_.loop_elems = std::max<uint64_t>(1, shape_.message_bytes / p_.wire_bytes);
  }

  void fill_counts() {
    for (int b = 0; b < 2; ++b) {
      c_.base_elems[b] = p_.chunks[b].base_elems;
      c_.longer[b] = static_cast<uint32_t>(p_.chunks[b].longer);
    }
    c_.num_channels = shape_.num_channels;
    c_.fingerprint = p_.fingerprint;
    c_.pairwise = p_.pairwise ? 1 : 0;
    uint64_t longest = 0;  // longest share of a chunk; the first channel has it
    for (const ProgramLane& lane : p_.lanes)
      for (const ProgramStep& s : lane)
        longest = std::max(longest, channel_extent(s.src.num_elems, shape_.num_channels, 0, p_.wire_bytes).num_elems);
    // num_loops must be equal on all ranks. If none has data, p_.num_loops is 0, and none runs a step. Otherwise a
    // rank without data runs its credits.
    c_.num_loops =
        p_.num_loops == 0 ? 0 : std::max<uint64_t>(1, longest / h_.loop_elems + (longest % h_.loop_elems != 0));
    const uint64_t message = std::max<uint64_t>(1, std::min(longest, h_.loop_elems)) * p_.wire_bytes;
    if (!p_.direct) c_.lap_bytes = place_bytes(static_cast<uint32_t>(message)) * kRingMessages;
  }

  Status add_lane(size_t lane) {
    h_.lane_first[lane] = static_cast<uint32_t>(steps_.size());
    std::vector<uint16_t> reads, writes;  // its ends
    std::vector<uint16_t> index;          // for this lane's steps
    uint16_t most_recv = 0, most_send = 0;
    for (const ProgramStep& s : p_.lanes[lane]) {
      DeviceStep d = made_from(s);
      d.first_index = static_cast<uint32_t>(index.size());
      if (s.is(kFlagDirect)) {
        for (Rank r : s.recv_peers) index.push_back(static_cast<uint16_t>(r));
        for (Rank r : s.send_peers) index.push_back(static_cast<uint16_t>(r));
        d.num_recv = static_cast<uint16_t>(s.recv_peers.size());
        d.num_send = static_cast<uint16_t>(s.send_peers.size());
      } else {
        for (const ReadPort* r : s.recv) {
          RONDO_TRY_ASSIGN(const uint16_t at, ports_.reader(*r, form_of_step(s)));
          index.push_back(place_in(reads, at));
        }
        for (const WritePort* w : s.send) {
          RONDO_TRY_ASSIGN(const uint16_t at, ports_.writer(*w, form_of_step(s)));
          index.push_back(place_in(writes, at));
        }
        d.num_recv = static_cast<uint16_t>(s.recv.size());
        d.num_send = static_cast<uint16_t>(s.send.size());
      }
      most_recv = std::max(most_recv, d.num_recv);
      most_send = std::max(most_send, d.num_send);
      steps_.push_back(d);
    }
    h_.lane_first[lane + 1] = static_cast<uint32_t>(steps_.size());
    if (most_recv > DeviceProgram::kMaxLaneReads || most_send > DeviceProgram::kMaxLaneWrites)
      return unsupported(
          "a direct instruction reads from {} and writes to {} ranks: a "
          "block holds {} and {}",
          most_recv, most_send, DeviceProgram::kMaxLaneReads, DeviceProgram::kMaxLaneWrites);
    if (reads.size() > DeviceProgram::kMaxLaneReads || writes.size() > DeviceProgram::kMaxLaneWrites)
      return unsupported("a lane receives from {} and sends to {} connections: a block holds {} and {}", reads.size(),
                         writes.size(), DeviceProgram::kMaxLaneReads, DeviceProgram::kMaxLaneWrites);
    h_.lane_ends[lane] = static_cast<uint32_t>(index_.size());
    index_.push_back(static_cast<uint16_t>(reads.size()));
    index_.push_back(static_cast<uint16_t>(writes.size()));
    index_.insert(index_.end(), reads.begin(), reads.end());
    index_.insert(index_.end(), writes.begin(), writes.end());
    for (uint32_t i = h_.lane_first[lane]; i < h_.lane_first[lane + 1]; ++i)
      steps_[i].first_index += static_cast<uint32_t>(index_.size());
    index_.insert(index_.end(), index.begin(), index.end());
    return {};
  }

  DeviceStep made_from(const ProgramStep& s) {
    DeviceStep d{};
    d.verb = s.verb;
    d.flags = s.flags;
    d.src_buffer = static_cast<uint8_t>(s.src_buffer);
    d.dst_buffer = static_cast<uint8_t>(s.dst_buffer);
    d.bits = static_cast<uint8_t>((s.prescale ? kStepPrescale : 0) | (s.copies ? kStepCopies : 0) |
                                  (s.as_wire ? kStepAsWire : 0));
    if (s.verb == Verb::kWait) {
      d.wait_lane = static_cast<uint8_t>(s.wait_lane);
      d.wait_pc = s.wait_pc;
      h_.waits = 1;
    }
    d.src_position = s.src_position;
    d.src_chunk = chunk_number(s.src_chunk);
    d.dst_chunk = chunk_number(s.dst_chunk);
    return d;
  }

  static uint16_t chunk_number(int32_t chunk) {
    return chunk < 0 ? DeviceStep::kNoChunk : static_cast<uint16_t>(chunk);
  }

  std::vector<std::byte> flatten() {
    h_.steps_offset = sizeof(DeviceProgram);
    h_.index_offset = align16(h_.steps_offset + steps_.size() * sizeof(DeviceStep));
    h_.total_bytes = align16(h_.index_offset + index_.size() * sizeof(uint16_t));
    std::vector<std::byte> bytes(h_.total_bytes);
    std::memcpy(bytes.data(), &h_, sizeof h_);
    if (!steps_.empty()) std::memcpy(bytes.data() + h_.steps_offset, steps_.data(), steps_.size() * sizeof(DeviceStep));
    if (!index_.empty()) std::memcpy(bytes.data() + h_.index_offset, index_.data(), index_.size() * sizeof(uint16_t));
    return bytes;
  }

  const Program& p_;
  const DeviceShape& shape_;
  PortIndex& ports_;
  DeviceProgram h_{};
  DeviceCounts c_{};
  std::vector<DeviceStep> steps_;
  std::vector<uint16_t> index_;
};

// For a kernel an average is a sum that is divided, and premul_sum a sum with a scaled own operand.
std::string_view kernel_op(Op op) { return op_name(op == Op::kAvg || op == Op::kPremulSum ? Op::kSum : op); }

}  // namespace

uint8_t entry_steps(const Program& program) {
  if (!program.direct || program.lanes.size() != 1) return 0;
  const ProgramLane& lane = program.lanes[0];
  const auto read = std::find_if(lane.begin(), lane.end(), [](const ProgramStep& s) { return !s.recv.empty(); });
  const auto steps = read - lane.begin() + 1;
  const bool whole = read != lane.end() && read->is(kFlagCredit) &&
                     read->recv.size() + 1 == static_cast<size_t>(program.nranks) && steps <= UINT8_MAX;
  return whole ? static_cast<uint8_t>(steps) : 0;
}

Expected<Lowered> lower(const Program& program, const DeviceShape& shape, PortIndex& ports) {
  return Lowering(program, shape, ports).run();
}

std::string interpreter_name(const Program& program) {
  // Copies of one type are byte copies. Without a reduction the operator has no meaning.
  const bool reduces = collective_reduces(program.operation.collective);
  const std::string_view op = kernel_op(reduces ? program.operation.op : Op::kSum);
  if (program.mixed) return fmt::format("rondo_interpret_mixed_{}", op);
  if (!reduces) return "rondo_interpret_copy";
  return fmt::format("rondo_interpret_{}_{}", dtype_name(program.operation.dtype), op);
}
std::string reduce_name(Dtype dtype, Op op) {
  return fmt::format("rondo_reduce_{}_{}", dtype_name(dtype), kernel_op(op));
}
std::string reduce_mixed_name(Op op) { return fmt::format("rondo_reduce_mixed_{}", kernel_op(op)); }

}  // namespace rondo

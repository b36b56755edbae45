// Traced steps of the Executor. They execute the same steps and add a record for each. They are separate functions.
// Therefore the untraced path has only one additional, well predicted branch.
#include <bit>

#include "engine/executor.h"
#include "plan/describe_program.h"

namespace rondo {
namespace {

uint16_t plan_number(StepTrace& trace, const Program& p) {
  if (p.traced.trace != trace.serial()) [[unlikely]] p.traced = {trace.serial(), trace.add_plan(describe_program(p))};
  return p.traced.plan;
}

// The position of an instruction, and of its connections before it ran.
struct Before {
  const Program& program;
  const ProgramStep& step;
  uint32_t lane, pc;
  uint64_t loop;
  uint32_t recv_step, send_step;
};

Before look(const Program& p, const ProgramStep& s, uint32_t lane, uint64_t loop) {
  return {p, s, lane, static_cast<uint32_t>(&s - p.lanes[lane].data()), loop,
          s.recv.empty() ? 0 : static_cast<uint32_t>(s.recv[0]->fifo.step()),
          s.send.empty() ? 0 : static_cast<uint32_t>(s.send[0]->fifo.step())};
}

// All ports of an instruction have the same message. Therefore they advance by as many steps as the first port.
void add_further_ports(StepTrace& trace, const Before& b, const StepRecord& r) {
  const auto& [recv, send] = std::tie(b.step.recv, b.step.send);
  StepPorts ports{};
  ports.sequence = r.sequence;
  ports.plan = r.plan;
  ports.kind = static_cast<uint64_t>(RecordKind::kPorts);
  auto add = [&](uint64_t step_now, uint64_t steps_made) {
    ports.steps[ports.count++] = static_cast<uint32_t>(step_now - steps_made);
    if (ports.count < StepPorts::kPorts) return;
    trace.next() = std::bit_cast<StepRecord>(ports);
    ports.first += ports.count;
    ports.count = 0;
  };
  const uint32_t received = recv.empty() ? 0 : static_cast<uint32_t>(recv[0]->fifo.step()) - b.recv_step;
  const uint32_t sent = send.empty() ? 0 : static_cast<uint32_t>(send[0]->fifo.step()) - b.send_step;
  for (size_t i = 1; i < recv.size(); ++i) add(recv[i]->fifo.step(), received);
  for (size_t i = 1; i < send.size(); ++i) add(send[i]->fifo.step(), sent);
  if (ports.count != 0) trace.next() = std::bit_cast<StepRecord>(ports);
}

void record(StepTrace& trace, Operation& op, const Before& b, uint64_t ready_ticks) {
  const uint64_t done_ticks = ticks();
  const uint64_t bytes = b.program.window(b.step, b.loop).num_elems * b.program.wire_bytes;
  const StepRecord r{.sequence = op.sequence,
                     .plan = plan_number(trace, b.program),
                     .lane = b.lane,
                     .pc = b.pc,
                     .bytes_high = bytes >> 32,
                     .bytes_low = static_cast<uint32_t>(bytes),
                     .loop = static_cast<uint32_t>(b.loop),
                     .recv_step = b.recv_step,
                     .send_step = b.send_step};
  trace.add(r, op.waits[b.lane], ready_ticks, done_ticks);
  if (b.step.recv.size() > 1 || b.step.send.size() > 1) [[unlikely]] add_further_ports(trace, b, r);
}

}  // namespace

bool Executor::step_traced(Operation& op, uint32_t lane) {
  const LaneState at = op.lanes[lane];
  const ProgramStep& s = op.program->lanes[lane][at.pc];
  const Before before = look(*op.program, s, lane, at.loop);
  const bool empty = s.verb != Verb::kWait && op.program->window(s, at.loop).steps == 0;
  const uint64_t ready_ticks = ticks();
  if (!step_lane(op, lane)) {
    op.waits[lane].blocked(blocked_by_, ready_ticks);
    return false;
  }
  if (!empty) record(*trace_, op, before, ready_ticks);
  return true;
}

bool Executor::step_once_traced(Operation& op, const OnceStep& step) {
  const Before before = look(*op.program, *step.step, step.lane, 0);
  // Reading the ticks costs as much as the rest of a record. An instruction that follows directly begins at the end of
  // the previous one.
  LaneWait& wait = op.waits[step.lane];
  const uint64_t last_ticks = wait.reason == WaitReason::kNone ? trace_->last_ticks() : 0;
  const uint64_t ready_ticks = last_ticks != 0 ? last_ticks : ticks();
  if (!step_once(op, step)) {
    wait.blocked(blocked_by_, ready_ticks);
    return false;
  }
  record(*trace_, op, before, ready_ticks);
  return true;
}

}  // namespace rondo

#include "plan/describe_program.h"

#include <fmt/format.h>

#include "algorithms/registry.h"

namespace rondo {
namespace {

TracedConnection connection_of(const ConnectionKey& k) {
  return {k.writer, k.reader, k.tag, k.group, static_cast<uint8_t>(k.inline_only)};
}

TracedInstruction describe_step(const ProgramStep& s) {
  TracedInstruction i;
  i.verb = s.verb;
  i.flags = s.flags;
  i.src_buffer = s.src_buffer;
  i.dst_buffer = s.dst_buffer;
  i.src_chunk = s.src_chunk;
  i.dst_chunk = s.dst_chunk;
  for (const ReadPort* r : s.recv) i.recv.push_back(connection_of(r->key));
  for (const WritePort* w : s.send) i.send.push_back(connection_of(w->key));
  i.recv_peers.assign(s.recv_peers.begin(), s.recv_peers.end());
  i.send_peers.assign(s.send_peers.begin(), s.send_peers.end());
  return i;
}

}  // namespace

std::string algorithm_name(const OperationShape& s) {
  if (is_point_to_point(s.collective)) return is_matched(s) ? "matched message" : "message";
  const auto all = all_algorithms();
  return s.algorithm < all.size() ? std::string(all[s.algorithm].name) : fmt::format("algorithm {}", s.algorithm);
}

TracedPlan describe_program(const Program& p) {
  TracedPlan t;
  t.shape = p.operation;
  t.algorithm = algorithm_name(p.operation);
  t.protocol = protocol_name(p.protocol);
  t.reason = p.reason;
  t.loop_elems = p.loop_elems;
  t.num_loops = p.num_loops;
  for (const ProgramLane& lane : p.lanes) {
    t.lanes.emplace_back();
    for (const ProgramStep& s : lane) t.lanes.back().push_back(describe_step(s));
  }
  return t;
}

}  // namespace rondo

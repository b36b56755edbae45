// One collective call on emulated devices: programs of all ranks, their buffers, the launch, and the check of every
// byte (conformance/case_runner.h).
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "conformance/case_runner.h"
#include "conformance/data_tables.h"
#include "support/emulated_device.h"

namespace rondo::testing {

constexpr DeviceProtocol kProtocols[] = {DeviceProtocol::kSimple, DeviceProtocol::kLl, DeviceProtocol::kLl128};
constexpr Dtype kFloat[] = {Dtype::kFloat32};
constexpr Op kSumOp[] = {Op::kSum};

inline Case case_of(Collective collective, const char* algorithm, uint64_t count) {
  Case c;
  c.collective = collective;
  c.algorithm = find_algorithm(collective, algorithm);
  RONDO_CHECK(c.algorithm != nullptr);
  c.count_elems = count;
  return c;
}

/// The place of the results, the root and the data change with `turn`.
inline Case varied_case(const Algorithm& a, uint64_t count, uint32_t turn, int nranks) {
  Case c;
  c.collective = a.collective;
  c.algorithm = &a;
  c.count_elems = count;
  c.in_place = turn % 2 == 1;
  c.root = static_cast<Rank>(turn % static_cast<uint32_t>(nranks));
  c.variant = turn % 4;
  return c;
}

inline const char* protocol_text(DeviceProtocol p) {
  return p == DeviceProtocol::kSimple ? "simple" : p == DeviceProtocol::kLl ? "LL" : "LL128";
}

/// Rings in place of slots for about half of all connections, multicasts too. An instruction then has ports of both
/// kinds.
inline bool half_have_rings(const ConnectionKey& key) {
  return (key.writer + key.reader + key.tag + key.group) % 2 == 0;
}
/// For connections between hosts, as on devices.
inline std::function<bool(const ConnectionKey&)> rings_between(const HostLayout& hosts) {
  return [hosts](const ConnectionKey& key) {
    return key.group == kUnicast ? !hosts.same_host(key.writer, key.reader)
                                 : key.group != kGroupHost && !hosts.one_host();
  };
}

/// How a case runs.
struct EmulatedRun {
  DeviceProtocol protocol = DeviceProtocol::kSimple;
  uint32_t channels = 1;
  uint64_t message_bytes = 512;
  const Algorithm* fallback = nullptr;  // for a direct case
  DeviceProtocol fallback_protocol = DeviceProtocol::kSimple;
  const HostLayout* hosts = nullptr;  // of the schedule; nullptr: one host
};

/// A case with the memory of all ranks. `calls(devices)` returns one call for each rank.
class EmulatedCase {
 public:
  EmulatedCase(EmulatedDevices& devices, const DataTables& tables, const Case& c, const EmulatedRun& run)
      : case_(c), run_(run) {
    const int nranks = tables.nranks();
    const uint64_t bytes = std::max(in_elems(c, nranks), out_elems(c, nranks)) * dtype_bytes(c.dtype);
    const uint64_t area = CallBuffers::area_bytes(bytes);
    memory_.resize(static_cast<size_t>(nranks) * 2 * area);
    for (Rank r = 0; r < nranks; ++r) {
      uint8_t* areas = memory_.data() + static_cast<size_t>(r) * 2 * area;
      buffers_.emplace_back(&tables, r, areas, areas + area);
      buffers_.back().begin(c);
      LaunchCall call = devices.call(program_of(devices, *c.algorithm, run.protocol, r, nranks));
      if (run.fallback != nullptr && nranks > 1) {
        const EmulatedProgram other = program_of(devices, *run.fallback, run.fallback_protocol, r, nranks);
        call.other = {other.program, other.counts};
        call.scratch = devices.call(other).scratch;
      }
      call.in = static_cast<const std::byte*>(buffers_.back().in());
      call.out = static_cast<std::byte*>(buffers_.back().out());
      if (call.program->premul) {
        const uint64_t scale = premul_scale(tables.spec(c.dtype, c.op), r);
        std::memcpy(call.premul, &scale, sizeof scale);
      }
      calls_.push_back(call);
    }
    kernel_ = devices.kernel_name();
  }

  std::vector<LaunchCall>& calls() { return calls_; }
  const std::string& kernel() const { return kernel_; }
  /// A rank's output; empty if it has none.
  std::span<const std::byte> out(Rank r) const {
    const auto* at = static_cast<const std::byte*>(buffers_[static_cast<size_t>(r)].out());
    if (at == nullptr) return {};
    return {at, out_elems(case_, static_cast<int>(buffers_.size())) * dtype_bytes(case_.dtype)};
  }
  /// Returns false and fails the test if anything is wrong.
  bool judge() {
    for (size_t r = 0; r < buffers_.size(); ++r) {
      const std::string wrong = buffers_[r].judge();
      if (wrong.empty()) continue;
      ADD_FAILURE() << text() << ": rank " << r << ": " << wrong;
      return false;
    }
    return true;
  }
  std::string text() const {
    return describe(case_) + ", " + std::to_string(buffers_.size()) + " ranks, " + protocol_text(run_.protocol) + ", " +
           std::to_string(run_.channels) + " channels, " + std::to_string(run_.message_bytes) + " B a message";
  }

 private:
  EmulatedProgram program_of(EmulatedDevices& devices, const Algorithm& algorithm, DeviceProtocol protocol, Rank r,
                             int nranks) const {
    const Case& c = case_;
    ProgramShape shape;
    shape.operation = {c.collective,
                       c.dtype,
                       collective_reduces(c.collective) ? c.op : Op::kSum,
                       algorithm_index(algorithm),
                       c.count_elems,
                       static_cast<uint16_t>(c.root),
                       0,
                       false};
    shape.direct = algorithm.direct && nranks > 1;
    shape.pushes = shape.direct && algorithm.name == "direct" && c.collective != Collective::kReduceScatter;
    shape.protocol = protocol == DeviceProtocol::kSimple || shape.direct ? Protocol::kSimple : Protocol::kInline;
    DeviceShape device;
    device.num_channels = run_.channels;
    device.short_messages = protocol;
    device.message_bytes = run_.message_bytes;
    const Rank root = collective_is_rooted(c.collective) ? c.root : 0;
    const HostLayout hosts = run_.hosts != nullptr ? *run_.hosts : HostLayout(nranks);
    return devices.program(record_rank(algorithm, r, hosts, root), shape, device);
  }

  Case case_;
  EmulatedRun run_;
  std::vector<uint8_t> memory_;
  std::vector<CallBuffers> buffers_;
  std::vector<LaunchCall> calls_;
  std::string kernel_;
};

/// One unit for every rank with these cases, one call after the other.
inline EmulatedUnits one_unit(const std::vector<EmulatedCase*>& cases) {
  EmulatedUnits units(cases[0]->calls().size());
  for (size_t r = 0; r < units.size(); ++r) {
    units[r].emplace_back();
    for (EmulatedCase* c : cases) units[r][0].push_back(c->calls()[r]);
  }
  return units;
}

/// Empty if no rank has given up.
inline std::string failures(EmulatedDevices& devices, int nranks) {
  std::string text;
  for (Rank r = 0; r < nranks; ++r) {
    const DeviceControl& c = devices.control(r);
    if (c.failed != 0)
      text += "rank " + std::to_string(r) + ": failure " + std::to_string(c.failed) + " at call " +
              std::to_string(c.call) + ", lane " + std::to_string(c.lane) + ", pc " + std::to_string(c.pc) + ", peer " +
              std::to_string(c.peer) + "; ";
  }
  return text;
}

}  // namespace rondo::testing

#include "support/emulated_device.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "protocol/ll.h"
#include "protocol/ll128.h"
#include "support/host_kernels/host_kernels.h"

namespace rondo::testing {

struct EmulatedDevices::RankState {
  RankState(Rank rank, const std::shared_ptr<InprocWorld>& world) : transport(rank, world), ports(rank, transport) {}
  InprocTransport transport;
  PortTable ports;
  DeviceComm comm{};
  DeviceControl control{};
  std::vector<DeviceWriteEnd> writes;
  std::vector<DeviceReadEnd> reads;
  std::vector<PeerBuffers> peers;
  std::vector<LaneProgress> lanes;
  std::vector<uint64_t> meetings;
  std::map<std::vector<int64_t>, uint16_t> read_index, write_index;
  std::deque<std::vector<uint32_t>> readers;  // of the writing ends
};

namespace {

std::vector<int64_t> name_of(const ConnectionKey& key, ConnectionForm form) {
  return {key.writer, key.reader, key.tag, key.group, static_cast<int64_t>(form)};
}

}  // namespace

// Places the rank's ends in the order of their requests.
class EmulatedDevices::Index final : public PortIndex {
 public:
  Index(EmulatedDevices& all, RankState& rank) : all_(all), rank_(rank) {}

  Expected<uint16_t> reader(const ReadPort& port, ConnectionForm form) override {
    form = all_.form_of(port.key, form);
    const auto [it, made] = rank_.read_index.try_emplace(name_of(port.key, form), rank_.read_index.size());
    if (!made) return it->second;
    const Connection& c = all_.connection(port.key, form);
    for (uint32_t channel = 0; channel < all_.shape_.max_channels; ++channel) {
      DeviceReadEnd& e = rank_.reads[channel * kMaxEnds + it->second];
      e.view = c.views[channel];
      e.slot_bytes = c.slot_bytes;
      e.counter = rank_.transport.counter_index(port.key, static_cast<Rank>(rank_.comm.rank));
      e.step = all_.shape_.first_step;
      e.peer = port.key.writer;
    }
    return it->second;
  }
  Expected<uint16_t> writer(const WritePort& port, ConnectionForm form) override {
    form = all_.form_of(port.key, form);
    const auto [it, made] = rank_.write_index.try_emplace(name_of(port.key, form), rank_.write_index.size());
    if (!made) return it->second;
    const Connection& c = all_.connection(port.key, form);
    rank_.readers.push_back(port.counters);
    for (uint32_t channel = 0; channel < all_.shape_.max_channels; ++channel) {
      DeviceWriteEnd& e = rank_.writes[channel * kMaxEnds + it->second];
      e.view = c.views[channel];
      e.slot_bytes = c.slot_bytes;
      e.num_readers = static_cast<uint32_t>(rank_.readers.back().size());
      e.readers = rank_.readers.back().data();
      e.step = all_.shape_.first_step;
    }
    return it->second;
  }

 private:
  EmulatedDevices& all_;
  RankState& rank_;
};

EmulatedDevices::EmulatedDevices(const EmulatedShape& shape) : shape_(shape) {
  auto world = InprocWorld::create(shape.nranks);
  RONDO_CHECK(world.ok());
  world_ = *world;
  for (Rank r = 0; r < shape.nranks; ++r) {
    auto rank = std::make_unique<RankState>(r, world_);
    rank->writes.resize(uint64_t{shape.max_channels} * kMaxEnds);
    rank->reads.resize(uint64_t{shape.max_channels} * kMaxEnds);
    rank->peers.resize(shape.max_channels * static_cast<uint32_t>(shape.nranks));
    rank->lanes.resize(shape.max_channels * DeviceProgram::kMaxLanes);
    rank->meetings.resize(shape.max_channels * 8);
    DeviceComm& c = rank->comm;
    c.rank = static_cast<uint32_t>(r);
    c.num_ranks = static_cast<uint32_t>(shape.nranks);
    c.max_channels = shape.max_channels;
    c.write_stride = c.read_stride = kMaxEnds;
    c.writes = rank->writes.data();
    c.reads = rank->reads.data();
    c.peers = rank->peers.data();
    c.lanes = rank->lanes.data();
    c.meetings = rank->meetings.data();
    ranks_.push_back(std::move(rank));
  }
}

EmulatedDevices::~EmulatedDevices() = default;

DeviceControl& EmulatedDevices::control(Rank rank) { return ranks_[static_cast<size_t>(rank)]->control; }
DeviceComm& EmulatedDevices::comm(Rank rank) { return ranks_[static_cast<size_t>(rank)]->comm; }

ConnectionForm EmulatedDevices::form_of(const ConnectionKey& key, ConnectionForm form) const {
  const bool ring = shape_.has_ring != nullptr && shape_.has_ring(key) && !DeviceLayout::has_lines(form);
  return ring ? ConnectionForm::kRing : form;
}

EmulatedDevices::Connection& EmulatedDevices::connection(const ConnectionKey& key, ConnectionForm form) {
  const auto [it, made] = connections_.try_emplace(name_of(key, form));
  Connection& c = it->second;
  if (!made) return c;
  const uint32_t counters = static_cast<uint32_t>(shape_.nranks) + 1, lines = shape_.num_lines;
  if (form == ConnectionForm::kWords)
    c.slot_bytes = static_cast<uint32_t>(ll_lines(shape_.max_message_bytes) * kLlLineBytes);
  if (form == ConnectionForm::kWideLines)
    c.slot_bytes = static_cast<uint32_t>(ll128_lines(shape_.max_message_bytes) * kLl128LineBytes);
  for (uint32_t channel = 0; channel < shape_.max_channels; ++channel) {
    FifoView v;
    v.num_lines = lines;
    v.counters = reinterpret_cast<ReadCounter*>(memory_.emplace_back(counters * sizeof(ReadCounter)).data());
    for (uint32_t i = 0; i < counters; ++i) v.counters[i].steps = shape_.first_step;
    if (form == ConnectionForm::kLines || form == ConnectionForm::kRing)
      v.lines = reinterpret_cast<HeaderLine*>(memory_.emplace_back(lines * sizeof(HeaderLine)).data());
    if (form == ConnectionForm::kRing)
      v.data_bytes = place_bytes(static_cast<uint32_t>(shape_.max_message_bytes)) * (kRingMessages + 1);
    else if (form != ConnectionForm::kLines) v.data_bytes = c.slot_bytes * lines;
    if (v.data_bytes != 0) v.data = memory_.emplace_back(v.data_bytes).data();
    c.views.push_back(v);
  }
  return c;
}

EmulatedProgram EmulatedDevices::program(const RankSchedule& schedule, const ProgramShape& shape,
                                         const DeviceShape& device) {
  RankState& rank = *ranks_[static_cast<size_t>(schedule.rank)];
  auto compiled = compile(schedule, shape, rank.ports, *kernel_table(SimdLevel::kBaseline));
  RONDO_CHECK(compiled.ok());
  Index index(*this, rank);
  auto lowered = lower(**compiled, device, index);
  RONDO_CHECK(lowered.ok());
  RONDO_CHECK(rank.read_index.size() <= kMaxEnds && rank.write_index.size() <= kMaxEnds);
  kernel_name_ = interpreter_name(**compiled);
  const std::string contents(reinterpret_cast<const char*>(lowered->program.data()), lowered->program.size());
  const auto [it, made] = programs_.try_emplace(contents, nullptr);
  if (made) {
    std::byte* to = memory_.emplace_back(lowered->program.size()).data();
    std::memcpy(to, lowered->program.data(), lowered->program.size());
    it->second = reinterpret_cast<const DeviceProgram*>(to);
  }
  return {it->second, lowered->counts, (*compiled)->scratch_bytes};
}

LaunchCall EmulatedDevices::call(const EmulatedProgram& program) {
  RankState& rank = *ranks_[program.program->rank];
  LaunchCall c{};
  c.program = program.program;
  c.counts = program.counts;
  c.comm = &rank.comm;
  c.control = &rank.control;
  if (program.scratch_bytes != 0) c.scratch = memory_.emplace_back(program.scratch_bytes).data();
  c.deadline_ns = 60'000'000'000;
  return c;
}

void EmulatedDevices::launch(const std::vector<std::string>& kernels, const EmulatedUnits& units,
                             uint32_t block_threads, DeviceTrace trace) {
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < units.size(); ++r)
    ranks.emplace_back([&, r] {
      const auto& of_rank = units[r];
      const HostKernel run = find_host_kernel(kernels[r]);
      RONDO_CHECK(run != nullptr);
      LaunchArgs args{};
      std::vector<DeviceUnit> all_units;
      std::vector<LaunchCall> all_calls;
      uint32_t blocks = 0;
      for (const auto& calls : of_rank) {
        DeviceUnit u{blocks, 0, 0, static_cast<uint32_t>(all_calls.size()), static_cast<uint32_t>(calls.size())};
        for (const LaunchCall& c : calls) {
          u.num_lanes = std::max(u.num_lanes, c.program->num_lanes);
          if (c.other.program != nullptr) u.num_lanes = std::max(u.num_lanes, c.other.program->num_lanes);
          u.num_channels = std::max(u.num_channels, c.counts.num_channels);
          all_calls.push_back(c);
        }
        blocks += u.num_lanes * u.num_channels;
        all_units.push_back(u);
      }
      args.num_units = static_cast<uint32_t>(all_units.size());
      args.num_calls = static_cast<uint32_t>(all_calls.size());
      args.trace = trace;
      // Small launches fit into the argument, as on a device.
      const LaunchTables tables{all_units, all_calls};
      const uint64_t bytes = tables.write(nullptr);
      DeviceBytes more(bytes);
      if (bytes > LaunchArgs::kOwnBytes) args.more_tables = more.data();
      tables.write(bytes > LaunchArgs::kOwnBytes ? more.data() : args.own_tables);
      if (blocks != 0) run(&args, blocks, block_threads);
    });
  for (std::thread& t : ranks) t.join();
}

}  // namespace rondo::testing

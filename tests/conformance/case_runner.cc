// Placement, guards and checks of one call's buffers.
#include "conformance/case_runner.h"

#include <gtest/gtest.h>

#include <cstring>
#include <sstream>

#include "api/communicator_impl.h"
#include "device/driver/driver.h"

namespace rondo::testing {
namespace {

constexpr uint8_t kGuardByte = 0xa5, kStaleByte = 0xee;

std::string hex(const uint8_t* p, uint64_t num_bytes) {
  std::string text = "0x";
  for (uint64_t i = num_bytes; i-- > 0;) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[p[i] >> 4];
    text += kDigits[p[i] & 15];
  }
  return text;
}

bool all_bytes_are(const uint8_t* p, uint64_t num_bytes, uint8_t value) {
  for (uint64_t i = 0; i < num_bytes; ++i)
    if (p[i] != value) return false;
  return true;
}

}  // namespace

std::string describe(const Case& c) {
  std::ostringstream text;
  text << collective_name(c.collective) << " by " << (c.algorithm ? c.algorithm->name : "the planner's choice") << ", "
       << c.count_elems << " x " << dtype_name(c.dtype);
  if (collective_reduces(c.collective)) text << ", " << op_name(c.op);
  if (collective_is_rooted(c.collective)) text << ", root " << c.root;
  text << (c.in_place ? ", in place" : "") << ", variant " << c.variant;
  return text.str();
}

bool applies(const Case& c) {
  return !(c.algorithm != nullptr && c.algorithm->direct && collective_reduces(c.collective) && c.op == Op::kPremulSum);
}

bool reachable(Communicator& comm, const Case& c) {
  if (c.algorithm == nullptr || !c.algorithm->direct) return true;
  if (impl_of(comm).device() != nullptr) return impl_of(comm).device()->transport().may_be_direct();
  const Transport& transport = impl_of(comm).transport();
  return transport.may_be_direct() || (c.algorithm->pulls_only && transport.can_pull());
}

uint64_t in_elems(const Case& c, int nranks) {
  return c.count_elems * parts(collective_traits(c.collective).in_parts, nranks);
}
uint64_t out_elems(const Case& c, int nranks) {
  return c.count_elems * parts(collective_traits(c.collective).out_parts, nranks);
}

bool CallBuffers::holds(Holders holders) const {
  return holders == Holders::kEverybody || (holders == Holders::kRoot && c_.root == rank_);
}

// In place the smaller buffer is this rank's part of the larger one. If a rank has only one buffer, its guards are at
// the output's place.
void CallBuffers::place() {
  const CollectiveTraits& traits = collective_traits(c_.collective);
  const bool has_in = holds(traits.in_holders), has_out = holds(traits.out_holders);
  const uint64_t bytes = dtype_bytes(c_.dtype), shift = kGuardBytes + c_.variant % 4 * bytes;
  num_in_elems_ = has_in ? in_elems(c_, tables_->nranks()) : 0;
  num_out_elems_ = has_out ? out_elems(c_, tables_->nranks()) : 0;
  const uint64_t own = static_cast<uint64_t>(rank_) * c_.count_elems * bytes;
  const bool cut = traits.in_parts == Parts::kEach, spread = traits.out_parts == Parts::kEach;
  in_place_ = c_.in_place && has_in && has_out && !(cut && spread);
  guarded_ = out_area_ + shift;
  in_ = !has_in ? nullptr : in_place_ ? guarded_ + (spread ? own : 0) : in_area_ + shift;
  out_ = !has_out ? nullptr : guarded_ + (in_place_ && cut ? own : 0);
  guarded_bytes_ = std::max(num_out_elems_, in_place_ ? num_in_elems_ : 0) * bytes;
}

void CallBuffers::begin(const Case& c) {
  c_ = c;
  place();
  std::memset(guarded_ - kGuardBytes, kGuardByte, kGuardBytes);
  std::memset(guarded_, kStaleByte, guarded_bytes_);
  std::memset(guarded_ + guarded_bytes_, kGuardByte, kGuardBytes);
  if (num_in_elems_ != 0) input_of(rank_, 0, num_in_elems_, in_);
}

void CallBuffers::input_of(Rank r, uint64_t skip_elems, uint64_t num_elems, void* to) const {
  if (collective_reduces(c_.collective)) tables_->input(c_.dtype, c_.op, r, first_elem() + skip_elems, num_elems, to);
  else tables_->input(bits_of(c_.dtype), DataTables::kMoveOp, r, first_elem() + skip_elems, num_elems, to);
}

void CallBuffers::expected(void* to) const {
  const uint64_t count = c_.count_elems, bytes = dtype_bytes(c_.dtype), mine = static_cast<uint64_t>(rank_) * count;
  auto from_each = [&](uint64_t skip_elems) {
    for (Rank r = 0; r < tables_->nranks(); ++r)
      input_of(r, skip_elems, count, static_cast<uint8_t*>(to) + static_cast<uint64_t>(r) * count * bytes);
  };
  switch (c_.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce: return tables_->expected(c_.dtype, c_.op, first_elem(), count, to);
    case Collective::kReduceScatter: return tables_->expected(c_.dtype, c_.op, first_elem() + mine, count, to);
    case Collective::kAllGather:
    case Collective::kGather: return from_each(0);
    case Collective::kAllToAll: return from_each(mine);
    case Collective::kBroadcast: return input_of(c_.root, 0, count, to);
    case Collective::kScatter: return input_of(c_.root, mine, count, to);
    case Collective::kBarrier:
    case Collective::kSend:
    case Collective::kRecv: return;
  }
}

std::array<std::span<uint8_t>, 2> CallBuffers::used() const {
  std::span<uint8_t> in;
  if (in_ != nullptr && !in_place_) in = {in_, num_in_elems_ * dtype_bytes(c_.dtype)};
  return {in, std::span(guarded_ - kGuardBytes, guarded_bytes_ + 2 * kGuardBytes)};
}

std::string CallBuffers::judge() {
  const uint64_t bytes = dtype_bytes(c_.dtype), num_elems = num_out_elems_;
  if (const uint64_t most = std::max(num_elems, num_in_elems_) * bytes; wanted_.size() < most) wanted_.resize(most);
  if (num_elems != 0) expected(wanted_.data());  // a rank may have no output
  const uint64_t at = num_elems == 0 ? 0 : first_difference(c_.dtype, out_, wanted_.data(), num_elems);
  if (at != num_elems)
    return "element " + std::to_string(at) + " of " + std::to_string(num_elems) + " is " +
           hex(out_ + at * bytes, bytes) + ", expected " + hex(wanted_.data() + at * bytes, bytes);
  if (!all_bytes_are(guarded_ - kGuardBytes, kGuardBytes, kGuardByte)) return "bytes before the output were written";
  if (!all_bytes_are(guarded_ + guarded_bytes_, kGuardBytes, kGuardByte)) return "bytes after the output were written";
  if (in_place_ || num_in_elems_ == 0) return "";
  input_of(rank_, 0, num_in_elems_, wanted_.data());
  return std::memcmp(wanted_.data(), in_, num_in_elems_ * bytes) == 0 ? "" : "the input was changed";
}

Status issue(Communicator& comm, const DataTables& tables, const Case& c, const CallBuffers& buffers, Work* work,
             double deadline_s, const OnDevice* device) {
  CallOptions options;
  options.deadline_s = deadline_s;
  const std::string name(c.algorithm ? c.algorithm->name : "");
  if (c.algorithm != nullptr) options.algorithm = name.c_str();
  const bool scales = collective_reduces(c.collective) && c.op == Op::kPremulSum;
  const uint64_t scale = scales ? premul_scale(tables.spec(c.dtype, c.op), comm.rank()) : 0;
  if (scales) options.premul = &scale;
  const void* in = buffers.in();
  void* out = buffers.out();
  if (device != nullptr) {
    in = device->there(in);
    out = device->there(out);
    options.stream = device->stream;
  }
  switch (c.collective) {
    case Collective::kAllReduce: return comm.all_reduce(in, out, c.count_elems, c.dtype, c.op, &options, work);
    case Collective::kReduceScatter: return comm.reduce_scatter(in, out, c.count_elems, c.dtype, c.op, &options, work);
    case Collective::kAllGather: return comm.all_gather(in, out, c.count_elems, c.dtype, &options, work);
    case Collective::kBroadcast: return comm.broadcast(in, out, c.count_elems, c.dtype, c.root, &options, work);
    case Collective::kReduce: return comm.reduce(in, out, c.count_elems, c.dtype, c.op, c.root, &options, work);
    case Collective::kAllToAll: return comm.all_to_all(in, out, c.count_elems, c.dtype, &options, work);
    case Collective::kGather: return comm.gather(in, out, c.count_elems, c.dtype, c.root, &options, work);
    case Collective::kScatter: return comm.scatter(in, out, c.count_elems, c.dtype, c.root, &options, work);
    case Collective::kBarrier: return comm.barrier(&options, work);
    case Collective::kSend:
    case Collective::kRecv: break;  // between two ranks: tests/conformance/point_to_point_suite.h
  }
  return Status(StatusCode::kInternal, "no such collective");
}

Status OnDevice::upload(std::span<uint8_t> part) const {
  return cuda::upload(static_cast<cuda::Stream>(stream), reinterpret_cast<cuda::DevicePtr>(there(part.data())),
                      part.data(), part.size());
}
Status OnDevice::download(std::span<uint8_t> part) const {
  return cuda::download(static_cast<cuda::Stream>(stream), part.data(),
                        reinterpret_cast<cuda::DevicePtr>(there(part.data())), part.size());
}

CaseRunner::~CaseRunner() {
  if (allocated_ == nullptr) return;
  const Status status = comm_.free(allocated_);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

Status CaseRunner::open(Memory memory, uint64_t buffer_bytes) {
  if (memory != Memory::kHeap) {
    RONDO_TRY_ASSIGN(allocated_, comm_.alloc(memory_bytes(buffer_bytes)));
  }
  if (memory == Memory::kDevice) return open_on(allocated_, buffer_bytes);
  auto* areas = static_cast<uint8_t*>(allocated_);
  if (memory == Memory::kHeap) {
    heap_ = std::make_unique<uint8_t[]>(memory_bytes(buffer_bytes));
    areas = heap_.get();
  }
  buffers_ = CallBuffers(&tables_, comm_.rank(), areas, areas + CallBuffers::area_bytes(buffer_bytes));
  return Status();
}

Status CaseRunner::open_on(void* device_memory, uint64_t buffer_bytes) {
  const uint64_t area_bytes = CallBuffers::area_bytes(buffer_bytes);
  heap_ = std::make_unique<uint8_t[]>(2 * area_bytes);
  RONDO_TRY(
      cuda::check(cuda::driver()->context_set_current(impl_of(comm_).device()->transport().context()), "context"));
  RONDO_TRY_ASSIGN(stream_, cuda::OwnedStream::make());
  device_ = {heap_.get(), static_cast<uint8_t*>(device_memory), stream_.get()};
  buffers_ = CallBuffers(&tables_, comm_.rank(), heap_.get(), heap_.get() + area_bytes);
  return Status();
}

Status CaseRunner::run(const Case& c) {
  if (!reachable(comm_, c)) {
    ++num_unreachable_;
    return Status();
  }
  buffers_.begin(c);
  const bool on_device = device_.device != nullptr;
  for (const std::span<uint8_t> part : buffers_.used())
    if (on_device && !part.empty()) RONDO_TRY(device_.upload(part));
  Status status = issue(comm_, tables_, c, buffers_, nullptr, 0, on_device ? &device_ : nullptr);
  if (on_device && status.code() == StatusCode::kUnsupported) {
    ++num_refused_;
    return Status();
  }
  for (const std::span<uint8_t> part : buffers_.used())
    if (on_device && status.ok() && !part.empty()) status = device_.download(part);
  if (on_device && status.ok()) status = comm_.error();
  if (!status.ok()) return Status(status.code(), describe(c) + ": " + std::string(status.message()));
  const std::string wrong = buffers_.judge();
  if (!wrong.empty() && num_reports_++ < kMaxReports) ADD_FAILURE() << describe(c) << ": " << wrong;
  return Status();
}

}  // namespace rondo::testing

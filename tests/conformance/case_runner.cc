// Placement, guards and judgement of one call's buffers.
#include "conformance/case_runner.h"

#include <gtest/gtest.h>

#include <cstring>
#include <sstream>

#include "core/communicator_impl.h"

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
  text << (c.in_place ? ", in place" : "") << ", variant " << c.variant;
  return text.str();
}

bool applies(const Case& c) {
  return !(c.algorithm != nullptr && c.algorithm->direct && collective_reduces(c.collective) && c.op == Op::kPremulSum);
}

bool reachable(Communicator& comm, const Case& c) {
  if (c.algorithm == nullptr || !c.algorithm->direct) return true;
  const Transport& transport = comm.impl().transport();
  return transport.may_be_direct() || (c.algorithm->pulls_only && transport.can_pull());
}

uint64_t in_elems(const Case& c, int nranks) {
  return c.collective == Collective::kReduceScatter ? c.count_elems * static_cast<uint64_t>(nranks) : c.count_elems;
}
uint64_t out_elems(const Case& c, int nranks) {
  return c.collective == Collective::kAllGather ? c.count_elems * static_cast<uint64_t>(nranks) : c.count_elems;
}

void CallBuffers::place() {
  const uint64_t bytes = dtype_bytes(c_.dtype), shift = kGuardBytes + c_.variant % 4 * bytes;
  const uint64_t in_bytes = in_elems(c_, tables_->nranks()) * bytes;
  const uint64_t out_bytes = out_elems(c_, tables_->nranks()) * bytes;
  const uint64_t own = static_cast<uint64_t>(rank_) * c_.count_elems * bytes;
  guarded_ = out_area_ + shift;
  in_ = c_.in_place ? guarded_ + (c_.collective == Collective::kAllGather ? own : 0) : in_area_ + shift;
  out_ = guarded_ + (c_.in_place && c_.collective == Collective::kReduceScatter ? own : 0);
  guarded_bytes_ = c_.in_place ? std::max(in_bytes, out_bytes) : out_bytes;
}

void CallBuffers::begin(const Case& c) {
  c_ = c;
  place();
  std::memset(guarded_ - kGuardBytes, kGuardByte, kGuardBytes);
  std::memset(guarded_, kStaleByte, guarded_bytes_);
  std::memset(guarded_ + guarded_bytes_, kGuardByte, kGuardBytes);
  const uint64_t num_elems = in_elems(c_, tables_->nranks());
  if (collective_reduces(c_.collective)) {
    tables_->input(c_.dtype, c_.op, rank_, first_elem(), num_elems, in_);
  } else {
    tables_->input(bits_of(c_.dtype), DataTables::kMoveOp, rank_, first_elem(), num_elems, in_);
  }
}

void CallBuffers::expected(void* to) const {
  const uint64_t count = c_.count_elems, bytes = dtype_bytes(c_.dtype);
  switch (c_.collective) {
    case Collective::kAllReduce: return tables_->expected(c_.dtype, c_.op, first_elem(), count, to);
    case Collective::kReduceScatter:
      return tables_->expected(c_.dtype, c_.op, first_elem() + static_cast<uint64_t>(rank_) * count, count, to);
    case Collective::kAllGather:
      for (Rank r = 0; r < tables_->nranks(); ++r)
        tables_->input(bits_of(c_.dtype), DataTables::kMoveOp, r, first_elem(), count,
                       static_cast<uint8_t*>(to) + static_cast<uint64_t>(r) * count * bytes);
  }
}

std::string CallBuffers::judge() const {
  const uint64_t bytes = dtype_bytes(c_.dtype), num_elems = out_elems(c_, tables_->nranks());
  std::vector<uint8_t> wanted(num_elems * bytes);
  expected(wanted.data());
  const uint64_t at = num_elems == 0 ? 0 : first_difference(c_.dtype, out_, wanted.data(), num_elems);
  if (at != num_elems)
    return "element " + std::to_string(at) + " of " + std::to_string(num_elems) + " is " +
           hex(out_ + at * bytes, bytes) + ", expected " + hex(wanted.data() + at * bytes, bytes);
  if (!all_bytes_are(guarded_ - kGuardBytes, kGuardBytes, kGuardByte)) return "bytes before the output were written";
  if (!all_bytes_are(guarded_ + guarded_bytes_, kGuardBytes, kGuardByte)) return "bytes after the output were written";
  if (c_.in_place || !collective_reduces(c_.collective) || in_elems(c_, tables_->nranks()) == 0) return "";
  wanted.resize(in_elems(c_, tables_->nranks()) * bytes);
  tables_->input(c_.dtype, c_.op, rank_, first_elem(), in_elems(c_, tables_->nranks()), wanted.data());
  return std::memcmp(wanted.data(), in_, wanted.size()) == 0 ? "" : "the input was changed";
}

Status issue(Communicator& comm, const DataTables& tables, const Case& c, const CallBuffers& buffers, Work* work) {
  CallOptions options;
  const std::string name(c.algorithm ? c.algorithm->name : "");
  if (c.algorithm != nullptr) options.algorithm = name.c_str();
  const uint64_t scale = c.op == Op::kPremulSum ? premul_scale(tables.spec(c.dtype, c.op), comm.rank()) : 0;
  if (c.op == Op::kPremulSum) options.premul = &scale;
  switch (c.collective) {
    case Collective::kAllReduce:
      return comm.all_reduce(buffers.in(), buffers.out(), c.count_elems, c.dtype, c.op, &options, work);
    case Collective::kReduceScatter:
      return comm.reduce_scatter(buffers.in(), buffers.out(), c.count_elems, c.dtype, c.op, &options, work);
    case Collective::kAllGather:
      options.premul = nullptr;
      return comm.all_gather(buffers.in(), buffers.out(), c.count_elems, c.dtype, &options, work);
  }
  return Status(StatusCode::kInternal, "no such collective");
}

CaseRunner::~CaseRunner() {
  if (allocated_ == nullptr) return;
  const Status status = comm_.free(allocated_);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

Status CaseRunner::open(Memory memory, uint64_t buffer_bytes) {
  const uint64_t area_bytes = CallBuffers::area_bytes(buffer_bytes);
  uint8_t* areas;
  if (memory == Memory::kAlloc) {
    RONDO_TRY_ASSIGN(allocated_, comm_.alloc(2 * area_bytes));
    areas = static_cast<uint8_t*>(allocated_);
  } else {
    heap_ = std::make_unique<uint8_t[]>(2 * area_bytes);
    areas = heap_.get();
  }
  buffers_ = CallBuffers(&tables_, comm_.rank(), areas, areas + area_bytes);
  return Status();
}

Status CaseRunner::run(const Case& c) {
  if (!reachable(comm_, c)) return Status();
  buffers_.begin(c);
  const Status status = issue(comm_, tables_, c, buffers_, nullptr);
  if (!status.ok()) return Status(status.code(), describe(c) + ": " + std::string(status.message()));
  const std::string wrong = buffers_.judge();
  if (!wrong.empty() && num_reports_++ < kMaxReports) ADD_FAILURE() << describe(c) << ": " << wrong;
  return Status();
}

}  // namespace rondo::testing

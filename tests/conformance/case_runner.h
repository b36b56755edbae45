// Runs one collective call on one rank and checks everything: the result's bits, the bytes around it, the input. One
// runner serves thousands of cases on one communicator.
//
// A library error is returned as a Status that names the case. Wrong bits are GoogleTest failures, at most kMaxReports
// for each runner. Thread safety: none; one runner for each rank.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "conformance/data_tables.h"
#include "device/driver/handles.h"
#include "rondo/communicator.h"

namespace rondo::testing {

struct Case {
  const Algorithm* algorithm = nullptr;  // nullptr: the planner's choice
  Collective collective = Collective::kAllReduce;
  Dtype dtype = Dtype::kFloat32;
  Op op = Op::kSum;
  uint64_t count_elems = 0;
  bool in_place = false;  // if a rank has both buffers and the collective supports it
  Rank root = 0;
  uint32_t variant = 0;  // start in the data, and alignment
};
std::string describe(const Case& c);
/// False if the named algorithm refuses the op: direct reads peers' inputs, which premul_sum would have to scale.
bool applies(const Case& c);
/// False if the algorithm cannot access the peers' memory: heap memory of processes, unless it only reads and the
/// kernel lets processes read one another. Equal on all ranks.
bool reachable(Communicator& comm, const Case& c);
/// Elements of the input and of the output, for a rank that has them.
uint64_t in_elems(const Case& c, int nranks);
uint64_t out_elems(const Case& c, int nranks);

/// kDevice: for a communicator of device memory. Buffers are prepared and checked in host memory and copied.
enum class Memory { kHeap, kAlloc, kDevice };

/// Device copies of the host's areas.
struct OnDevice {
  const uint8_t* host = nullptr;
  uint8_t* device = nullptr;
  void* stream = nullptr;

  template <class T>
  T* there(T* here) const {
    const auto* at = static_cast<const uint8_t*>(static_cast<const void*>(here));
    return at == nullptr ? nullptr : static_cast<T*>(static_cast<void*>(device + (at - host)));
  }
  Status upload(std::span<uint8_t> part) const;    // to the device; waits
  Status download(std::span<uint8_t> part) const;  // from the device, in stream order; waits
};

/// The buffers of one call. `begin` prepares them and `judge` checks them. The caller runs the collective in between.
class CallBuffers {
 public:
  CallBuffers() = default;
  /// in_area, out_area: area_bytes() each.
  CallBuffers(const DataTables* tables, Rank rank, void* in_area, void* out_area)
      : tables_(tables),
        rank_(rank),
        in_area_(static_cast<uint8_t*>(in_area)),
        out_area_(static_cast<uint8_t*>(out_area)) {}
  static uint64_t area_bytes(uint64_t buffer_bytes) { return (buffer_bytes + 2 * kGuardBytes + 127) / 64 * 64; }

  void begin(const Case& c);
  /// Empty if everything is right.
  std::string judge();
  /// The used parts of the two areas, with guards.
  std::array<std::span<uint8_t>, 2> used() const;
  /// nullptr if this rank has none.
  const void* in() const { return in_; }
  void* out() const { return out_; }

 private:
  static constexpr uint64_t kGuardBytes = 64;
  bool holds(Holders holders) const;
  void place();
  void input_of(Rank r, uint64_t skip_elems, uint64_t num_elems, void* to) const;
  uint64_t first_elem() const { return c_.variant * 977; }
  void expected(void* to) const;

  const DataTables* tables_ = nullptr;
  Rank rank_ = 0;
  uint8_t* in_area_ = nullptr;
  uint8_t* out_area_ = nullptr;
  Case c_;
  uint8_t* in_ = nullptr;
  uint8_t* out_ = nullptr;
  uint8_t* guarded_ = nullptr;  // the call may write only to guarded_[0, guarded_bytes_)
  uint64_t guarded_bytes_ = 0;
  uint64_t num_in_elems_ = 0, num_out_elems_ = 0;  // of this rank's buffers
  bool in_place_ = false;
  std::vector<uint8_t> wanted_;  // kept: new memory for each call is slow under ThreadSanitizer
};

/// Issues the case's call on these buffers; blocks if work is nullptr. Passes a fitting premul scale, which is read
/// before the call returns. deadline_s: of this call; 0: the communicator's.
Status issue(Communicator& comm, const DataTables& tables, const Case& c, const CallBuffers& buffers, Work* work,
             double deadline_s = 0, const OnDevice* device = nullptr);

class CaseRunner {
 public:
  CaseRunner(Communicator& comm, const DataTables& tables) : comm_(comm), tables_(tables) {}
  ~CaseRunner();
  CaseRunner(const CaseRunner&) = delete;
  CaseRunner& operator=(const CaseRunner&) = delete;
  /// Collective if memory is kAlloc. Buffers of up to buffer_bytes.
  Status open(Memory memory, uint64_t buffer_bytes);
  /// For a communicator of device memory: uses memory_bytes(buffer_bytes) of the caller's memory, the first half for
  /// inputs, the second for outputs.
  Status open_on(void* device_memory, uint64_t buffer_bytes);
  static uint64_t memory_bytes(uint64_t buffer_bytes) { return 2 * CallBuffers::area_bytes(buffer_bytes); }
  /// Calls that the communicator refuses as unsupported (the algorithm does not fit its devices) are only counted.
  Status run(const Case& c);
  int num_refused() const { return num_refused_; }
  int num_unreachable() const { return num_unreachable_; }

 private:
  static constexpr int kMaxReports = 5;
  Communicator& comm_;
  const DataTables& tables_;
  CallBuffers buffers_;
  std::unique_ptr<uint8_t[]> heap_;
  void* allocated_ = nullptr;
  OnDevice device_;
  cuda::OwnedStream stream_;
  int num_reports_ = 0, num_refused_ = 0, num_unreachable_ = 0;
};

}  // namespace rondo::testing

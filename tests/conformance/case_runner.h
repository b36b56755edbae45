// Runs one collective call on one rank and judges everything about it: the result's bits, the bytes around it, the
// input. One runner serves thousands of cases on one communicator.
//
// A library error comes back as a Status that names the case; wrong bits are GoogleTest failures, at most
// kMaxReports for each runner.
//
// Thread safety: none; one runner for each rank.
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
  bool in_place = false;  // where a rank holds both buffers and the collective can be
  Rank root = 0;
  uint32_t variant = 0;  // where in the data and at which alignment it starts
};
std::string describe(const Case& c);
/// False where the named algorithm refuses the op: direct reads peers' inputs, which premul_sum would have to scale.
bool applies(const Case& c);
/// False where the peers' memory cannot be touched as the algorithm needs it: heap memory of processes, unless it only
/// reads and the kernel lets processes read one another. Equal on all ranks.
bool reachable(Communicator& comm, const Case& c);
/// Elements of the input and of the output of a rank that holds them.
uint64_t in_elems(const Case& c, int nranks);
uint64_t out_elems(const Case& c, int nranks);

/// kDevice: of a communicator of device memory; buffers are prepared and judged in host memory and copied.
enum class Memory { kHeap, kAlloc, kDevice };

/// Where the host's areas have their copies on a device.
struct OnDevice {
  const uint8_t* host = nullptr;
  uint8_t* device = nullptr;
  void* stream = nullptr;

  template <class T>
  T* there(T* here) const {
    const auto* at = static_cast<const uint8_t*>(static_cast<const void*>(here));
    return at == nullptr ? nullptr : static_cast<T*>(static_cast<void*>(device + (at - host)));
  }
  Status upload(std::span<uint8_t> part) const;    // of the host's areas; waits
  Status download(std::span<uint8_t> part) const;  // behind what stands in the stream; waits
};

/// The buffers of one call. `begin` prepares them, `judge` compares; in between the caller runs the collective.
class CallBuffers {
 public:
  CallBuffers() = default;
  /// in_area, out_area: area_bytes() each.
  CallBuffers(const DataTables* tables, Rank rank, void* in_area, void* out_area)
      : tables_(tables),
        rank_(rank),
        in_area_(static_cast<uint8_t*>(in_area)),
        out_area_(static_cast<uint8_t*>(out_area)) {}
  static uint64_t area_bytes(uint64_t buffer_bytes) { return buffer_bytes + 2 * kGuardBytes + 64; }

  void begin(const Case& c);
  /// Empty when everything is right.
  std::string judge();
  /// What of the two areas this call's buffers and their guards take.
  std::array<std::span<uint8_t>, 2> used() const;
  /// nullptr where this rank holds none.
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
  uint8_t* guarded_ = nullptr;  // what the call may write lies in guarded_[0, guarded_bytes_)
  uint64_t guarded_bytes_ = 0;
  uint64_t num_in_elems_ = 0, num_out_elems_ = 0;  // that this rank holds
  bool in_place_ = false;
  std::vector<uint8_t> wanted_;  // kept: fresh memory for each call is slow under ThreadSanitizer
};

/// Issues the case's call on these buffers; blocking when work is nullptr. A fitting premul scale is passed. The
/// scale is read before the call returns.
/// deadline_s: of this call, 0: the communicator's.
Status issue(Communicator& comm, const DataTables& tables, const Case& c, const CallBuffers& buffers, Work* work,
             double deadline_s = 0, const OnDevice* device = nullptr);

class CaseRunner {
 public:
  CaseRunner(Communicator& comm, const DataTables& tables) : comm_(comm), tables_(tables) {}
  ~CaseRunner();
  CaseRunner(const CaseRunner&) = delete;
  CaseRunner& operator=(const CaseRunner&) = delete;
  /// Collective when memory is kAlloc. Buffers of up to buffer_bytes.
  Status open(Memory memory, uint64_t buffer_bytes);
  /// Of a communicator of device memory: on memory of the caller's, memory_bytes(buffer_bytes) of it; the buffers of
  /// input lie in its first half, those of output in the second.
  Status open_on(void* device_memory, uint64_t buffer_bytes);
  static uint64_t memory_bytes(uint64_t buffer_bytes) { return 2 * CallBuffers::area_bytes(buffer_bytes); }
  /// What the communicator refuses as unsupported (an algorithm that does not fit its devices) is counted, not run.
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

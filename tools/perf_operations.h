// The operations that `rondo perf` measures. One table gives names, buffers, expected results, bandwidth and calls.
//
// A row is a call of rondo.h, or the pattern of calls that nccl-tests measures under that name (sendrecv: each rank
// sends to the next and receives from the previous one). The row of RONDO_COLLECTIVES defines the contents of the
// buffers. Variable counts use one pattern: part k of n holds k + 1 of n(n+1)/2 shares of the whole, and rank r's part
// is part r. In all_to_all_v rank s gives part (s + d) mod n to rank d, so that every rank gives and gets the whole.
// Thread safety: constant table, pure functions over values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/rondo.h"
#include "rondo/types.h"

namespace rondo::tools {

/// busbw / algbw for n ranks, as in nccl-tests: 1, (n-1)/n or 2(n-1)/n. kNone if no bytes move.
enum class BusFactor : uint8_t { kNone, kOne, kShare, kTwiceShare };

/// The arguments of one operation on one rank.
struct PerfCall {
  static constexpr int kMaxWorks = 2;
  rondo_comm* comm = nullptr;
  int rank = 0, nranks = 1;
  const void* in = nullptr;
  void* out = nullptr;
  uint64_t count_elems = 0;
  const uint64_t *in_counts = nullptr, *out_counts = nullptr;  // variable counts: nranks values
  rondo_dtype dtype = RONDO_FLOAT32;
  rondo_op op = RONDO_SUM;
  int root = 0;
  const rondo_call* options = nullptr;
  rondo_work** works = nullptr;  // nullptr: blocks. Else kMaxWorks entries; some may stay nullptr
};

struct PerfOperation {
  std::string_view name;
  std::optional<Collective> collective;  // nullopt: messages between two ranks
  CollectiveTraits traits;
  BusFactor bus_factor;
  bool variable_counts;
  rondo_status (*issue)(const PerfCall&);

  bool is_rooted() const { return traits.in_holders == Holders::kRoot || traits.out_holders == Holders::kRoot; }
  bool moves_bytes() const { return bus_factor != BusFactor::kNone; }
  bool cuts_in() const { return traits.in_parts == Parts::kEach; }
  bool cuts_out() const { return traits.out_parts == Parts::kEach; }
  /// True if rondo.h allows one buffer as the rank's input and output.
  bool may_be_in_place() const { return collective.has_value() && moves_bytes() && !(cuts_in() && cuts_out()); }
};

/// Lower-case letters and digits of a name. Names are compared this way: "AllReduce" equals "all_reduce".
std::string letters_of(std::string_view name);
/// The same, without the suffix of nccl-tests' programs ("all_reduce_perf").
std::string letters_of_collective(std::string_view name);

std::span<const PerfOperation> perf_operations();
/// Finds a row by name (letters_of_collective). Returns nullptr if there is none.
const PerfOperation* find_perf_operation(std::string_view name);
/// "all_reduce, reduce_scatter, ..."
std::string perf_operation_names();

/// Maps a size to a call, with nccl-tests' counts. `bytes` is the whole vector in the input type. A rank gives or gets
/// 1/nranks of it if the collective cuts it.
struct CallShape {
  uint64_t count_elems = 0;  // of the call; variable counts: average of the parts
  uint64_t whole_elems = 0;  // of the longer buffer
  uint64_t in_elems = 0;     // largest input of any rank
  uint64_t out_elems = 0;    // largest output of any rank
  uint64_t bytes = 0;        // of whole_elems: the table's size column
};
CallShape call_shape(const PerfOperation& operation, Dtype dtype, int nranks, uint64_t bytes);

/// One rank's side of a call. Parts are contiguous.
struct RankLayout {
  std::vector<uint64_t> in_counts, out_counts;  // of the parts: one, or one for each rank
  uint64_t in_elems = 0, out_elems = 0;         // 0 if the rank has no such buffer
  uint64_t in_own = 0, out_own = 0;             // start of this rank's own part
};
/// The ranks of a call, from one rank's view.
struct RankRole {
  Rank rank = 0;
  int nranks = 1;
  Rank root = 0;
};
RankLayout rank_layout(const PerfOperation& operation, const CallShape& shape, const RankRole& view);

/// A range of one rank's input.
struct Segment {
  Rank from = 0;
  uint64_t first_elem = 0, num_elems = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};
/// The expected output of this rank for an operation that does not reduce, as consecutive segments. O(nranks), for
/// all_to_all_v O(nranks^2).
std::vector<Segment> expected_segments(const PerfOperation& operation, const CallShape& shape, const RankRole& view);

/// GB/s (10^9) of a call that took `seconds`.
struct Bandwidth {
  double algorithm = 0;  // bytes / seconds
  double bus = 0;        // algorithm * the operation's factor
};
Bandwidth bandwidth(const PerfOperation& operation, int nranks, uint64_t bytes, double seconds);

}  // namespace rondo::tools

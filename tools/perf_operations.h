// What `rondo perf` measures: one table, out of which come names, buffers, expected results, bandwidth and calls.
//
// A row is a call of rondo.h, or the pattern of calls that nccl-tests measures under that name (sendrecv: each rank
// sends to the next and receives from the previous one). Which rank holds what follows from the row of
// RONDO_COLLECTIVES. Variable counts are cut by one pattern: part k of n holds k + 1 of n(n+1)/2 shares of the whole;
// rank r's part is part r, and of all_to_all_v rank s gives part (s + d) mod n to rank d, so that every rank gives and
// gets the whole.
//
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

/// busbw over algbw among n ranks, as nccl-tests defines it: 1, (n-1)/n or 2(n-1)/n; nothing where no bytes move.
enum class BusFactor : uint8_t { kNone, kOne, kShare, kTwiceShare };

/// The arguments of one operation on one rank.
struct PerfCall {
  static constexpr int kMaxWorks = 2;
  rondo_comm* comm = nullptr;
  int rank = 0, nranks = 1;
  const void* in = nullptr;
  void* out = nullptr;
  uint64_t count_elems = 0;
  const uint64_t *in_counts = nullptr, *out_counts = nullptr;  // of variable counts: nranks values
  rondo_dtype dtype = RONDO_FLOAT32;
  rondo_op op = RONDO_SUM;
  int root = 0;
  const rondo_call* options = nullptr;
  rondo_work** works = nullptr;  // nullptr: blocks; else kMaxWorks places, of which some may stay nullptr
};

/// A row of the table.
struct PerfOperation {
  std::string_view name;
  std::optional<Collective> collective;  // of the registry; nothing: messages between two ranks
  CollectiveTraits traits;
  BusFactor bus_factor;
  bool variable_counts;
  rondo_status (*issue)(const PerfCall&);

  bool is_rooted() const { return traits.in_holders == Holders::kRoot || traits.out_holders == Holders::kRoot; }
  bool moves_bytes() const { return bus_factor != BusFactor::kNone; }
  bool cuts_in() const { return traits.in_parts == Parts::kEach; }
  bool cuts_out() const { return traits.out_parts == Parts::kEach; }
  /// Whether rondo.h gives the operation a form in which a rank's input and output are one buffer.
  bool may_be_in_place() const { return collective.has_value() && moves_bytes() && !(cuts_in() && cuts_out()); }
};

/// A name's letters and digits in lower case, by which names are compared: "AllReduce" is "all_reduce".
std::string letters_of(std::string_view name);
/// The same, and the names of nccl-tests' programs are those of their collectives: "all_reduce_perf".
std::string letters_of_collective(std::string_view name);

std::span<const PerfOperation> perf_operations();
/// By name (letters_of_collective); nullptr: there is none.
const PerfOperation* find_perf_operation(std::string_view name);
/// "all_reduce, reduce_scatter, ..."
std::string perf_operation_names();

/// How one size becomes a call, as nccl-tests counts: `bytes` is the whole vector, in the type of the input, of which a
/// rank gives or gets 1/nranks where the collective cuts it.
struct CallShape {
  uint64_t count_elems = 0;  // of the call; variable counts: a part's average
  uint64_t whole_elems = 0;  // of the longer buffer
  uint64_t in_elems = 0;     // the most in any rank's input
  uint64_t out_elems = 0;    // the most in any rank's output
  uint64_t bytes = 0;        // of whole_elems: what the table calls size
};
CallShape call_shape(const PerfOperation& operation, Dtype dtype, int nranks, uint64_t bytes);

/// One rank's side of a call. Parts stand one after the other.
struct RankLayout {
  std::vector<uint64_t> in_counts, out_counts;  // of the parts: one, or one for each rank
  uint64_t in_elems = 0, out_elems = 0;         // 0 on a rank that holds no such buffer
  uint64_t in_own = 0, out_own = 0;             // where this rank's own part begins
};
/// Who takes part in a call, seen by one rank.
struct RankRole {
  Rank rank = 0;
  int nranks = 1;
  Rank root = 0;
};
RankLayout rank_layout(const PerfOperation& operation, const CallShape& shape, const RankRole& view);

/// A stretch of one rank's input.
struct Segment {
  Rank from = 0;
  uint64_t first_elem = 0, num_elems = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};
/// What this rank's output holds after an operation that does not reduce, one segment after the other. O(nranks), of
/// all_to_all_v O(nranks^2).
std::vector<Segment> expected_segments(const PerfOperation& operation, const CallShape& shape, const RankRole& view);

/// GB/s (10^9) of a call that took `seconds`.
struct Bandwidth {
  double algorithm = 0;  // bytes / seconds
  double bus = 0;        // times the operation's factor
};
Bandwidth bandwidth(const PerfOperation& operation, int nranks, uint64_t bytes, double seconds);

}  // namespace rondo::tools

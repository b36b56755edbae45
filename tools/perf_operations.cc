#include "perf_operations.h"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace rondo::tools {
namespace {

using Issue = rondo_status (*)(const PerfCall&);

constexpr PerfOperation plain(Collective c, BusFactor factor, Issue issue) {
  return {collective_name(c), c, collective_traits(c), factor, false, issue};
}
constexpr PerfOperation variable(std::string_view name, Collective c, Issue issue) {
  return {name, c, collective_traits(c), BusFactor::kShare, true, issue};
}

rondo_status send_and_receive(const PerfCall& c) {
  const int next = (c.rank + 1) % c.nranks, previous = (c.rank + c.nranks - 1) % c.nranks;
  if (const rondo_status s = rondo_group_start(); s != RONDO_OK) return s;
  const rondo_status sent =
      rondo_send(c.comm, c.in, c.count_elems, c.dtype, next, c.options, c.works != nullptr ? &c.works[0] : nullptr);
  const rondo_status received = rondo_recv(c.comm, c.out, c.count_elems, c.dtype, previous, c.options,
                                           c.works != nullptr ? &c.works[1] : nullptr);
  const rondo_status ended = rondo_group_end();
  return sent != RONDO_OK ? sent : received != RONDO_OK ? received : ended;
}

constexpr PerfOperation kOperations[] = {
    plain(Collective::kAllReduce, BusFactor::kTwiceShare,
          [](const PerfCall& c) {
            return rondo_all_reduce(c.comm, c.in, c.out, c.count_elems, c.dtype, c.op, c.options, c.works);
          }),
    plain(Collective::kReduceScatter, BusFactor::kShare,
          [](const PerfCall& c) {
            return rondo_reduce_scatter(c.comm, c.in, c.out, c.count_elems, c.dtype, c.op, c.options, c.works);
          }),
    plain(Collective::kAllGather, BusFactor::kShare,
          [](const PerfCall& c) {
            return rondo_all_gather(c.comm, c.in, c.out, c.count_elems, c.dtype, c.options, c.works);
          }),
    plain(Collective::kBroadcast, BusFactor::kOne,
          [](const PerfCall& c) {
            return rondo_broadcast(c.comm, c.in, c.out, c.count_elems, c.dtype, c.root, c.options, c.works);
          }),
    plain(Collective::kReduce, BusFactor::kOne,
          [](const PerfCall& c) {
            return rondo_reduce(c.comm, c.in, c.out, c.count_elems, c.dtype, c.op, c.root, c.options, c.works);
          }),
    plain(Collective::kAllToAll, BusFactor::kShare,
          [](const PerfCall& c) {
            return rondo_all_to_all(c.comm, c.in, c.out, c.count_elems, c.dtype, c.options, c.works);
          }),
    plain(Collective::kGather, BusFactor::kShare,
          [](const PerfCall& c) {
            return rondo_gather(c.comm, c.in, c.out, c.count_elems, c.dtype, c.root, c.options, c.works);
          }),
    plain(Collective::kScatter, BusFactor::kShare,
          [](const PerfCall& c) {
            return rondo_scatter(c.comm, c.in, c.out, c.count_elems, c.dtype, c.root, c.options, c.works);
          }),
    plain(Collective::kBarrier, BusFactor::kNone,
          [](const PerfCall& c) { return rondo_barrier(c.comm, c.options, c.works); }),
    {"sendrecv",
     std::nullopt,
     {"sendrecv", false, Holders::kEverybody, Parts::kOne, Holders::kEverybody, Parts::kOne},
     BusFactor::kOne,
     false,
     send_and_receive},
    variable("all_gather_v", Collective::kAllGather,
             [](const PerfCall& c) {
               return rondo_all_gather_v(c.comm, c.in, c.out, c.out_counts, nullptr, c.dtype, c.options, c.works);
             }),
    variable("reduce_scatter_v", Collective::kReduceScatter,
             [](const PerfCall& c) {
               return rondo_reduce_scatter_v(c.comm, c.in, c.out, c.in_counts, nullptr, c.dtype, c.op, c.options,
                                             c.works);
             }),
    variable("all_to_all_v", Collective::kAllToAll,
             [](const PerfCall& c) {
               return rondo_all_to_all_v(c.comm, c.in, c.in_counts, nullptr, c.out, c.out_counts, nullptr, c.dtype,
                                         c.options, c.works);
             }),
};

/// Number of elements before part k, which holds k + 1 of n(n+1)/2 shares.
uint64_t elems_before(uint64_t whole_elems, uint64_t k, uint64_t n) {
  const uint64_t shares = n * (n + 1) / 2, before = k * (k + 1) / 2;
  return whole_elems / shares * before + whole_elems % shares * before / shares;
}
uint64_t variable_elems(uint64_t whole_elems, uint64_t k, uint64_t n) {
  return elems_before(whole_elems, k + 1, n) - elems_before(whole_elems, k, n);
}

/// Number of elements that rank `from` gives to rank `to`. A rank that does not matter for the operation may be any.
uint64_t part_elems(const PerfOperation& o, const CallShape& shape, int nranks, Rank from, Rank to) {
  if (!o.variable_counts) return shape.count_elems;
  const Rank k = o.cuts_in() && o.cuts_out() ? (from + to) % nranks : o.cuts_in() ? to : from;
  return variable_elems(shape.whole_elems, static_cast<uint64_t>(k), static_cast<uint64_t>(nranks));
}

/// Start of the part for rank `to` in rank `from`'s input.
uint64_t first_elem_for(const PerfOperation& o, const CallShape& shape, int nranks, Rank from, Rank to) {
  if (!o.cuts_in()) return 0;
  if (!o.variable_counts) return static_cast<uint64_t>(to) * shape.count_elems;
  uint64_t first = 0;
  for (Rank r = 0; r < to; ++r) first += part_elems(o, shape, nranks, from, r);
  return first;
}

}  // namespace

std::string letters_of(std::string_view name) {
  std::string letters;
  for (char c : name)
    if (c != '_' && c != '-') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

std::string letters_of_collective(std::string_view name) {
  constexpr std::string_view kProgram = "_perf";
  if (name.ends_with(kProgram)) name.remove_suffix(kProgram.size());
  return letters_of(name);
}

std::span<const PerfOperation> perf_operations() { return kOperations; }

const PerfOperation* find_perf_operation(std::string_view name) {
  for (const PerfOperation& o : kOperations)
    if (letters_of(o.name) == letters_of_collective(name)) return &o;
  return nullptr;
}

std::string perf_operation_names() {
  std::string names;
  for (const PerfOperation& o : kOperations) names += (names.empty() ? "" : ", ") + std::string(o.name);
  return names;
}

CallShape call_shape(const PerfOperation& o, Dtype dtype, int nranks, uint64_t bytes) {
  const auto n = static_cast<uint64_t>(nranks);
  const bool cut = o.cuts_in() || o.cuts_out();
  CallShape shape;
  if (!o.moves_bytes()) return shape;
  shape.whole_elems = bytes / dtype_bytes(dtype);
  shape.count_elems = cut ? shape.whole_elems / n : shape.whole_elems;
  if (cut && !o.variable_counts) shape.whole_elems = shape.count_elems * n;
  uint64_t one = shape.count_elems;  // the longest part
  if (o.variable_counts)
    for (uint64_t k = 0; k < n; ++k) one = std::max(one, variable_elems(shape.whole_elems, k, n));
  shape.in_elems = o.cuts_in() ? shape.whole_elems : one;
  shape.out_elems = o.cuts_out() ? shape.whole_elems : one;
  shape.bytes = shape.whole_elems * dtype_bytes(dtype);
  return shape;
}

RankLayout rank_layout(const PerfOperation& o, const CallShape& shape, const RankRole& view) {
  const auto holds = [&](Holders h) {
    return h == Holders::kEverybody || (h == Holders::kRoot && view.root == view.rank);
  };
  const auto sum = [](const std::vector<uint64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  };
  const auto before = [&](const std::vector<uint64_t>& counts) {
    return counts.size() == 1 ? 0 : std::accumulate(counts.begin(), counts.begin() + view.rank, uint64_t{0});
  };
  RankLayout layout;
  for (Rank p = 0; p < (o.cuts_in() ? view.nranks : 1); ++p)
    layout.in_counts.push_back(part_elems(o, shape, view.nranks, view.rank, p));
  for (Rank p = 0; p < (o.cuts_out() ? view.nranks : 1); ++p)
    layout.out_counts.push_back(part_elems(o, shape, view.nranks, p, view.rank));
  if (holds(o.traits.in_holders)) layout.in_elems = sum(layout.in_counts);
  if (holds(o.traits.out_holders)) layout.out_elems = sum(layout.out_counts);
  layout.in_own = before(layout.in_counts);
  layout.out_own = before(layout.out_counts);
  return layout;
}

std::vector<Segment> expected_segments(const PerfOperation& o, const CallShape& shape, const RankRole& view) {
  std::vector<Segment> segments;
  if (rank_layout(o, shape, view).out_elems == 0) return segments;
  const Rank sender = o.is_rooted() ? view.root : (view.rank + view.nranks - 1) % view.nranks;
  for (Rank p = 0; p < (o.cuts_out() ? view.nranks : 1); ++p) {
    const Rank from = o.cuts_out() ? p : sender;
    segments.push_back({from, first_elem_for(o, shape, view.nranks, from, view.rank),
                        part_elems(o, shape, view.nranks, from, view.rank)});
  }
  return segments;
}

Bandwidth bandwidth(const PerfOperation& o, int nranks, uint64_t bytes, double seconds) {
  if (seconds <= 0) return {};
  const double algorithm = static_cast<double>(bytes) / 1e9 / seconds;
  const double share = static_cast<double>(nranks - 1) / nranks;
  const double factors[] = {0, 1, share, 2 * share};
  return {algorithm, algorithm * factors[static_cast<int>(o.bus_factor)]};
}

}  // namespace rondo::tools

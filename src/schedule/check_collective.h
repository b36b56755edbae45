// A collective as a precondition and a postcondition on every chunk. For the checker and the renderer.
//
// Derived from the row of RONDO_COLLECTIVES. The elements of a collective are divided into classes, one for each chunk
// of the whole (the larger buffer). Input chunks of one class are added up, or copied.
//
//     N ranks, q chunks a part       class of in[c] on rank r    required class of out[c] on rank r
//     all_reduce, reduce, broadcast  c                           c
//     reduce_scatter, scatter        c                           r q + c
//     all_gather, gather             r q + c                     c
//     all_to_all                     c                           r q + c mod q, from rank c / q
//     barrier                        no data
//
// In-place calls overlap the two buffers so that equal classes share memory (rondo.h); only all_to_all is never in
// place. Thread safety: immutable.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rondo/schedule.h"

namespace rondo::check {

class Conditions {
 public:
  /// The schedule's chunk counts must fit its collective (check_program.cc).
  explicit Conditions(const Schedule& s)
      : collective(s.collective),
        nranks(static_cast<uint32_t>(s.nranks)),
        root(s.root),
        in_chunks(s.ranks[0].in_chunks),
        out_chunks(s.ranks[0].out_chunks),
        per_part(in_chunks / static_cast<uint32_t>(parts(traits().in_parts, s.nranks))) {}

  const CollectiveTraits& traits() const { return collective_traits(collective); }
  bool reduces() const { return traits().reduces; }
  /// Every rank has data for every other rank: a rank knows only its own row and column of the counts.
  bool transposes() const { return in_each() && out_each(); }
  static bool holds(Collective c, Rank root, Rank rank, Buffer b) {
    const Holders h = b == Buffer::kIn ? collective_traits(c).in_holders : collective_traits(c).out_holders;
    return b == Buffer::kScratch || h == Holders::kEverybody || (h == Holders::kRoot && rank == root);
  }
  bool holds(Rank rank, Buffer b) const { return holds(collective, root, rank, b); }

  uint32_t num_classes() const { return std::max(in_chunks, out_chunks); }
  /// The class of in[c] on rank r.
  uint32_t before(Rank r, uint32_t c) const { return !in_each() && out_each() ? first(r) + c : c; }
  /// The class that out[c] of rank r must hold.
  uint32_t after(Rank r, uint32_t c) const { return in_each() ? first(r) + c % per_part : c; }
  /// Without addition: the rank whose input out[c] must hold, on any rank.
  Rank giver(uint32_t c) const { return out_each() ? static_cast<Rank>(c / per_part) : root; }
  uint32_t contributions() const { return reduces() ? nranks : 1; }

  /// One rank's memory in an in-place call, in chunks.
  uint32_t num_addresses() const { return transposes() ? in_chunks + out_chunks : num_classes(); }
  uint32_t address(Rank r, Buffer b, uint32_t c) const {
    if (b == Buffer::kIn) return before(r, c);
    return transposes() ? in_chunks + c : after(r, c);
  }

  Collective collective;
  uint32_t nranks;
  Rank root;
  uint32_t in_chunks, out_chunks;
  uint32_t per_part;  // chunks of one part

 private:
  bool in_each() const { return traits().in_parts == Parts::kEach; }
  bool out_each() const { return traits().out_parts == Parts::kEach; }
  uint32_t first(Rank r) const { return static_cast<uint32_t>(r) * per_part; }
};

}  // namespace rondo::check

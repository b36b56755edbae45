// The roles of ranks in algorithms for several hosts, used by hierarchical.h.
//
// Every chunk belongs to a host: the first to complete it, or its origin. It has an *agent* on each host: the
// one rank there that exchanges it with other hosts. Each chunk crosses from agent to agent, and the agents of a host
// share its link.
//
//     2 hosts of 2 ranks, chunks of host 0: 0 1, of host 1: 2 3      3 + 2 ranks, three chunks each
//
//     host 0   rank 0: agent of 0 2    rank 1: of 1 3                rank 0: 0 3   rank 1: 1 4   rank 2: 2 5
//     host 1   rank 2: agent of 0 2    rank 3: of 1 3                rank 3: 0 1 3 4             rank 4: 2 5
//
// If all hosts have equally many ranks, the agents of a chunk have equal local numbers. Otherwise the chunks of a host
// are dealt out evenly, in blocks.
#pragma once

#include <algorithm>

#include "rondo/host_layout.h"
#include "rondo/recorder.h"

namespace rondo::algorithms {

struct TwoLevels {
  /// kByRank: chunk r is rank r's and belongs to its host. kEven: equally many chunks for each host. kShared: as
  /// many as one host has, of no host. kFew: as kShared, at most kFewChunks, for collectives without addition: few
  /// ranks keep a link busy.
  enum class Cut { kByRank, kEven, kShared, kFew };
  // Kinds of message: a contribution to a sum for another host, or for this one; the sum of a host; a complete chunk
  // from its host, or passed on.
  static constexpr uint16_t kGiveAway = 0, kGive = 1, kSum = 2, kComplete = 3, kPassedOn = 4;

  TwoLevels(Rank r, const HostLayout& layout, Cut how)
      : rank(r),
        hosts(layout),
        cut(how),
        num_hosts(layout.num_hosts()),
        host(layout.host(r)),
        local(layout.local(r)),
        num_local_peers(layout.num_ranks(host) - 1),
        each(std::min(even_chunks(layout), how == Cut::kFew ? kFewChunks : 65535)) {}
  Rank rank;
  const HostLayout& hosts;
  Cut cut;
  int num_hosts, host, local;
  int num_local_peers;  // the other ranks of this host
  int each;       // chunks of each host, unless kByRank

  static constexpr int kFewChunks = 8;
  /// As many as the largest host has ranks, which gives all of them work, but at most twice the average.
  static int even_chunks(const HostLayout& layout) {
    const int average = (layout.nranks() + layout.num_hosts() - 1) / layout.num_hosts();
    return std::max(1, std::min({layout.most_ranks(), 2 * average, 65535 / layout.num_hosts()}));
  }
  int num_chunks() const { return cut == Cut::kByRank ? hosts.nranks() : cut == Cut::kEven ? each * num_hosts : each; }
  int chunks_of(int home) const { return cut == Cut::kByRank ? hosts.num_ranks(home) : each; }
  /// Chunk i of host `home`.
  int chunk(int home, int i) const {
    return cut == Cut::kByRank ? hosts.rank(home, i) : cut == Cut::kEven ? home * each + i : i;
  }
  Rank agent(int on, int home, int i) const {
    return hosts.rank(on, static_cast<int>(int64_t{i} * hosts.num_ranks(on) / chunks_of(home)));
  }
  /// The chunks of `home` whose agent on this host has local number `l`: first .. last-1.
  struct Block {
    int first, last;
    int size() const { return last - first; }
  };
  Block block(int home, int l) const {
    const int64_t n = chunks_of(home), ranks = num_local_peers + 1;
    return {static_cast<int>((l * n + ranks - 1) / ranks), static_cast<int>(((l + 1) * n + ranks - 1) / ranks)};
  }
  Block mine(int home) const { return block(home, local); }

  /// Calls fn(home, i) for all chunks: chunk i of all hosts, then the next i, in one order on all ranks. A rank that
  /// waits for space or for a message therefore waits for something earlier in this order, and each connection needs
  /// space for one chunk only. Among the chunks with equal i, this host's comes last or first.
  enum class Home { kLast, kFirst };
  template <class Fn>
  void for_all_chunks(Home when, Fn fn) const {
    int most = 0;
    for (int home = 0; home < num_hosts; ++home) most = std::max(most, chunks_of(home));
    for (int i = 0; i < most; ++i)
      for (int k = 0; k < num_hosts; ++k) {
        const int back = when == Home::kLast ? k + 1 : k, home = before(back);  // 1 .. M, or 0 .. M-1
        if (i < chunks_of(home)) fn(home, i);
      }
  }
  bool is_mine(int home, int i) const { return mine(home).first <= i && i < mine(home).last; }

  /// The host `back` before this one. Each host starts with its own neighbour, which spreads the load.
  int before(int back) const { return (host + num_hosts - back) % num_hosts; }

  /// From each local peer.
  PortSet from_local_peers(uint16_t tag) const { return local_peers(tag, kUnicast); }
  /// To all local peers, written once. As a receive set: the message of each of them.
  PortSet to_local_peers(uint16_t tag) const { return local_peers(tag, kGroupHost); }
  /// The agents of a chunk on all other hosts, by ascending host.
  PortSet other_agents(int home, int i, uint16_t tag) const {
    PortSet ports;
    for (int h = 0; h < num_hosts; ++h)
      if (h != host) ports.push_back({agent(h, home, i), tag});
    return ports;
  }

 private:
  PortSet local_peers(uint16_t tag, uint16_t group) const {
    PortSet ports;
    for (int l = 0; l <= num_local_peers; ++l)
      if (l != local) ports.push_back({hosts.rank(host, l), tag, group});
    return ports;
  }
};

/// The union of two sets.
inline PortSet operator+(PortSet a, const PortSet& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace rondo::algorithms

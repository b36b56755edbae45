// Bootstrap: the out-of-band control plane among the ranks of one communicator.
//
// join() meets the other ranks at the rendezvous named by a unique id, proves in both directions that each side holds
// the id's secret, and then connects every rank with every other, or, where there are many, with those of its row and
// column in a grid (bootstrap/mesh_plan.h): through an abstract Unix socket on the same host, through TCP otherwise. What
// follows (gathering blobs, handing over file descriptors, noticing deaths) runs on that mesh without any central
// process, so the death of no rank, not even of the maker of the id, makes the others hang.
//
//   rank 0 ----unix---- rank 1        host A: one stream per pair, carries frames, descriptors (SCM_RIGHTS), EOF = death
//      \  \            /   |          host B: likewise
//       \  `---tcp----'    tcp        between hosts: frames and EOF; TCP keepalive finds a host without power
//        `------tcp---- rank 2
//
// Cost: nranks-1 sockets a rank and as many pidfds as local peers in other processes; beyond RONDO_FULL_MESH ranks
// (64) about 2 sqrt(nranks) of each, and a thread that passes on whose end its neighbours have seen (news.cc). A
// collective call sends nranks-1 messages a rank; from 17 ranks on all send 3 nranks together (block_exchange.cc). It
// is not a data path: payloads are a few KiB, and they are authenticated at connection time but not encrypted.
//
// Every wait ends at BootstrapOptions::deadline_s, within 50 ms after the abort flag is raised, or when a peer that is
// waited for is lost; the error names the ranks. From 17 ranks on those who wait for what another collects give it up
// to 2 s more: it knows who is missing.
//
// Thread safety: make_unique_id and join from any thread. On one Bootstrap, the collective calls (all_gather, barrier,
// exchange_descriptors, say_goodbye) are serialised inside, and all ranks must call them in the same order; find_lost
// and the accessors may be called at any time from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rondo/host_layout.h"
#include "rondo/rondo.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

struct BootstrapOptions {
  double deadline_s = 120;                     // of join, and of every collective call on the Bootstrap
  const std::atomic<bool>* abort = nullptr;    // raised by another thread: waits return kAborted. Outlives the Bootstrap
  uint64_t pretend_host = 0;                   // tests: ranks with different values treat each other as other hosts
  std::function<Status()> interrupt = {};      // of join, and of what is made before another set_interrupt()
};

/// Makes an id and starts its rendezvous: a thread of this process that listens on every usable network interface
/// (RONDO_SOCKET_IFNAME selects) until all ranks of one communicator have met, or for twice the init deadline
/// (RONDO_INIT_TIMEOUT_S, 120 s) when nobody comes. The process must live until then. One id serves one communicator.
/// Errors: kSystem (no usable interface, no socket), kInvalidArgument (RONDO_SOCKET_IFNAME matches nothing).
Expected<rondo_unique_id> make_unique_id();
/// Of the init deadline, in seconds, where no setting says otherwise.
inline constexpr double kDefaultInitS = 120;

class Bootstrap {
 public:
  /// Collective. Errors: kInvalidArgument (rank, nranks, id), kMismatch (ranks disagree on nranks, a rank came twice),
  /// kUnauthorized (wrong secret), kTimeout (names the missing ranks), kPeerLost, kAborted, kSystem.
  /// An error that concerns the group is returned to all ranks that have come so far.
  static Expected<std::unique_ptr<Bootstrap>> join(int nranks, const rondo_unique_id& id, Rank rank,
                                                   const BootstrapOptions& options = {});
  /// Closes all connections. Without say_goodbye() before, the peers see a loss.
  ~Bootstrap();
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;

  Rank rank() const;
  int nranks() const;

  /// Collective: (*all)[r] becomes the bytes that rank r passed; sizes may differ, each at most 1 GiB,
  /// from 17 ranks on all of them together.
  /// An error of any collective call leaves the Bootstrap unusable: later ones return the same error.
  Status all_gather(const void* mine, size_t bytes, std::vector<std::string>* all);
  /// Collective: returns when all ranks have called it.
  Status barrier();
  /// The same among the ranks of this host alone, whatever the others do; empty for ranks of other hosts.
  Status all_gather_here(const void* mine, size_t bytes, std::vector<std::string>* all);
  /// Collective over the ranks of this host: (*all)[r] becomes duplicates of the descriptors that rank r of this host
  /// passed, close-on-exec, owned by the caller; empty for this rank itself and for ranks on other hosts. On an error
  /// nothing is handed out.
  Status exchange_descriptors(std::span<const int> mine, std::vector<std::vector<int>>* all);

  /// True when `peer` runs on this host and in this network namespace (so descriptors can be exchanged).
  bool same_host(Rank peer) const;
  /// Which ranks are on the same host, in this sense; equal on all ranks.
  HostLayout hosts() const;
  /// True when `peer` is a thread of this process (or this rank itself).
  bool same_process(Rank peer) const;
  /// The numeric IP address at which this rank reaches `peer`; empty for one that is gone.
  std::string address_of(Rank peer) const;
  /// All that address_of() of this rank may be on any rank.
  std::vector<std::string> own_addresses() const;
  /// "rank 3 (pid 4711 on node7)": for messages.
  std::string describe(Rank peer) const;

  struct Loss {
    Rank rank;
    std::string how;  // a sentence that names the rank
  };
  /// The first peer found dead, or heard of as dead, for good; nothing while all live or have said goodbye. One system
  /// call while nothing happened; never blocks.
  std::optional<Loss> find_lost();

  /// Nothing while `peer` has not said goodbye; then the note that it left. Never blocks.
  std::optional<std::string> parting_note(Rank peer);

  /// Whether each rank is linked with each (RONDO_FULL_MESH, bootstrap/mesh_plan.h).
  bool is_full() const;
  /// Where it is not: tells all ranks something. announced(): of what a rank has heard of a topic, from any or itself,
  /// what has the smallest place; of these the first. Neither blocks.
  enum class Topic : uint8_t { kAbort, kDisagreement };
  struct Announcement {
    Rank by;
    uint64_t place;  // in an order that all ranks know; 0: there is none
    std::string text;
  };
  void announce(Topic topic, uint64_t place, std::string text);
  std::optional<Announcement> announced(Topic topic);

  /// Collective over all ranks: a Bootstrap of its own for `members`, in the order of their new ranks; every rank
  /// passes the group that it belongs to. Nothing for a rank that passes no members. On one host the members hand one
  /// another connected sockets over the links that stand; across hosts, and where not all are linked, they meet at a
  /// rendezvous of members[0]. Errors:
  /// those of all_gather, and kSystem naming the rank that could not make its sockets.
  Expected<std::unique_ptr<Bootstrap>> subset(const std::vector<Rank>& members, const BootstrapOptions& options);
  /// While a communicator of these ranks, or of some of them, is being made: ok, or why it cannot come about any more:
  /// a rank is gone or has given up making it. Errors: that rank's. Not to be asked within a call on this Bootstrap.
  Status still_whole();
  /// Collective over all ranks, at the end of making: `made` is how it went here. Ok if it went well everywhere; else
  /// all ranks get an error, and of several the gravest. After kTimeout, kPeerLost and kAborted the Bootstrap is
  /// unusable, and no rank is waited for.
  Status commit(const Status& made, const BootstrapOptions& options);
  /// Asked at least every 50 ms while a collective call waits; an error ends the call. Set before the first call.
  void set_interrupt(std::function<Status()> interrupt);

  // Shrinking, collective over the ranks that live and are not excluded, also after any error: begin_shrink once, then
  // agree() until all have made the same communicator of the same ranks, each time after subset_of_survivors().
  struct Survivors {
    std::vector<Rank> members;  // equal on all of them
    Status failure;             // of the gravest made, equal on all
    bool begun_anew;            // what was made for an earlier answer must be made again, also for the same members
  };
  Status begin_shrink(const std::vector<Rank>& excluded, const BootstrapOptions& options);
  /// made: how this rank's making of the last answer's communicator went; ok at first. Errors: kTimeout (names the
  /// ranks that live and do not come), kMismatch (another list, or this rank is excluded), kAborted.
  Expected<Survivors> agree(const Status& made);
  /// A Bootstrap of the members that agree() said.
  Expected<std::unique_ptr<Bootstrap>> subset_of_survivors(const std::vector<Rank>& members,
                                                           const BootstrapOptions& options);
  /// As still_whole(), of what the members make after subset_of_survivors().
  Status still_with_survivors(const std::vector<Rank>& members);

  /// Tells the peers that this rank leaves on purpose: they see no loss, and an error "rank r left the communicator"
  /// only if they wait for it. No collective call may follow. `note`: what parting_note() tells them, about
  /// a line. `cause`: the failure for which it leaves, if any; that error names it.
  void say_goodbye(const std::string& note = {}, const Status& cause = {});

 private:
  class Impl;
  explicit Bootstrap(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rondo

// Bootstrap: the out-of-band control plane among the ranks of one communicator.
//
// join() connects to the rendezvous that a unique id names. Both sides prove that they hold the id's secret. Then every
// rank connects to every other rank, or, if there are many, to the ranks of its row and column in a grid
// (bootstrap/mesh_plan.h): through abstract Unix sockets on one host, otherwise through TCP. Everything else (gathering
// data, passing file descriptors, detecting deaths) uses these links and no central process. Therefore the death of any
// rank, also of the one that made the id, does not make the others hang.
//
//   rank 0 ----unix---- rank 1        host A: one stream per pair: frames, descriptors (SCM_RIGHTS), EOF = death
//      \  \            /   |          host B: likewise
//       \  `---tcp----'    tcp        between hosts: frames and EOF; TCP keepalive finds a host without power
//        `------tcp---- rank 2
//
// Cost: nranks-1 sockets for each rank, and one pidfd for each local peer in another process. With more than
// kMostFullMesh (64) ranks: about 2 sqrt(nranks) of each, and one thread that forwards membership events. In a
// control call (all_gather, barrier, subset or commit of this class) each rank sends nranks-1 messages; with 17 or more
// ranks, all ranks together send 3 nranks (block_exchange.cc). This is not a data path: payloads are a few KiB. Links
// are authenticated when they are made. Only TCP links are encrypted, and only if encryption is on (bootstrap/link.h).
//
// Every wait ends at BootstrapOptions::deadline_s, or within 50 ms after the abort flag is raised, or when a peer that
// it waits for is lost. The error names the ranks. A wait for the rendezvous, or (with 17 or more ranks) for the first
// rank of a row, lasts up to 2 s longer, because the rendezvous or that rank can name the missing rank.
//
// bootstrap.cc has the control calls and watches the links. membership.cc judges how a peer has ended and forwards
// membership events. submesh.cc makes a mesh of some of the ranks. In survivors.cc the live ranks agree on the set of
// survivors.
//
// Only the thread that holds the turn may read from the links. A control call takes the turn. Between calls, threads
// that look for deaths take it. Without the turn, one thread could read a frame for which another thread waits, and the
// other thread would not wake up.
//
// Thread safety: make_unique_id and join from any thread. The control calls on one Bootstrap (also all_gather_here,
// among the ranks of a host) and say_goodbye run one at a time. All ranks must make the control calls in the same
// order. find_lost and the accessors may be called at any time from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/codec.h"
#include "base/forks.h"
#include "base/thread.h"
#include "bootstrap/mesh.h"
#include "bootstrap/mesh_plan.h"
#include "bootstrap/survivors.h"
#include "rondo/host_layout.h"
#include "rondo/rondo.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

struct BootstrapOptions {
  double deadline_s = 120;                     // of join and of every control call
  const std::atomic<bool>* abort = nullptr;    // if it is set, waits return kAborted. Must outlive the Bootstrap
  uint64_t pretend_host = 0;                   // for tests: ranks with different values act as if on different hosts
  std::function<Status()> interrupt = {};      // used until set_interrupt() sets another
  std::function<std::string(Rank rank, int nranks)> greeting = {};  // what all ranks learn of this rank: greeting_of()
};

/// Makes an id and starts its rendezvous, a thread of this process. It listens on every usable network interface
/// (RONDO_SOCKET_IFNAME selects them) until all ranks of one communicator have connected. If no rank joins, it ends
/// after twice the init deadline (RONDO_INIT_TIMEOUT_S, 120 s). The process must live until all ranks have joined. An
/// id serves one communicator. Errors: kSystem (no interface, no socket), kExhausted (no thread), kInvalidArgument
/// (RONDO_SOCKET_IFNAME).
Expected<rondo_unique_id> make_unique_id();

/// A rank's arguments of all_gather_here().
struct FromRank {
  std::string bytes;
  std::vector<Fd> descriptors;
};

class Bootstrap {
 public:
  /// Collective. Errors: kInvalidArgument (rank, nranks, id), kMismatch (ranks disagree on nranks, a rank joins twice),
  /// kUnauthorized (wrong secret), kTimeout (names the missing ranks), kPeerLost, kAborted, kSystem.
  /// An error that concerns the whole group is returned to all ranks that have joined.
  static Expected<std::unique_ptr<Bootstrap>> join(int nranks, const rondo_unique_id& id, Rank rank,
                                                   const BootstrapOptions& options = {});
  /// Closes all connections. If say_goodbye() was not called before, the peers report this rank as lost.
  ~Bootstrap();
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;

  Rank rank() const { return rank_; }
  int nranks() const { return static_cast<int>(peers_.size()); }

  /// Collective. Sets (*all)[r] to the bytes that rank r passed. Sizes may differ. The limit is 1 GiB for each; with 17
  /// or more ranks, in total. After an error of any control call, later calls return the same error.
  Status all_gather(const void* mine, size_t bytes, std::vector<std::string>* all) {
    return gather(FrameKind::kGather, {static_cast<const char*>(mine), bytes}, all);
  }
  /// Collective. Returns when all ranks have called it.
  Status barrier() {
    std::vector<std::string> nothing;
    return gather(FrameKind::kBarrier, {}, &nothing);
  }
  /// all_gather() among the ranks of this host, independent of other hosts. It also passes descriptors: (*all)[r] has
  /// duplicates of rank r's, which are close-on-exec, but none of this rank's. The kernel may drop descriptors if this
  /// process has no free ones. Entries of ranks on other hosts are empty.
  Status all_gather_here(std::string_view mine, std::span<const int> descriptors, std::vector<FromRank>* all);

  /// Returns true if `peer` runs on this host and in this network namespace, so that descriptors can be exchanged.
  bool same_host(Rank peer) const { return hosts().same_host(peer, rank_); }
  /// Returns which ranks share a host, as defined by same_host(). Equal on all ranks.
  const HostLayout& hosts() const { return plan_.hosts(); }
  /// Returns true if `peer` is a thread of this process (or this rank itself).
  bool same_process(Rank peer) const { return same_host(peer) && peers_[peer].process == peers_[rank_].process; }
  /// Returns the numeric IP address at which this rank reaches `peer`, or an empty text if `peer` is gone.
  std::string address_of(Rank peer);
  /// Returns all addresses that address_of() can return for this rank on any rank.
  std::vector<std::string> own_addresses();
  /// Returns the bytes of `peer`'s BootstrapOptions::greeting. The ranks exchange them with their addresses, so this
  /// needs no control call.
  const std::string& greeting_of(Rank peer) const { return peers_[peer].greeting; }
  /// Returns "rank 3 (pid 4711 on node7)" for messages.
  std::string describe(Rank peer) const { return peer_text(peer, peers_[peer]); }

  struct Loss {
    Rank rank;
    std::string how;  // a sentence that names the rank
  };
  /// Returns the first peer whose death this rank has seen or was told, and later always the same. Returns nothing if
  /// all live or have said goodbye. Never blocks. Costs one system call if there is no event.
  std::optional<Loss> find_lost();

  /// Returns the note of `peer`'s goodbye, nothing if it has not said goodbye. Never blocks.
  std::optional<std::string> parting_note(Rank peer);

  /// Returns true if every rank has a link to every other rank (bootstrap/mesh_plan.h).
  bool is_full() const { return plan_.is_full(); }
  /// If the mesh is not full: announce() sends a text to all ranks. announced() returns the announcement with the
  /// smallest place (of equal ones the first) that this rank has received or made for the topic. Neither blocks.
  enum class Topic : uint8_t { kAbort, kDisagreement };
  struct Announcement {
    Rank by;
    uint64_t place;  // position in an order that is equal on all ranks; 0 if the topic has no order
    std::string text;
  };
  void announce(Topic topic, uint64_t place, std::string text);
  std::optional<Announcement> announced(Topic topic);

  /// Collective over all ranks. Makes a new Bootstrap of `members`, which are in the order of their new ranks. Every
  /// rank passes the group to which it belongs. Returns nullptr to a rank that passes no members. Errors: those of
  /// all_gather and of join, and kSystem naming the rank that could not open a port.
  Expected<std::unique_ptr<Bootstrap>> subset(const std::vector<Rank>& members, const BootstrapOptions& options);
  /// Checks, while a communicator of some or all of these ranks is being made, whether it can still be made. Returns an
  /// error if a rank is gone or has given up. Must not be called from within a call on this Bootstrap.
  Status still_whole();
  /// Collective over all ranks. Ends the making of a communicator; `made` is this rank's result. Returns ok if all
  /// ranks succeeded. Otherwise all ranks get an error, of several the most serious. kPeerLost is the least
  /// serious, because another error may have caused it. If `made` is kTimeout or kAborted, or if a
  /// rank is gone or has given up, the call waits for no rank, and the Bootstrap is unusable.
  Status commit(const Status& made, const BootstrapOptions& options);
  /// Sets a function that is called at least every 50 ms while a control call waits. Its error ends the call. Call
  /// this before the first control call.
  void set_interrupt(std::function<Status()> interrupt);

  // Shrinking. All live ranks that are not excluded take part, also after any error. Call begin_shrink() once. Then
  // call agree() and subset_of_survivors() in turn, until all have made a communicator of the same ranks.
  struct Survivors {
    std::vector<Rank> members;  // equal on all members
    Status failure;             // the most serious `made` of all members; equal on all
    bool begun_anew;            // a communicator of an earlier answer must be made again, even if the members are equal
  };
  Status begin_shrink(const std::vector<Rank>& excluded, const BootstrapOptions& options);
  /// Returns the survivors. `made` is this rank's result of making the communicator of the last answer; ok in the first
  /// call. Errors: kTimeout (names the live ranks that do not call shrink), kMismatch (another list of excluded ranks,
  /// or this rank is excluded), kAborted.
  Expected<Survivors> agree(const Status& made);
  /// Makes a Bootstrap of the members that agree() returned.
  Expected<std::unique_ptr<Bootstrap>> subset_of_survivors(const std::vector<Rank>& members,
                                                           const BootstrapOptions& options);
  /// Same as still_whole(), for a communicator that the members make after subset_of_survivors().
  Status still_with_survivors(const std::vector<Rank>& members);

  /// Sends a goodbye to the peers: they report no loss. A peer that waits for this rank gets the error "rank r left the
  /// communicator". No control call may follow. `cause`: the failure because of which this rank leaves, if any. The
  /// peers' error contains it.
  void say_goodbye(const Status& cause = {});
  /// Sets the goodbye's note, about one line, which the peers' parting_note() returns.
  void part(std::string note) { note_ = std::move(note); }

 private:
  Bootstrap(Rank rank, const BootstrapOptions& options)
      : rank_(rank), options_{options.deadline_s, options.abort, options.pretend_host}, interrupt_(options.interrupt) {}
  Status meet(int nranks, const IdContents& id, const BootstrapOptions& options);
  Status connect(Met met, const Secret& secret, const std::function<Status()>& interrupt);
  /// Held during a control call, with the turn. Only one exists at a time.
  struct Call {
    explicit Call(Bootstrap& of) : lock(of.collective_mutex_), turn(of.turn_) {}
    std::lock_guard<std::mutex> lock, turn;
  };
  struct Exchange {
    FrameKind kind;
    std::string_view payload;
    std::span<const int> descriptors;
    uint32_t sequence;
    Deadline deadline;
  };
  Status gather(FrameKind kind, std::string_view mine, std::vector<std::string>* all) {
    return gather(kind, mine, all, Deadline(options_.deadline_s, options_.abort));
  }
  Status gather(FrameKind kind, std::string_view mine, std::vector<std::string>* all, const Deadline& deadline);
  struct Awaited {
    FrameKind kind;
    uint32_t sequence;
    std::vector<Rank> to, from;  // this rank has sent frames to `to`; each of `from` sends it one frame
    const Deadline* deadline;
    bool skip_others = false;                // drop frames of calls that were given up
    std::function<bool(Rank)> gave_up = {};  // called for a rank whose frame has not arrived
  };
  Expected<bool> take_one(const Awaited& what, Rank peer, Frame* got);
  // block_exchange.cc
  static constexpr size_t kMostDirect = 16;  // up to this many ranks, every rank sends to every other in one step
  struct Passing {
    std::vector<Rank> to, from;
    const Deadline* deadline;
  };
  Status exchange(const Exchange& what, std::vector<Frame>* got);
  Status pass_bundle(const Exchange& what, const std::vector<Rank>& of, const Passing& how, std::vector<Frame>* have);
  std::vector<Rank> hear(std::vector<Rank>* unflushed, int slice_ms, std::vector<pollfd>* also);
  Status receive(const Awaited& what, std::vector<Frame>* got);

  void sort_frames(Rank peer);
  std::optional<Frame> next_frame(Rank peer);
  std::string first_end(Rank peer, Link::End end, const std::string& why);
  Status fail(Status status);
  Status give_up(uint32_t sequence, Status status);
  Status heard_of_giving_up(const Awaited& what, Rank peer);
  Status watch();
  std::vector<Rank> look(int slice_ms = 0);
  void forget(Rank peer);
  Status watch_link(Rank peer);

  // membership.cc
  struct Gone {
    Rank rank;
    std::string text;    // the reason of a loss, a goodbye's cause and note, or an announcement's text
    uint64_t place = 0;  // only for an announcement
  };
  void note_lost(const Gone& what, Rank from);
  void note_left(const Gone& what, Rank from);
  void note_announced(Topic topic, const Gone& what, Rank from);
  void take_events(Rank from);
  struct Goodbye {
    std::string cause;  // the failure because of which the rank left; empty if there was none
    std::string note;
  };
  std::optional<Goodbye> goodbye_of(Rank peer);
  std::string left_text(Rank peer);
  void judge(Rank peer, bool process_ended);
  void tell(Rank to, uint8_t what, const Gone& gone);
  void send_events();
  void forward_leaving(const Gone& what);
  Status start_events();
  void stop_events();
  void wake_events();
  Status learn_of_all();

  // submesh.cc
  std::unique_ptr<Bootstrap> begin_child(const std::vector<Rank>& members, const BootstrapOptions& options,
                                         std::string* offer);
  Status finish_child(const std::vector<Rank>& members, const std::vector<std::string>& offers,
                      const std::function<Status()>& interrupt, Bootstrap* child);
  Status still_whole_locked();

  // survivors.cc
  enum class Phase { kDecided, kRestarted };
  Expected<Phase> run_phase();
  void send_view(uint32_t round, bool decided);
  std::optional<ViewMessage> next_view(Rank peer);
  bool is_gone(Rank peer);
  /// Returns a number that grows with attempts and phases and is above the sequence numbers of all other calls.
  uint32_t shrink_sequence() const { return 0x80000000u | attempt_ << 12 | phase_; }
  Status check_view(Rank peer, const ViewMessage& m, uint32_t round) const;
  bool has_begun_anew(Rank peer, bool phases_count);
  Expected<std::vector<bool>> await_views(const std::vector<Rank>& from);
  Status want_links();
  Status take_late_links();
  Status make_links(const std::vector<Rank>& with, const std::function<bool(Rank)>& gave_up);
  Status still_with(const std::vector<Rank>& members, const std::function<bool(Rank)>& gave_up);

  const Rank rank_;
  const BootstrapOptions options_;
  MeshPlan plan_;
  std::vector<PeerInfo> peers_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank; nullptr for this rank and for ranks without a link
  Secret secret_ = {};
  MeshPort port_;  // stays open if the plan is not full
  std::mutex turn_;  // the right to read the links

  std::mutex collective_mutex_;  // guards sequence_, failure_, interrupt_, and the order of frames on the links
  uint32_t sequence_ = 0;
  static constexpr uint32_t kFirstHostSequence = 0x40000000;
  uint32_t host_sequence_ = kFirstHostSequence;  // numbers the calls among this host's ranks; each host has its own
  Status failure_;
  std::string note_;  // for the goodbye
  // By rank: frames that have arrived and are not yet used. views_ has those of kView, others_ the rest.
  std::vector<std::list<Frame>> views_, others_;
  std::function<Status()> interrupt_;
  uint32_t attempt_ = 0, phase_ = 0;  // of shrinking, see ViewMessage
  SurvivorView view_;
  std::optional<Deadline> shrink_deadline_;
  std::unique_ptr<LinkMaker> late_;       // makes the links that the plan does not have
  std::vector<bool> unreachable_;         // by rank: its port has no listener
  Deadline::Clock::time_point ask_at_{};  // next check of the ports of ranks that have not connected
  std::chrono::milliseconds ask_pause_{};
  std::shared_ptr<const std::string> view_bytes_;              // last view sent; also sent on links that are made later
  std::vector<std::shared_ptr<const std::string>> decisions_;  // earlier decisions of this attempt, sent before it

  Fd watch_;                // epoll of the links and pidfds
  std::vector<Fd> pidfds_;  // by rank; empty for threads of this process and ranks of other hosts
  std::mutex loss_mutex_;   // guards the members below, new links in links_, and the handling of watch_'s events
  std::optional<Loss> loss_;
  std::optional<Rank> first_left_;
  std::array<std::optional<Announcement>, 2> announced_;  // by topic
  std::map<Rank, std::string> parted_;                    // parting notes of ranks without a link to this one
  std::vector<bool> gone_;                                // by rank: this rank knows that it is lost or has left
  std::map<Rank, Encoder> outgoing_events_;
  std::vector<Rank> unsent_events_;
  bool leaving_ = false;
  Thread events_thread_;
  Fd events_wake_;  // eventfd
  std::atomic<bool> events_stops_ = false;
  const MadeHere made_here_;
};

}  // namespace rondo

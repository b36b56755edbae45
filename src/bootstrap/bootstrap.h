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
// Cost: nranks-1 sockets a rank and as many pidfds as local peers in other processes; beyond 64 ranks
// (64) about 2 sqrt(nranks) of each, and a thread that passes on whose end its neighbours have seen (news.cc). A
// collective call sends nranks-1 messages a rank; from 17 ranks on all send 3 nranks together (block_exchange.cc). It
// is not a data path: payloads are a few KiB, and they are authenticated at connection time but not encrypted.
//
// Every wait ends at BootstrapOptions::deadline_s, within 50 ms after the abort flag is raised, or when a peer that is
// waited for is lost; the error names the ranks. From 17 ranks on those who wait for what another collects give it up
// to 2 s more: it knows who is missing.
//
// bootstrap.cc has the collective calls and the watch for deaths, news.cc tells of what only some of the ranks see,
// submesh.cc makes a mesh of some of the ranks, survivors.cc lets those that live agree on who they are.
//
// Links are read by whoever has the turn. A collective call takes it, and between such calls whoever looks for deaths: a
// frame that another thread has read would not wake the thread that waits for it.
//
// Thread safety: make_unique_id and join from any thread. On one Bootstrap, the collective calls (all_gather, barrier,
// exchange_descriptors, say_goodbye) are serialised inside, and all ranks must call them in the same order; find_lost
// and the accessors may be called at any time from any thread.
#pragma once

#include <pthread.h>
#include <unistd.h>

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

#include "base/wire.h"
#include "bootstrap/mesh.h"
#include "bootstrap/mesh_plan.h"
#include "bootstrap/survivors.h"
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

  Rank rank() const { return rank_; }
  int nranks() const { return static_cast<int>(peers_.size()); }

  /// Collective: (*all)[r] becomes the bytes that rank r passed; sizes may differ, each at most 1 GiB,
  /// from 17 ranks on all of them together.
  /// An error of any collective call leaves the Bootstrap unusable: later ones return the same error.
  Status all_gather(const void* mine, size_t bytes, std::vector<std::string>* all) {
    return gather(FrameKind::kGather, {static_cast<const char*>(mine), bytes}, all);
  }
  /// Collective: returns when all ranks have called it.
  Status barrier() {
    std::vector<std::string> nothing;
    return gather(FrameKind::kBarrier, {}, &nothing);
  }
  /// The same among the ranks of this host alone, whatever the others do; empty for ranks of other hosts.
  Status all_gather_here(const void* mine, size_t bytes, std::vector<std::string>* all) {
    return gather(FrameKind::kHostGather, {static_cast<const char*>(mine), bytes}, all);
  }
  /// Collective over the ranks of this host: (*all)[r] becomes duplicates of the descriptors that rank r of this host
  /// passed, close-on-exec, owned by the caller; empty for this rank itself and for ranks on other hosts. On an error
  /// nothing is handed out.
  Status exchange_descriptors(std::span<const int> mine, std::vector<std::vector<int>>* all);

  /// True when `peer` runs on this host and in this network namespace (so descriptors can be exchanged).
  bool same_host(Rank peer) const { return peers_[index(peer)].host == peers_[index(rank_)].host; }
  /// Which ranks are on the same host, in this sense; equal on all ranks.
  HostLayout hosts() const;
  /// True when `peer` is a thread of this process (or this rank itself).
  bool same_process(Rank peer) const { return peers_[index(peer)].process == peers_[index(rank_)].process; }
  /// The numeric IP address at which this rank reaches `peer`; empty for one that is gone.
  std::string address_of(Rank peer);
  /// All that address_of() of this rank may be on any rank.
  std::vector<std::string> own_addresses();
  /// "rank 3 (pid 4711 on node7)": for messages.
  std::string describe(Rank peer) const { return peer_text(peer, peers_[index(peer)]); }

  struct Loss {
    Rank rank;
    std::string how;  // a sentence that names the rank
  };
  /// The first peer found dead, or heard of as dead, for good; nothing while all live or have said goodbye. One system
  /// call while nothing happened; never blocks.
  std::optional<Loss> find_lost();

  /// Nothing while `peer` has not said goodbye; then the note that it left. Never blocks.
  std::optional<std::string> parting_note(Rank peer);

  /// Whether each rank is linked with each (bootstrap/mesh_plan.h).
  bool is_full() const { return plan_.is_full(); }
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
  /// passes the group that it belongs to. Nothing for a rank that passes no members. Errors: those of all_gather and of
  /// join, and kSystem naming the rank that could not open a port.
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
  /// The note of a goodbye that comes without one.
  void part(std::string note) { note_ = std::move(note); }

 private:
  Bootstrap(Rank rank, const BootstrapOptions& options)
      : rank_(rank), options_{options.deadline_s, options.abort, options.pretend_host}, interrupt_(options.interrupt) {}
  static size_t index(Rank r) { return static_cast<size_t>(r); }
  /// `interrupt`: as join_rendezvous'.
  Status meet(int nranks, const IdContents& id, const std::function<Status()>& interrupt);
  Status connect(Met met, const Secret& secret, const std::function<Status()>& interrupt);
  /// Of reading the links.
  class Turn {
   public:
    explicit Turn(Bootstrap& of);  // waits
    Turn(Bootstrap& of, std::try_to_lock_t);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    explicit operator bool() const { return has_; }

   private:
    Bootstrap& of_;
    bool has_;
  };
  /// A collective call: one at a time, with the turn.
  struct Call {
    explicit Call(Bootstrap& of) : lock(of.collective_mutex_), turn(of) {}
    std::lock_guard<std::mutex> lock;
    Turn turn;
  };
  struct Exchange {
    FrameKind kind;
    std::shared_ptr<const std::string> payload;
    std::span<const int> descriptors;
    std::function<bool(Rank)> takes_part;
    uint32_t sequence;
    Patience patience;
  };
  Status gather(FrameKind kind, std::string_view mine, std::vector<std::string>* all) {
    return gather(kind, mine, all, Patience(options_.deadline_s, options_.abort));
  }
  Status gather(FrameKind kind, std::string_view mine, std::vector<std::string>* all, const Patience& patience);
  struct Awaited {
    FrameKind kind;
    uint32_t sequence;
    std::vector<Rank> to, from;  // whom we have sent something, and who sends us one frame
    const Patience* patience;
    bool skip_others = false;                // drop other frames: of calls that were given up
    std::function<bool(Rank)> gave_up = {};  // asked when nothing has come from a rank
  };
  Expected<bool> take_one(const Awaited& what, Rank peer, Frame* got);
  // block_exchange.cc
  static constexpr size_t kMostDirect = 16;  // ranks that exchange each with each: one step, each knows who is missing
  struct Passing {
    std::vector<Rank> to, from;
    const Patience* patience;
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
  Status pass_on_giving_up(const Frame& frame);
  Status watch();
  std::vector<Rank> look(int slice_ms = 0);
  void forget(Rank peer);
  Status watch_link(Rank peer);

  // news.cc
  struct Gone {
    Rank rank;
    std::string text;    // how it was lost; its parting note; what it announces
    uint64_t place = 0;  // of an announcement
  };
  void note_lost(const Gone& what, Rank from);
  void note_left(const Gone& what, Rank from);
  void note_announced(Topic topic, const Gone& what, Rank from);
  void take_news(Rank from);
  struct Goodbye {
    std::string cause;  // of the failure for which it left; empty: there was none
    std::string note;
  };
  std::optional<Goodbye> goodbye_of(Rank peer);
  std::string left_text(Rank peer);
  void judge(Rank peer, bool process_ended);
  void tell(Rank to, uint8_t what, const Gone& gone);
  void send_news();
  void forward_leaving(const Gone& what);
  void judge_aloud(Rank peer);
  Status start_news();
  void stop_news();
  void wake_news();
  bool is_in_forked_child() const { return news_pid_ != 0 && news_pid_ != ::getpid(); }
  Status learn_of_all();

  // submesh.cc
  std::unique_ptr<Bootstrap> begin_child(const std::vector<Rank>& members, const BootstrapOptions& options,
                                         std::string* offer);
  Status finish_child(const std::vector<Rank>& members, const std::vector<std::string>& offers,
                      const std::function<Status()>& interrupt, Bootstrap* child);
  Status find_whole();

  // survivors.cc
  enum class Phase { kDecided, kRestarted };
  Expected<Phase> run_phase();
  void send_view(uint32_t round, bool decided);
  std::optional<ViewMessage> next_view(Rank peer);
  bool is_gone(Rank peer);
  /// Grows with attempts and phases, and is above the sequence numbers of all other calls.
  uint32_t stream_tag() const { return 0x80000000u | attempt_ << 12 | phase_; }
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
  std::vector<std::unique_ptr<Link>> links_;  // by rank, empty for this one, and where the plan makes none
  Secret secret_ = {};
  MeshPort port_;  // stays open where the plan is not full
  std::atomic<bool> turn_taken_ = false;

  std::mutex collective_mutex_;  // guards sequence_, failure_, interrupt_, and the order of frames on the links
  uint32_t sequence_ = 0;
  static constexpr uint32_t kFirstHostSequence = 0x40000000;
  uint32_t host_sequence_ = kFirstHostSequence;  // of the calls among this host's ranks, which other hosts do not count
  Status failure_;
  std::string note_;  // of the goodbye
  // By rank: what has come and was not asked for yet; about survivors, and all else.
  std::vector<std::list<Frame>> views_, others_;
  std::function<Status()> interrupt_;
  uint32_t attempt_ = 0, phase_ = 0;  // of shrinking
  SurvivorView view_;
  std::optional<Patience> shrink_patience_;
  std::unique_ptr<LinkMaker> late_;       // of links to those whom the plan leaves out
  std::vector<bool> unreachable_;         // by rank: nobody listens at its port
  Patience::Clock::time_point ask_at_{};  // for those who do not come
  std::chrono::milliseconds ask_pause_{};
  std::shared_ptr<const std::string> view_bytes_;              // sent last, and to whom a link comes later
  std::vector<std::shared_ptr<const std::string>> decisions_;  // of this attempt's phases, before it

  Fd watch_;                // epoll: links with something to read, deaths of processes
  std::vector<Fd> pidfds_;  // by rank; empty for threads of this process and ranks of other hosts
  std::mutex loss_mutex_;   // guards what follows, late links, and the handling of watch_'s events
  std::optional<Loss> loss_;
  std::optional<Rank> first_left_;
  std::array<std::optional<Announcement>, 2> announced_;  // by topic
  std::map<Rank, std::string> parted_;                    // parting notes of ranks without a link to this one
  std::vector<bool> gone_;                                // by rank: lost or left, as far as this one has heard
  std::map<Rank, wire::Writer> outgoing_news_;
  std::vector<Rank> unsent_news_;
  bool leaving_ = false;
  std::optional<pthread_t> news_thread_;
  Fd news_wake_;  // eventfd
  std::atomic<bool> news_stops_ = false;
  pid_t news_pid_ = 0;  // a forked child has no such thread
};

}  // namespace rondo

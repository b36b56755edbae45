// The inside of a Bootstrap: the links of the mesh, and what is spoken over them. bootstrap.cc has the collective calls
// and the watch for deaths, news.cc tells of what only some of the ranks see, submesh.cc makes a mesh of some of the
// ranks, survivors.cc lets those that live agree on who they are.
//
// Who may read the links: whoever has the turn. A collective call takes it, and so does, between such calls, who looks
// for deaths where the mesh is not full: what one has read another would wait for in vain.
//
// Thread safety: as Bootstrap.
#pragma once

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
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
#include "bootstrap/bootstrap.h"
#include "bootstrap/mesh.h"
#include "bootstrap/mesh_plan.h"
#include "bootstrap/survivors.h"

namespace rondo {

class Bootstrap::Impl {
 public:
  Impl(Rank rank, const BootstrapOptions& options)
      : rank_(rank), options_{options.deadline_s, options.abort, options.pretend_host}, interrupt_(options.interrupt) {}
  ~Impl();

  /// `interrupt`: as join_rendezvous'.
  Status connect(int nranks, const IdContents& id, const std::function<Status()>& interrupt = nullptr);
  Status all_gather(std::string_view mine, std::vector<std::string>* all);
  Status all_gather_here(std::string_view mine, std::vector<std::string>* all);
  std::optional<std::string> parting_note(Rank peer);
  Status barrier();
  Status exchange_descriptors(std::span<const int> mine, std::vector<std::vector<int>>* all);
  Expected<std::unique_ptr<Impl>> subset(const std::vector<Rank>& members, const BootstrapOptions& options);
  Status begin_shrink(const std::vector<Rank>& excluded, const BootstrapOptions& options);
  Expected<Survivors> agree(const Status& made);
  Expected<std::unique_ptr<Impl>> subset_of_survivors(const std::vector<Rank>& members, const BootstrapOptions& options);
  std::optional<Loss> find_lost();
  bool is_full() const { return plan_.is_full(); }
  void announce(Topic topic, uint64_t place, std::string text);
  std::optional<Announcement> announced(Topic topic);
  void say_goodbye(const std::string& note, const Status& cause);
  Status still_whole();
  Status still_with_survivors(const std::vector<Rank>& members);
  Status commit(const Status& made, const BootstrapOptions& options);
  void set_interrupt(std::function<Status()> interrupt);

  Rank rank() const { return rank_; }
  const std::vector<PeerInfo>& peers() const { return peers_; }
  std::string address_of(Rank peer);
  std::vector<std::string> own_addresses();

 private:
  /// Of reading the links.
  class Turn {
   public:
    explicit Turn(Impl& impl);  // waits
    Turn(Impl& impl, std::try_to_lock_t);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    explicit operator bool() const { return has_; }

   private:
    Impl& impl_;
    bool has_;
  };
  /// A collective call: one at a time, with the turn.
  struct Call {
    explicit Call(Impl& impl) : lock(impl.collective_mutex_), turn(impl) {}
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
  Status gather(FrameKind kind, std::string_view mine, std::vector<std::string>* all);
  struct Awaited {
    FrameKind kind;
    uint32_t sequence;
    std::vector<Rank> to, from;  // whom we have sent something, and who sends us one frame
    const Patience* patience;
    bool skip_others = false;    // drop other frames: of calls that were given up
    std::function<bool(Rank)> gave_up = {};  // asked when nothing has come from a rank
  };
  Status exchange(const Exchange& what, std::vector<Frame>* got);
  Status look_at_done(const Awaited& what, const std::vector<Rank>& done, std::span<const pollfd> fds);
  Status end_waiting(const Awaited& what, const Status& why, const std::vector<Rank>& waiting_for);
  Status receive(const Awaited& what, std::vector<Frame>* got);
  Expected<bool> take_one(const Awaited& what, Rank peer, Frame* got);
  // block_exchange.cc
  static constexpr size_t kMostDirect = 16;  // ranks that exchange each with each: one step, each knows who is missing
  struct Passing {
    std::vector<Rank> to, from;
    const Patience* patience;
  };
  Status exchange_in_blocks(const Exchange& what, const std::vector<Rank>& ranks, std::vector<Frame>* got);
  Status pass_bundle(const Exchange& what, const std::vector<Rank>& of, const Passing& how, std::vector<Frame>* have);
  Status listen_to_all();
  std::vector<Rank> hear(std::vector<Rank>* unflushed, int slice_ms);
  Status receive_hearing_all(const Awaited& what, std::vector<Frame>* got);

  void sort_frames(Rank peer);
  std::optional<Frame> next_frame(Rank peer);
  std::string first_end(Rank peer, Link::End end, const std::string& why);
  Status fail(Status status);
  Status give_up(uint32_t sequence, Status status);
  Status heard_of_giving_up(const Awaited& what, Rank peer);
  Status pass_on_giving_up(const Frame& frame);
  Status watch();
  void look();
  void look_at(uint64_t event);
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
  void judge_aloud(Rank peer, bool process_ended = false);
  Status start_news();
  void stop_news();
  void wake_news();
  bool is_in_forked_child() const { return news_pid_ != 0 && news_pid_ != ::getpid(); }
  Status learn_of_all();

  // submesh.cc
  Expected<std::unique_ptr<Impl>> subset_by_id(const std::vector<Rank>& members, const BootstrapOptions& options);
  Expected<std::unique_ptr<Impl>> subset_by_sent_id(const std::vector<Rank>& members, const Awaited& how,
                                                    const BootstrapOptions& options);
  Expected<std::unique_ptr<Impl>> meet_by_id(const std::vector<Rank>& members, const std::string& blob,
                                             const BootstrapOptions& options, const std::function<Status()>& interrupt);
  Expected<std::unique_ptr<Impl>> subset_by_streams(const std::vector<Rank>& members, const Awaited& how,
                                                    const BootstrapOptions& options);

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
  Status find_whole();
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
  Secret secret_ = {};                        // these two where the plan is not full
  MeshPort port_;
  std::atomic<bool> turn_taken_ = false;

  std::mutex collective_mutex_;  // guards sequence_, failure_, interrupt_, and the order of frames on the links
  uint32_t sequence_ = 0;
  uint32_t host_sequence_ = 0x40000000;  // of the calls among the ranks of this host, which other hosts do not count
  Status failure_;
  // By rank: what has come and was not asked for yet; about survivors, and all else.
  std::vector<std::list<Frame>> views_, others_;
  std::function<Status()> interrupt_;
  uint32_t attempt_ = 0, phase_ = 0;      // of shrinking
  SurvivorView view_;
  std::optional<Patience> shrink_patience_;
  std::unique_ptr<LinkMaker> late_;       // of links to those whom the plan leaves out
  std::vector<bool> unreachable_;         // by rank: nobody listens at its port
  Patience::Clock::time_point ask_at_{};  // for those who do not come
  std::chrono::milliseconds ask_pause_{};
  std::shared_ptr<const std::string> view_bytes_;              // sent last, and to whom a link comes later
  std::vector<std::shared_ptr<const std::string>> decisions_;  // of this attempt's phases, before it

  Fd news_;                      // epoll: links with something to read; made when it is first needed
  Fd watch_;                     // epoll: ends of links, deaths of processes; nothing else wakes it
  std::vector<Fd> pidfds_;       // by rank; empty for threads of this process and ranks of other hosts
  std::mutex loss_mutex_;        // guards what follows, late links, and the handling of watch_'s events
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

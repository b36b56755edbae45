// The inside of a Bootstrap: the links of the mesh, and what is spoken over them. bootstrap.cc has the collective calls
// and the watch for deaths, submesh.cc makes a mesh of some of the ranks, survivors.cc lets those that live agree on
// who they are.
//
// Thread safety: as Bootstrap.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/bootstrap.h"
#include "core/mesh.h"
#include "core/survivors.h"

namespace rondo {

class Bootstrap::Impl {
 public:
  Impl(Rank rank, const BootstrapOptions& options) : rank_(rank), options_(options) {}

  Status connect(int nranks, const IdContents& id);
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
  void say_goodbye(const std::string& note);
  void set_interrupt(std::function<Status()> interrupt);

  Rank rank() const { return rank_; }
  const std::vector<PeerInfo>& peers() const { return peers_; }
  std::string address_of(Rank peer) const;

 private:
  struct Exchange {
    FrameKind kind;
    std::shared_ptr<const std::string> payload;
    std::span<const int> descriptors;
    std::function<bool(Rank)> takes_part;
    uint32_t sequence;
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
  Status watch();
  void look_at(uint64_t event);
  void forget(Rank peer);

  // submesh.cc
  Expected<std::unique_ptr<Impl>> subset_by_id(const std::vector<Rank>& members, const BootstrapOptions& options);
  Expected<std::unique_ptr<Impl>> subset_by_sent_id(const std::vector<Rank>& members, const Awaited& how,
                                                    const BootstrapOptions& options);
  Expected<std::unique_ptr<Impl>> meet_by_id(const std::vector<Rank>& members, const std::string& blob,
                                             const BootstrapOptions& options);
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
  Status await_views(const std::vector<Rank>& from);

  const Rank rank_;
  const BootstrapOptions options_;
  std::vector<PeerInfo> peers_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank, empty for this one

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

  Fd news_;                      // epoll: links with something to read; made when it is first needed
  Fd watch_;                     // epoll: ends of links, deaths of processes; nothing else wakes it
  std::vector<Fd> pidfds_;       // by rank; empty for threads of this process and ranks of other hosts
  std::mutex loss_mutex_;        // guards loss_, first_left_ and the handling of watch_'s events
  std::optional<Loss> loss_;
  std::optional<Rank> first_left_;
};

}  // namespace rondo

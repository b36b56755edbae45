// Exchanges among many ranks. Where each sends to each, n ranks send n(n-1) messages, and on a machine with more ranks
// than cores all of them cost the same cores: 256 ranks spent half of their start on them. So they go through the first
// rank of each block of about sqrt(n) ranks:
//
// Blocks are the rows of the grid in bootstrap/mesh_plan.h, and their first ranks its first column: where the mesh is not
// full these links are there.
//
//   1. a block's ranks -> its first     2. the blocks' first ranks among themselves     3. each back to its block
//
//      1 2 3   5 6 7   9 ..             0 <---> 4 <---> 8                                1 2 3   5 6 7   9 ..
//       \|/     \|/     |               ^-------------->                                  \|/     \|/     |
//        0       4      8                                                                  0       4      8
//
//   bundle = frames of: more follow u8 | { rank u32 | descriptors u8 | payload str } ...     200 descriptors in each
//
// Whoever fails tells all ranks over the links of the mesh, and everybody listens to all of them meanwhile: a failure
// is heard in one step, as where each sends to each; in two where the mesh is not full. At the deadline those who wait
// for a single rank speak before those who wait for what that one collects, so that the rank which is missing is named
// and not the one that waits.
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "bootstrap/bootstrap.h"
#include "bootstrap/rendezvous.h"
#include "base/wire.h"

namespace rondo {
namespace {

constexpr double kGraceS = 1;  // for each step that others are nearer to the missing rank
constexpr size_t kMaxFrameBytes = size_t{1} << 30;
constexpr int kPauseMs = 1;  // when the kernel takes no more descriptors

struct BundleFrame {
  std::shared_ptr<const std::string> payload;
  std::vector<int> descriptors;  // borrowed
};

// Cuts a bundle into frames.
class Packer {
 public:
  void add(Rank rank, std::string_view payload, const std::vector<int>& fds) {
    if (fds_.size() + fds.size() > Link::kMaxDescriptorsPerFrame) end_frame(true);
    parcels_.put(static_cast<uint32_t>(rank)).put(static_cast<uint8_t>(fds.size())).str(payload);
    fds_.insert(fds_.end(), fds.begin(), fds.end());
    most_bytes_ = std::max(most_bytes_, parcels_.bytes().size());
  }
  std::vector<BundleFrame> take() {
    end_frame(false);
    return std::move(frames_);
  }
  bool too_long() const { return most_bytes_ >= kMaxFrameBytes; }

 private:
  void end_frame(bool more) {
    std::string payload(1, more ? '\1' : '\0');
    payload += parcels_.take();
    parcels_ = {};
    frames_.push_back({std::make_shared<const std::string>(std::move(payload)), std::move(fds_)});
    fds_.clear();
  }
  wire::Writer parcels_;
  std::vector<int> fds_;
  std::vector<BundleFrame> frames_;
  size_t most_bytes_ = 0;
};

// Adds a frame's parcels to what is there, by rank. False when they cannot be read.
bool unpack(Frame frame, std::vector<Frame>* have, bool* more) {
  wire::Reader r(frame.payload);
  *more = r.get<uint8_t>() != 0;
  size_t next_fd = 0;
  while (r.ok() && !r.finished()) {
    const auto rank = r.get<uint32_t>();
    const size_t num_fds = r.get<uint8_t>();
    const std::string_view payload = r.str();
    if (!r.ok() || rank >= have->size()) return false;
    Frame& to = (*have)[rank];
    to.kind = frame.kind;
    to.sequence = frame.sequence;
    to.payload = payload;
    to.descriptors.clear();
    if (frame.descriptors.empty()) continue;  // none announced, or the kernel dropped them
    if (next_fd + num_fds > frame.descriptors.size()) return false;
    for (size_t i = 0; i < num_fds; ++i) to.descriptors.push_back(std::move(frame.descriptors[next_fd++]));
  }
  return r.ok();
}

}  // namespace

Status Bootstrap::exchange_in_blocks(const Exchange& what, const std::vector<Rank>& ranks, std::vector<Frame>* got) {
  if (!failure_.ok()) return failure_;
  got->clear();
  got->resize(peers_.size());
  const size_t block = MeshPlan::columns(ranks.size());
  const auto self = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  const size_t first = self - self % block;
  const std::vector<Rank> mine(ranks.begin() + static_cast<ptrdiff_t>(first),
                               ranks.begin() + static_cast<ptrdiff_t>(std::min(first + block, ranks.size())));
  std::vector<Rank> others, heads;
  for (size_t i = 0; i < ranks.size(); i += block)
    if (i != first) heads.push_back(ranks[i]);
  for (const Rank r : mine)
    if (r != rank_) others.push_back(r);

  const Patience& patience = what.patience;
  const Patience a_step_later = patience.extended(kGraceS), two_steps_later = patience.extended(2 * kGraceS);
  if (self != first) {
    RONDO_TRY(pass_bundle(what, {rank_}, {{mine[0]}, {mine[0]}, &two_steps_later}, got));
  } else {
    Status s = pass_bundle(what, {}, {{}, others, &patience}, got);
    if (s.ok()) s = pass_bundle(what, mine, {heads, heads, &a_step_later}, got);
    if (s.ok()) s = pass_bundle(what, ranks, {others, {}, &two_steps_later}, got);
    if (!s.ok()) return give_up(what.sequence, std::move(s));  // its block may have heard of nothing
  }
  (*got)[static_cast<size_t>(rank_)] = {};
  return {};
}

// Sends what is there of `of` to some ranks, and takes a bundle from some.
Status Bootstrap::pass_bundle(const Exchange& what, const std::vector<Rank>& of, const Passing& how,
                              std::vector<Frame>* have) {
  Packer packer;
  for (const Rank r : of) {
    const Frame& frame = (*have)[static_cast<size_t>(r)];
    std::vector<int> fds(what.descriptors.begin(), what.descriptors.end());
    if (r != rank_) fds.clear();
    for (const Fd& fd : frame.descriptors) fds.push_back(fd.get());
    const std::string_view own = what.payload ? std::string_view(*what.payload) : std::string_view();
    packer.add(r, r == rank_ ? own : std::string_view(frame.payload), fds);
    if (packer.too_long())
      return fail(
          Status(StatusCode::kInvalidArgument, fmt::format("rank {}: {} ranks pass more than 1 GiB together in "
                                                           "{} #{}",
                                                           rank_, of.size(), frame_name(what.kind), what.sequence)));
  }
  const std::vector<BundleFrame> frames = how.to.empty() ? std::vector<BundleFrame>() : packer.take();
  for (const Rank r : how.to)
    for (const BundleFrame& f : frames) links_[r]->queue(what.kind, what.sequence, f.payload, f.descriptors);

  Awaited awaited{what.kind, what.sequence, how.to, how.from, how.patience};
  std::vector<Frame> came;
  do {
    RONDO_TRY(receive_hearing_all(awaited, &came));
    std::vector<Rank> more_from;
    for (const Rank r : awaited.from) {
      bool more = false;
      if (!unpack(std::move(came[static_cast<size_t>(r)]), have, &more))
        return fail(
            Status(StatusCode::kMismatch, fmt::format("rank {}: rank {} runs another version of rondo", rank_, r)));
      if (more) more_from.push_back(r);
    }
    awaited.to.clear();
    awaited.from = std::move(more_from);
  } while (!awaited.from.empty());
  return {};
}

Status Bootstrap::listen_to_all() {
  if (news_) return {};
  news_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!news_) return Status(StatusCode::kSystem, "epoll_create1: " + errno_text(errno));
  for (Rank r = 0; r < static_cast<Rank>(links_.size()); ++r) {
    if (!links_[r]) continue;
    epoll_event event = {EPOLLIN, {.u64 = static_cast<uint64_t>(r)}};
    if (::epoll_ctl(news_.get(), EPOLL_CTL_ADD, links_[r]->fd(), &event) != 0)
      return Status(StatusCode::kSystem, "epoll_ctl: " + errno_text(errno));
  }
  return {};
}

// Waits for a slice at most. Which links have news; a link that has ended is not asked again.
std::vector<Rank> Bootstrap::hear(std::vector<Rank>* unflushed, int slice_ms) {
  if (!unflushed->empty()) {
    std::vector<pollfd> fds = {{news_.get(), POLLIN, 0}};
    for (const Rank r : *unflushed) fds.push_back({links_[r]->fd(), POLLOUT, 0});
    const int num_ready = ::poll(fds.data(), fds.size(), slice_ms);
    const size_t before = unflushed->size();
    std::erase_if(*unflushed, [this](Rank r) { return links_[r]->flush(); });
    slice_ms = num_ready > 0 && fds[0].revents == 0 && unflushed->size() == before ? kPauseMs : 0;
  }
  epoll_event events[64];
  const int n = ::epoll_wait(news_.get(), events, 64, slice_ms);
  std::vector<Rank> news;
  for (int i = 0; i < n; ++i) {
    const auto r = static_cast<Rank>(events[i].data.u64);
    links_[r]->drain_announced();
    judge_aloud(r);
    if (links_[r]->end(nullptr) != Link::End::kNone) ::epoll_ctl(news_.get(), EPOLL_CTL_DEL, links_[r]->fd(), nullptr);
    news.push_back(r);
  }
  return news;
}

// As receive(), at a cost that does not grow with the number of links, and hearing those who give up anywhere.
Status Bootstrap::receive_hearing_all(const Awaited& what, std::vector<Frame>* got) {
  if (!failure_.ok()) return failure_;
  RONDO_TRY(listen_to_all());
  got->clear();
  got->resize(peers_.size());
  std::vector<Rank> unflushed, open;
  for (const Rank r : what.to)
    if (!links_[r]->flush()) unflushed.push_back(r);
  for (const Rank r : what.from) {  // what came with an earlier frame
    RONDO_TRY_ASSIGN(const bool have, take_one(what, r, &(*got)[static_cast<size_t>(r)]));
    if (!have) open.push_back(r);
  }
  for (Rank r = 0; r < static_cast<Rank>(links_.size()); ++r)
    if (links_[r]) RONDO_TRY(heard_of_giving_up(what, r));
  while (!open.empty() || !unflushed.empty()) {
    for (const Rank r : hear(&unflushed, what.patience->slice_ms())) {
      const auto place = std::find(open.begin(), open.end(), r);
      if (place == open.end()) {
        RONDO_TRY(heard_of_giving_up(what, r));
        continue;
      }
      RONDO_TRY_ASSIGN(const bool have, take_one(what, r, &(*got)[static_cast<size_t>(r)]));
      if (have) open.erase(place);
    }
    Status s = what.patience->check(frame_name(what.kind));
    if (s.ok() && interrupt_) s = interrupt_();
    if (s.ok() || (open.empty() && unflushed.empty())) continue;
    return give_up(what.sequence,
                   Status(s.code(), fmt::format("rank {} {} #{}, waiting for {}", rank_, s.message(), what.sequence,
                                                open.empty() ? "its own data to leave" : list_ranks(open))));
  }
  return {};
}

}  // namespace rondo

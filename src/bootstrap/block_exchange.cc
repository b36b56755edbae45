// Exchanges bytes and descriptors among ranks. Up to 16 ranks exchange in one step: every rank sends to every other,
// and sees which rank is missing. For n ranks this takes n(n-1) messages. These are too many on an oversubscribed host:
// 256 ranks spent half of their start on them. Therefore more ranks form rows of about sqrt(n):
//
//   1. a row's ranks -> its first       2. the first ranks among themselves         3. each back to its row
//
//      1 2 3   5 6 7   9 ..             0 <---> 4 <---> 8                                1 2 3   5 6 7   9 ..
//       \|/     \|/     |               ^-------------->                                  \|/     \|/     |
//        0       4      8                                                                  0       4      8
//
//   bundle = frames of: more follow u8 | { rank u32 | descriptors u8 | payload str } ...   at most 200 descriptors each
//
// These are the rows of the grid in bootstrap/mesh_plan.h. The first ranks are its first column. Therefore the links
// exist also if the mesh is not full. With 16 ranks or fewer, each rank is a row.
//
// A rank that fails sends kGaveUp on all its links, and every rank reads all its links while it waits. A failure
// therefore reaches all ranks in one step, or in two if the mesh is not full. Step 1 has the earliest deadline. Each
// later step has kGraceS more. Therefore the error names the rank that is missing, and not a rank that waits for it.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

#include "base/codec.h"
#include "base/error.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/rendezvous.h"

namespace rondo {
namespace {

constexpr double kGraceS = 1;  // extends the deadline of each later step
constexpr int kPauseMs = 1;  // if the kernel takes no more descriptors

struct BundleFrame {
  std::shared_ptr<const std::string> payload;
  std::vector<int> descriptors;  // borrowed
};

// Divides a bundle into frames.
class Packer {
 public:
  void add(Rank rank, std::string_view payload, std::span<const int> fds) {
    for (bool more = true; more; payload = {}) {
      if (fds_.size() == Link::kMaxDescriptorsPerFrame) end_frame(true);
      const size_t num = std::min(fds.size(), Link::kMaxDescriptorsPerFrame - fds_.size());
      parcels_(rank, static_cast<uint8_t>(num), payload);
      fds_.insert(fds_.end(), fds.begin(), fds.begin() + static_cast<ptrdiff_t>(num));
      most_bytes_ = std::max(most_bytes_, parcels_.bytes().size());
      fds = fds.subspan(num);
      more = !fds.empty();
    }
  }
  std::vector<BundleFrame> take() {
    end_frame(false);
    return std::move(frames_);
  }
  bool too_long() const { return most_bytes_ >= kMaxPayloadBytes; }

 private:
  void end_frame(bool more) {
    std::string payload(1, more ? '\1' : '\0');
    payload += parcels_.take();
    parcels_ = {};
    frames_.push_back({std::make_shared<const std::string>(std::move(payload)), std::move(fds_)});
    fds_.clear();
  }
  Encoder parcels_;
  std::vector<int> fds_;
  std::vector<BundleFrame> frames_;
  size_t most_bytes_ = 0;
};

// Appends a frame's entries to (*have)[rank]. Returns false if they cannot be decoded.
bool unpack(Frame frame, std::vector<Frame>* have, bool* more) {
  Decoder r(frame.payload);
  *more = r.get<uint8_t>() != 0;
  size_t next_fd = 0;
  while (r.ok() && !r.finished()) {
    const auto rank = r.get<uint32_t>();
    const size_t num_fds = r.get<uint8_t>();
    const std::string_view payload = r.text();
    if (!r.ok() || rank >= have->size()) return false;
    Frame& to = (*have)[rank];
    to.kind = frame.kind;
    to.sequence = frame.sequence;
    to.payload.append(payload);
    if (frame.descriptors.empty()) continue;  // none announced, or the kernel dropped them
    if (next_fd + num_fds > frame.descriptors.size()) return false;
    for (size_t i = 0; i < num_fds; ++i) to.descriptors.push_back(std::move(frame.descriptors[next_fd++]));
  }
  return r.ok();
}

}  // namespace

Status Bootstrap::exchange(const Exchange& what, std::vector<Frame>* got) {
  if (!failure_.ok()) return failure_;
  got->clear();
  got->resize(peers_.size());
  std::vector<Rank> ranks;
  for (const Rank r : plan_.order())
    if (what.kind != FrameKind::kHostGather || same_host(r)) ranks.push_back(r);
  const bool are_few = ranks.size() <= std::min(kMostDirect, static_cast<size_t>(plan_.most_full()));
  const size_t row = are_few ? 1 : MeshPlan::columns(ranks.size());
  const auto self = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  const size_t first = self - self % row;
  const std::vector<Rank> mine(ranks.begin() + static_cast<ptrdiff_t>(first),
                               ranks.begin() + static_cast<ptrdiff_t>(std::min(first + row, ranks.size())));
  const std::vector<Rank> others(mine.begin() + 1, mine.end());
  std::vector<Rank> heads;
  for (size_t i = 0; i < ranks.size(); i += row)
    if (i != first) heads.push_back(ranks[i]);

  const Deadline& deadline = what.deadline;
  const Deadline a_step_later = deadline.extended(are_few ? 0 : kGraceS),
                 two_steps_later = deadline.extended(2 * kGraceS);
  if (self != first) {
    RONDO_TRY(pass_bundle(what, {rank_}, {{mine[0]}, {mine[0]}, &two_steps_later}, got));
  } else {
    RONDO_TRY(pass_bundle(what, {}, {{}, others, &deadline}, got));
    RONDO_TRY(pass_bundle(what, mine, {heads, heads, &a_step_later}, got));
    RONDO_TRY(pass_bundle(what, ranks, {others, {}, &two_steps_later}, got));
  }
  (*got)[rank_] = {};
  return {};
}

// Sends the data of the ranks `of` to how.to, and receives a bundle from each rank of how.from.
Status Bootstrap::pass_bundle(const Exchange& what, const std::vector<Rank>& of, const Passing& how,
                              std::vector<Frame>* have) {
  if (how.to.empty() && how.from.empty()) return {};
  Packer packer;
  for (const Rank r : of) {
    const Frame& frame = (*have)[r];
    std::vector<int> fds(what.descriptors.begin(), what.descriptors.end());
    if (r != rank_) fds.clear();
    for (const Fd& fd : frame.descriptors) fds.push_back(fd.get());
    packer.add(r, r == rank_ ? what.payload : std::string_view(frame.payload), fds);
    if (packer.too_long())
      return give_up(what.sequence, invalid_argument("rank {}: {} ranks pass more than 1 GiB together in "
                                                     "{} #{}",
                                                     rank_, of.size(), frame_name(what.kind), what.sequence));
  }
  const std::vector<BundleFrame> frames = how.to.empty() ? std::vector<BundleFrame>() : packer.take();
  for (const Rank r : how.to)
    for (const BundleFrame& f : frames) links_[r]->queue(what.kind, what.sequence, f.payload, f.descriptors);

  Awaited awaited{what.kind, what.sequence, how.to, how.from, how.deadline};
  std::vector<Frame> came;
  do {
    RONDO_TRY(receive(awaited, &came));
    std::vector<Rank> more_from;
    for (const Rank r : awaited.from) {
      bool more = false;
      if (!unpack(std::move(came[r]), have, &more))
        return give_up(what.sequence,
                       make_error(StatusCode::kMismatch, "rank {}: rank {} runs another version of rondo", rank_, r));
      if (more) more_from.push_back(r);
    }
    awaited.to.clear();
    awaited.from = std::move(more_from);
  } while (!awaited.from.empty());
  return {};
}

// Waits for at most slice_ms, reads the links with data and returns their ranks. Polls `also` at the same time.
std::vector<Rank> Bootstrap::hear(std::vector<Rank>* unflushed, int slice_ms, std::vector<pollfd>* also) {
  if (unflushed->empty() && (also == nullptr || also->empty())) return look(slice_ms);
  std::vector<pollfd> fds;
  if (also != nullptr) fds = *also;
  const size_t num_also = fds.size();
  fds.push_back({watch_.get(), POLLIN, 0});
  for (const Rank r : *unflushed) fds.push_back({links_[r]->fd(), POLLOUT, 0});
  const int num_ready = ::poll(fds.data(), fds.size(), slice_ms);
  const bool events = fds[num_also].revents != 0;
  if (also != nullptr) also->assign(fds.begin(), fds.begin() + static_cast<ptrdiff_t>(num_also));
  const size_t before = unflushed->size();
  std::erase_if(*unflushed, [this](Rank r) { return links_[r]->flush(); });
  return look(num_ready > 0 && !events && before != 0 && unflushed->size() == before ? kPauseMs : 0);
}

// Returns when all frames are sent and each awaited rank's frame has arrived. Sending and receiving progress together,
// so large payloads cannot block each other. Only links with data cost a system call.
Status Bootstrap::receive(const Awaited& what, std::vector<Frame>* got) {
  if (!failure_.ok()) return failure_;
  got->clear();
  got->resize(peers_.size());
  std::vector<Rank> unflushed, open;
  for (const Rank r : what.to)
    if (!links_[r]->flush()) unflushed.push_back(r);
  for (const Rank r : what.from) {  // frames that arrived together with earlier ones
    RONDO_TRY_ASSIGN(const bool have, take_one(what, r, &(*got)[r]));
    if (!have) open.push_back(r);
  }
  for (Rank r = 0; r < nranks(); ++r)
    if (links_[r]) RONDO_TRY(heard_of_giving_up(what, r));
  while (!open.empty() || !unflushed.empty()) {
    for (const Rank r : hear(&unflushed, what.deadline->slice_ms(), nullptr)) {
      if (const auto place = std::find(open.begin(), open.end(), r); place != open.end()) {
        RONDO_TRY_ASSIGN(const bool have, take_one(what, r, &(*got)[r]));
        if (!have) continue;
        open.erase(place);
      }
      RONDO_TRY(heard_of_giving_up(what, r));  // a rank may send its frame and later give up because of another rank
    }
    Status s = what.deadline->check(fmt::format("running {} #{}", frame_name(what.kind), what.sequence));
    if (s.ok() && interrupt_) s = interrupt_();
    if (s.ok() || (open.empty() && unflushed.empty())) continue;
    Status failed(s.code(), fmt::format("rank {} {}, waiting for {}", rank_, s.message(),
                                        open.empty() ? "its own data to leave" : list_ranks(open)));
    return what.skip_others ? fail(std::move(failed)) : give_up(what.sequence, std::move(failed));
  }
  return {};
}

}  // namespace rondo

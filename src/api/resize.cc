// Makes communicators from the ranks of another (split, shrink, grow), and ends a communicator's work.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "api/communicator_impl.h"
#include "api/process_control.h"
#include "base/callbacks.h"
#include "base/codec.h"
#include "base/error.h"
#include "base/outcome.h"
#include "bootstrap/rendezvous.h"
#include "device/device_side.h"

namespace rondo {

// A rank's request in split or grow. All ranks exchange their requests before anything is made. A rank that cannot take
// part sends the reason. If a rank makes another call, the error names it.
struct CommunicatorImpl::ResizeRequest {
  std::string call;
  int64_t first = 0;   // split: colour; grow: new_nranks
  int64_t second = 0;  // split: key
  std::string bytes;   // grow: the unique id, empty if this rank has none
  Status status;       // why this rank cannot take part

  template <class C>
  friend void fields(C& c, ResizeRequest& r) {
    c(r.call, r.first, r.second, r.bytes, r.status);
  }
};

void CommunicatorImpl::take_control(std::unique_ptr<ControlPlane> control, const ChildOptions& options) {
  control_ = std::move(control);
  abort_ = options.abort;
  decorate_ = options.decorate;
  binding_ = options.binding;
  callbacks_ = options.callbacks != nullptr ? options.callbacks : std::make_shared<Callbacks>();
  host_.set_progress(options.progress, binding_);
  control_->set_interrupt([this] { return interrupted(); });
}

Status CommunicatorImpl::interrupted() const {
  for (const std::optional<AbortToken>* token : {&abort_, &request_abort_})
    if (*token && (*token)->raised()) return Status(StatusCode::kAborted, "aborted while making a communicator");
  if (const auto by = transport_->aborted_by())
    return make_error(StatusCode::kAborted, "rank {} aborted the communicator", *by);
  return {};
}

Status CommunicatorImpl::ready() { return backend_->is_closed() ? backend_->ready() : error(); }

Expected<ChildOptions> CommunicatorImpl::child_options(const Config& config) const {
  RONDO_TRY_ASSIGN(const Settings settings, override_settings(settings_, config));
  // A child's buffers are where its parent's are, unless the config asks for device memory.
  std::optional<int> device = device_ != nullptr ? std::optional(device_->ordinal()) : std::nullopt;
  if (config.memory == Memory::kCuda) {
    RONDO_TRY_ASSIGN(device, device_of(config));
  }
  return ChildOptions{settings,        config.abort ? config.abort : abort_, decorate_, device, binding_, callbacks_,
                      host_.progress()};
}

Expected<std::vector<CommunicatorImpl::ResizeRequest>> CommunicatorImpl::gather_requests(
    const ResizeRequest& mine, const std::optional<AbortToken>& abort) {
  std::vector<std::string> all;
  request_abort_ = abort;
  const Status gathered = control_->gather(encode(mine), &all);
  request_abort_.reset();
  RONDO_TRY(in_call(mine.call, gathered));
  std::vector<ResizeRequest> requests;
  for (size_t r = 0; r < all.size(); ++r) {
    auto theirs = decode<ResizeRequest>(all[r]);
    if (!theirs || theirs->call != mine.call)
      return make_error(StatusCode::kMismatch, "rank {} calls {}, rank {} calls {}", rank_, mine.call, r,
                        theirs ? theirs->call : "something else");
    if (const Status& s = theirs->status; !s.ok() && static_cast<Rank>(r) != rank_)
      theirs->status = make_error(s.code(), "rank {} cannot {}: {}", r, mine.call, s.message());
    requests.push_back(std::move(*theirs));
  }
  RONDO_TRY(requests[rank_].status);
  for (const ResizeRequest& request : requests) RONDO_TRY(request.status);
  return requests;
}

Expected<std::unique_ptr<CommunicatorImpl>> CommunicatorImpl::split(int colour, int key, const Config& config) {
  const std::lock_guard guard(control_mutex_);
  ResizeRequest mine{"split", std::max(colour, kNoColour), key, {}, ready()};
  auto options = child_options(config);
  if (mine.status.ok()) mine.status = options.status();
  RONDO_TRY_ASSIGN(const std::vector<ResizeRequest> requests,
                   gather_requests(mine, options.ok() ? options->abort : abort_));

  std::vector<Rank> members;
  for (Rank r = 0; r < nranks_ && colour >= 0; ++r)
    if (requests[r].first == colour) members.push_back(r);
  std::stable_sort(members.begin(), members.end(),
                   [&](Rank a, Rank b) { return requests[a].second < requests[b].second; });
  auto made = control_->make_child(members, *options);
  const Status outcome = in_call("split", control_->commit(made.status(), *options));
  if (outcome.ok()) return made;
  // If a rank died during commit, some ranks may have succeeded. They get the reason why this rank leaves.
  if (made.ok() && *made != nullptr) (*made)->give_up(outcome);
  return outcome;
}

void CommunicatorImpl::give_up(const Status& why) {
  lock();
  tracing_->finish();  // there are no operations to record
  queue_.fail(why);
  unlock();
}

Expected<std::unique_ptr<CommunicatorImpl>> CommunicatorImpl::shrink(const std::vector<Rank>& excluded,
                                                                     const Config& config) {
  const std::lock_guard guard(control_mutex_);
  for (const Rank r : excluded)
    if (r < 0 || r >= nranks_ || r == rank_)
      return bad("excluded", fmt::format("names rank {}: {}", r, r == rank_ ? "the caller" : "there is none"));
  RONDO_TRY_ASSIGN(const ChildOptions options, child_options(config));
  auto made = control_->make_of_survivors(excluded, options);
  if (!made.ok()) return in_call("shrink", made.status());
  return made;
}

Expected<std::unique_ptr<CommunicatorImpl>> CommunicatorImpl::grow(int new_nranks, const UniqueId* id,
                                                                   const Config& config, UniqueId* common) {
  const std::lock_guard guard(control_mutex_);
  ResizeRequest mine{"grow", new_nranks, 0, {}, ready()};
  auto options = child_options(config);
  if (mine.status.ok()) mine.status = options.status();
  if (mine.status.ok() && new_nranks <= nranks_)
    mine.status =
        bad("new_nranks", fmt::format("is {}, but the communicator has {} ranks already", new_nranks, nranks_));
  if (mine.status.ok() && new_nranks > kMaxRanks)
    mine.status = bad("new_nranks", fmt::format("is {}: a communicator has at most {} ranks", new_nranks, kMaxRanks));
  if (id != nullptr) mine.bytes.assign(id->bytes, sizeof id->bytes);
  RONDO_TRY_ASSIGN(const std::vector<ResizeRequest> requests,
                   gather_requests(mine, options.ok() ? options->abort : abort_));
  for (Rank r = 0; r < nranks_; ++r)
    if (requests[r].first != new_nranks)
      return make_error(StatusCode::kMismatch, "rank {} grows to {} ranks, rank {} to {}", rank_, new_nranks, r,
                        requests[r].first);
  const auto with_id = std::find_if(requests.begin(), requests.end(),
                                    [](const ResizeRequest& r) { return r.bytes.size() == sizeof common->bytes; });
  if (with_id == requests.end())
    return bad("id",
               "is a null pointer on all ranks: one of them, usually rank 0, makes it (make_unique_id, "
               "ncclCommGetUniqueId) and gives it to the newcomers too");
  std::memcpy(common->bytes, with_id->bytes.data(), sizeof common->bytes);
  // Stops waiting for the new ranks if a rank of this communicator is gone.
  auto made = join_communicator("grow", new_nranks, *common, rank_, *options, [this]() -> Status {
    RONDO_TRY(interrupted());
    const auto loss = transport_->find_lost();
    return loss ? Status(StatusCode::kPeerLost, loss->how) : Status();
  });
  // A rank that gives up because of a death looks dead too. This transport shows, up to 0.1 s later, which rank died.
  for (int waited_ms = 0; !made.ok() && made.status().code() == StatusCode::kPeerLost && waited_ms < 100; ++waited_ms) {
    const auto loss = transport_->find_lost();
    if (loss && made.status().message().find(loss->how) != std::string_view::npos) break;
    if (loss) return make_error(StatusCode::kPeerLost, "grow: {}; {}", loss->how, made.status().message());
    ::poll(nullptr, 0, 1);
  }
  return made;
}

Status CommunicatorImpl::finalize() {
  if (backend_->is_closed()) return error();
  Status s = backend_->drain();
  if (s.ok()) s = error();
  s = backend_->finish(std::move(s));
  const std::lock_guard driver(host_);
  if (!queue_.has_failed()) {
    backend_->close();
    tracing_->finish();  // the following fail() is not a failure and must not be recorded
    queue_.fail(ready());
  }
  return s;
}

}  // namespace rondo

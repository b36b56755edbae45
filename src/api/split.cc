// Splitting a communicator, and the exchange of requests (preference.h), which split and grow share.
#include <fmt/format.h>

#include <algorithm>

#include "api/resize_request.h"
#include "base/codec.h"
#include "base/status_from_peer.h"
#include "device/device_side.h"

namespace rondo {
namespace {

std::string_view name_of(uint8_t kind) { return kind == 1 ? "split" : kind == 2 ? "grow" : "something else"; }

}  // namespace

void CommunicatorImpl::take_control(std::unique_ptr<ControlPlane> control, const ChildOptions& options) {
  control_ = std::move(control);
  abort_ = options.abort;
  decorate_ = options.decorate;
  binding_ = options.binding;
  host_.bind(binding_);
  control_->set_interrupt([this] { return interrupted(); });
}

Status CommunicatorImpl::interrupted() const {
  for (const std::optional<AbortToken>* token : {&abort_, &request_abort_})
    if (*token && (*token)->raised()) return Status(StatusCode::kAborted, "aborted while making a communicator");
  if (const auto by = transport_->aborted_by())
    return Status(StatusCode::kAborted, fmt::format("rank {} aborted the communicator", *by));
  return {};
}

Status CommunicatorImpl::ready() {
  return finalized_ ? Status(StatusCode::kInvalidArgument, fmt::format("rank {}: the communicator was finalized", rank_))
                    : error();
}

Expected<ChildOptions> CommunicatorImpl::child_options(const Config& config) const {
  RONDO_TRY_ASSIGN(const Settings settings, override_settings(settings_, config));
  // A child's buffers are where its parent's are, unless the config names a device.
  std::optional<int> device = device_ != nullptr ? std::optional(device_->ordinal()) : std::nullopt;
  if (config.memory == Memory::kCuda) {
    RONDO_TRY_ASSIGN(device, device_of(config));
  }
  return ChildOptions{settings, config.abort ? config.abort : abort_, decorate_, device, binding_};
}

Expected<std::vector<CommunicatorImpl::ResizeRequest>> CommunicatorImpl::gather_requests(
    const ResizeRequest& mine, const std::optional<AbortToken>& abort) {
  Encoder w;
  w(mine.kind, mine.first, mine.second, mine.bytes, static_cast<uint8_t>(mine.status.code()), mine.status.message());
  std::vector<std::string> all;
  request_abort_ = abort;
  const Status gathered = control_->gather(w.bytes(), &all);
  request_abort_.reset();
  RONDO_TRY(in_call(name_of(static_cast<uint8_t>(mine.kind)), gathered));
  std::vector<ResizeRequest> requests;
  for (size_t r = 0; r < all.size(); ++r) {
    Decoder reader(all[r]);
    ResizeRequest theirs;
    reader(theirs.kind, theirs.first, theirs.second, theirs.bytes);
    const auto code = reader.get<uint8_t>();
    const std::string_view why = reader.text();
    if (!reader.finished() || theirs.kind != mine.kind)
      return Status(StatusCode::kMismatch,
                    fmt::format("rank {} calls {}, rank {} calls {}", rank_, name_of(static_cast<uint8_t>(mine.kind)), r,
                                name_of(static_cast<uint8_t>(theirs.kind))));
    if (code != 0)
      theirs.status = status_from_peer(code, static_cast<Rank>(r) == rank_ ? std::string(why)
                                                                 : fmt::format("rank {} cannot {}: {}", r,
                                                                               name_of(all[r][0]), why));
    requests.push_back(std::move(theirs));
  }
  RONDO_TRY(requests[static_cast<size_t>(rank_)].status);
  for (const ResizeRequest& request : requests) RONDO_TRY(request.status);
  return requests;
}

Expected<std::unique_ptr<CommunicatorImpl>> CommunicatorImpl::split(int colour, int key, const Config& config) {
  const std::lock_guard guard(control_mutex_);
  ResizeRequest mine{ResizeRequest::Kind::kSplit, std::max(colour, kNoColour), key, {}, ready()};
  auto options = child_options(config);
  if (mine.status.ok()) mine.status = options.status();
  RONDO_TRY_ASSIGN(const std::vector<ResizeRequest> requests,
                   gather_requests(mine, options.ok() ? options->abort : abort_));

  std::vector<Rank> members;
  for (Rank r = 0; r < nranks_ && colour >= 0; ++r)
    if (requests[static_cast<size_t>(r)].first == colour) members.push_back(r);
  std::stable_sort(members.begin(), members.end(), [&](Rank a, Rank b) {
    return requests[static_cast<size_t>(a)].second < requests[static_cast<size_t>(b)].second;
  });
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

}  // namespace rondo

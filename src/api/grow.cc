// Growing a communicator: its ranks and the new ranks join under one unique id.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "api/process_control.h"
#include "api/resize_request.h"
#include "bootstrap/rendezvous.h"

namespace rondo {

Expected<std::unique_ptr<CommunicatorImpl>> CommunicatorImpl::grow(int new_nranks, const UniqueId* id,
                                                                   const Config& config, UniqueId* common) {
  const std::lock_guard guard(control_mutex_);
  ResizeRequest mine{ResizeRequest::Kind::kGrow, new_nranks, 0, {}, ready()};
  auto options = child_options(config);
  if (mine.status.ok()) mine.status = options.status();
  if (mine.status.ok() && new_nranks <= nranks_)
    mine.status = bad("new_nranks", fmt::format("is {}, but the communicator has {} ranks already", new_nranks, nranks_));
  if (mine.status.ok() && new_nranks > kMaxRanks)
    mine.status = bad("new_nranks", fmt::format("is {}: a communicator has at most {} ranks", new_nranks, kMaxRanks));
  if (id != nullptr) mine.bytes.assign(id->bytes, sizeof id->bytes);
  RONDO_TRY_ASSIGN(const std::vector<ResizeRequest> requests,
                   gather_requests(mine, options.ok() ? options->abort : abort_));
  for (Rank r = 0; r < nranks_; ++r)
    if (requests[static_cast<size_t>(r)].first != new_nranks)
      return Status(StatusCode::kMismatch, fmt::format("rank {} grows to {} ranks, rank {} to {}", rank_, new_nranks, r,
                                                       requests[static_cast<size_t>(r)].first));
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
    if (loss) return Status(StatusCode::kPeerLost, fmt::format("grow: {}; {}", loss->how, made.status().message()));
    ::poll(nullptr, 0, 1);
  }
  return made;
}

}  // namespace rondo

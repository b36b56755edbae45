// The messages and barriers of Backend.
#include <c10/util/Exception.h>

#include <algorithm>

#include "backend.h"

namespace rondo_c10d {

using c10d::OpType;

// Messages match by their tags. peer is RONDO_ANY_RANK for a receive from any rank.
intrusive_ptr<c10d::Work> Backend::message(const Request& r, const std::vector<at::Tensor>& tensors, int peer,
                                           int tag) {
  const at::Tensor& t = only(r, tensors);
  const Elements e = copied(t.scalar_type());
  const bool sends = r.type == OpType::SEND;
  auto source = r.type == OpType::RECVANYSOURCE ? std::make_shared<int>(-1) : nullptr;
  Buffers b;
  b.out = sends ? to_read(t) : to_write(t, &b);
  void* const data = b.out_data();
  const auto launch = [&, data, to = source.get()](rondo_call& call, rondo_work** work) {
    call.tag = static_cast<uint64_t>(tag);
    call.match_tags = 1;
    call.source = to;
    return sends ? rondo_send(comm_, data, e.of(t), e.dtype, peer, &call, work)
                 : rondo_recv(comm_, data, e.of(t), e.dtype, peer, &call, work);
  };
  return run(r, std::move(b), sends ? at::ArrayRef<at::Tensor>() : tensors, launch, std::move(source));
}

intrusive_ptr<c10d::Work> Backend::send(std::vector<at::Tensor>& tensors, int peer, int tag) {
  return message({OpType::SEND, "send"}, tensors, peer, tag);
}

intrusive_ptr<c10d::Work> Backend::recv(std::vector<at::Tensor>& tensors, int peer, int tag) {
  return message({OpType::RECV, "recv"}, tensors, peer, tag);
}

intrusive_ptr<c10d::Work> Backend::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  return message({OpType::RECVANYSOURCE, "recvAnySource"}, tensors, RONDO_ANY_RANK, tag);
}

intrusive_ptr<c10d::Work> Backend::barrier(const c10d::BarrierOptions& o) {
  const Request r{OpType::BARRIER, "barrier", o.timeout, o.asyncOp};
  return run(r, Buffers(), {}, [&](rondo_call& call, rondo_work** work) { return rondo_barrier(comm_, &call, work); });
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& o, bool wait_all_ranks) {
  const auto timeout = o.timeout.count() > 0 ? o.timeout : options_->timeout;
  const std::string prefix = c10::str("monitored_barrier/", num_monitored_barriers_++, "/");
  const std::string released = prefix + "released";
  if (rank_ != 0) {
    store_->set(prefix + std::to_string(rank_), std::vector<uint8_t>{1});
    // Rank 0 waits for each rank, and then it answers.
    store_->wait({released}, timeout * 2);
    const std::vector<uint8_t> late = store_->get(released);
    if (!late.empty()) C10_THROW_ERROR(DistBackendError, std::string(late.begin(), late.end()));
    return;
  }
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::string late;
  for (int r = 1; r < size_ && (late.empty() || wait_all_ranks); ++r) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    try {
      store_->wait({prefix + std::to_string(r)}, std::max(left, std::chrono::milliseconds(1)));
    } catch (const c10::Error&) {
      late += (late.empty() ? "" : ", ") + std::to_string(r);
    }
  }
  if (!late.empty())
    late = c10::str("[Rank 0]: Ranks ", late, " failed to pass monitoredBarrier in ", timeout.count(),
                    " ms. They have not called it, or they cannot reach the store");
  store_->set(released, std::vector<uint8_t>(late.begin(), late.end()));
  if (!late.empty()) C10_THROW_ERROR(DistBackendError, late);
}

}  // namespace rondo_c10d

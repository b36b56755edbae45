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
  (sends ? b.in : b.out) = sends ? to_read(t) : to_write(t, &b);
  const void* const from = b.in_data();
  void* const to = b.out_data();
  const auto launch = [&, from, to, source = source.get()](rondo_comm* comm, rondo_call& call, rondo_work** work) {
    call.tag = static_cast<uint64_t>(tag);
    call.match_tags = 1;
    call.source = source;
    return sends ? rondo_send(comm, from, e.of(t), e.dtype, peer, &call, work)
                 : rondo_recv(comm, to, e.of(t), e.dtype, peer, &call, work);
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
  auto earlier = open_calls(false);
  auto work = run(r, Buffers(), {}, [](rondo_comm* comm, rondo_call& call, rondo_work** work) {
    return rondo_barrier(comm, &call, work);
  });
  if (o.asyncOp) static_cast<Work&>(*work).end_after(std::move(earlier));
  else
    for (const auto& e : earlier) Work::wait_for(*e, kForever);
  return work;
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& o, bool wait_all_ranks) {
  comm();
  TORCH_CHECK(store_ != nullptr, "rank ", rank_, ": monitored_barrier needs the store of the group, which has none");
  const auto timeout = o.timeout.count() >= 0 ? o.timeout : options_->timeout;
  const std::string prefix = c10::str(barrier_prefix_, num_monitored_barriers_++, "/");
  const std::string released = prefix + "released";
  // Waits for a key, and returns whether it is there.
  const auto await = [&](const std::string& key, std::chrono::milliseconds left) {
    try {
      if (left.count() > 0) store_->wait({key}, left);
    } catch (const c10::Error&) {
      // the check below decides
    }
    return store_->check({key});
  };
  if (rank_ != 0) {
    store_->set(prefix + std::to_string(rank_), std::vector<uint8_t>{1});
    const bool answered = await(released, timeout * 2);  // rank 0 waits for the others before it answers
    const std::vector<uint8_t> late = answered ? store_->get(released) : std::vector<uint8_t>();
    if (answered && late.empty()) return;
    C10_THROW_ERROR(DistBackendError,
                    c10::str("Rank ", rank_, " successfully reached monitoredBarrier, but received errors while ",
                             "waiting for send/recv from rank 0: ",
                             answered ? std::string(late.begin(), late.end())
                                      : c10::str("it has not answered in ", (timeout * 2).count(), " ms")));
  }
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::vector<int> late;
  for (int r = 1; r < size_ && (late.empty() || wait_all_ranks); ++r) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (!await(prefix + std::to_string(r), left)) late.push_back(r);
  }
  std::string error;
  if (!late.empty())
    error = c10::str("[Rank 0]: ", wait_all_ranks ? "Ranks " : "Rank ", c10::Join(", ", late),
                     " failed to pass monitoredBarrier in ", timeout.count(),
                     " ms: Rank 0 timed out in monitoredBarrier before they called it, or the store cannot be reached");
  store_->set(released, std::vector<uint8_t>(error.begin(), error.end()));
  if (!error.empty()) C10_THROW_ERROR(DistBackendError, error);
}

}  // namespace rondo_c10d

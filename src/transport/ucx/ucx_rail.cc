#include "transport/ucx/ucx_rail.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace rondo::net {
namespace {

constexpr unsigned kMessageId = 1;           // UCX's id of rondo's only kind of active message
constexpr uint64_t kCutNs = 10'000'000'000;  // for a forcibly closed endpoint to return all requests

}  // namespace

// A message whose data are being fetched to their destination.
struct UcxRail::Incoming {
  UcxRail* rail;
  DataHeader header;
  size_t bytes;
  std::string elsewhere;  // for a message without destination, which is fetched too
};

// rondo's part of a UCX request for a send.
struct UcxRail::Request {
  Copy* copy;  // owned
  ZeroCopySend* zero_copy;
};

Expected<std::unique_ptr<Rail>> UcxRail::create(Sink& sink, const RailOptions& options) {
  RONDO_TRY_ASSIGN(std::shared_ptr<UcxContext> context, UcxContext::acquire(options.device));
  std::unique_ptr<UcxRail> rail(new UcxRail(sink, options, std::move(context)));
  RONDO_TRY(rail->open());
  return std::unique_ptr<Rail>(std::move(rail));
}

Status UcxRail::open() {
  auto failed = [this](const char* what, ucs_status_t s) {
    return make_error(StatusCode::kSystem, "UCX: {}: {}", what, lib_.ucs_status_string(s));
  };
  ucp_worker_params_t p{};
  p.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  p.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (const auto s = lib_.ucp_worker_create(context_->handle(), &p, &worker_); s != UCS_OK)
    return failed("making a worker", s);
  if (const auto s = lib_.ucp_worker_get_efd(worker_, &event_fd_); s != UCS_OK)
    return failed("asking for its event descriptor", s);
  ucp_am_handler_param_t h{};
  h.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  h.id = kMessageId;
  h.arg = this;
  h.cb = [](void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
            const ucp_am_recv_param_t* param) {
    return static_cast<UcxRail*>(self)->receive(header, header_bytes, data, bytes, *param);
  };
  if (const auto s = lib_.ucp_worker_set_am_recv_handler(worker_, &h); s != UCS_OK)
    return failed("setting its handler", s);
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  if (const auto s = lib_.ucp_worker_get_address(worker_, &address, &bytes); s != UCS_OK)
    return failed("asking for its address", s);
  address_.assign(reinterpret_cast<const char*>(address), bytes);
  lib_.ucp_worker_release_address(worker_, address);
  for (size_t r = 0; r < endpoints_.size(); ++r) {
    endpoints_[r].rail = this;
    endpoints_[r].rank = static_cast<Rank>(r);
  }
  return {};
}

UcxRail::~UcxRail() {
  if (worker_ != nullptr) lib_.ucp_worker_destroy(worker_);
  for (Incoming* i : incoming_) delete i;
}

// Progresses UCX until is_settled() returns true. Returns false if that has not happened by until_ns.
bool UcxRail::settled(uint64_t until_ns, const std::function<bool()>& is_settled) {
  while (!is_settled()) {
    if (monotonic_ns() > until_ns) return false;
    lib_.ucp_worker_progress(worker_);
  }
  return true;
}

void UcxRail::close_endpoint(Endpoint& e) {
  if (e.handle == nullptr) return;
  ucp_request_param_t p{};
  p.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  p.flags = near(e.rank) ? 0 : UCP_EP_CLOSE_FLAG_FORCE;  // closing by force requires error handling
  void* request = lib_.ucp_ep_close_nbx(e.handle, &p);
  e.handle = nullptr;
  if (UCS_PTR_IS_PTR(request)) closing_requests_.push_back(request);
}

bool UcxRail::close(uint64_t until_ns) {
  closing_ = true;
  if (flushing_ != nullptr) closing_requests_.push_back(std::exchange(flushing_, nullptr));
  for (Endpoint& e : endpoints_) close_endpoint(e);
  return settled(until_ns, [this] {
    std::erase_if(closing_requests_, [this](void* r) {
      if (lib_.ucp_request_check_status(r) == UCS_INPROGRESS) return false;
      lib_.ucp_request_free(r);
      return true;
    });
    return closing_requests_.empty();
  });
}

bool UcxRail::recall(uint64_t quiet_ns, uint64_t until_ns) {
  auto num_out = [this] {
    return std::accumulate(endpoints_.begin(), endpoints_.end(), uint64_t{0},
                           [](uint64_t n, const Endpoint& e) { return n + e.zero_copy; });
  };
  uint64_t left = num_out();
  auto fewer = [&] { return num_out() < left; };
  while (left != 0 && monotonic_ns() < until_ns && settled(std::min(monotonic_ns() + quiet_ns, until_ns), fewer))
    left = num_out();
  for (Endpoint& e : endpoints_) {
    if (e.zero_copy == 0) continue;
    lose(e.rank, "");  // this rank ends it: not reported as a loss
    close_endpoint(e);
  }
  return settled(monotonic_ns() + kCutNs, [&] { return num_out() == 0; });
}

bool UcxRail::flush() {
  if (flushing_ == nullptr) {
    ucp_request_param_t p{};
    void* request = lib_.ucp_worker_flush_nbx(worker_, &p);
    if (!UCS_PTR_IS_PTR(request)) return true;
    flushing_ = request;
  }
  if (lib_.ucp_request_check_status(flushing_) == UCS_INPROGRESS) return false;
  lib_.ucp_request_free(std::exchange(flushing_, nullptr));
  return true;
}

void UcxRail::fail(Endpoint& e, ucs_status_t s) {
  lose(e.rank, fmt::format("UCX says{}: {}", device_.empty() ? "" : " of " + device_, lib_.ucs_status_string(s)));
}

ucp_ep_h UcxRail::endpoint(Rank to) {
  Endpoint& e = endpoints_[static_cast<size_t>(to)];
  if (e.handle != nullptr || lost(to)) return e.handle;
  ucp_ep_params_t p{};
  p.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                 UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_USER_DATA;
  p.address = reinterpret_cast<const ucp_address_t*>(routes_[static_cast<size_t>(to)].address.data());
  p.err_mode = near(to) ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  p.err_handler.cb = [](void* self, ucp_ep_h, ucs_status_t s) {
    auto* endpoint = static_cast<Endpoint*>(self);
    endpoint->rail->fail(*endpoint, s);
  };
  p.err_handler.arg = &e;
  p.user_data = &e;
  if (const auto s = lib_.ucp_ep_create(worker_, &p, &e.handle); s != UCS_OK) {
    e.handle = nullptr;
    fail(e, s);
  }
  return e.handle;
}

void UcxRail::post(Rank to, Outgoing what) {
  Endpoint& e = endpoints_[static_cast<size_t>(to)];
  ucp_ep_h ep = endpoint(to);
  if (ep == nullptr || lost(to)) return give_back(what.zero_copy);
  ucp_request_param_t p{};
  p.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  p.flags = context_->has_rdma() && what.copy == nullptr ? 0 : UCP_AM_SEND_FLAG_EAGER;
  p.user_data = &e;
  p.cb.send = [](void* request, ucs_status_t s, void* to) {
    auto* endpoint = static_cast<Endpoint*>(to);
    endpoint->rail->sent(request, s, *endpoint);
  };
  const ucs_status_ptr_t request =
      lib_.ucp_am_send_nbx(ep, kMessageId, what.header, what.header_bytes, what.data, what.bytes, &p);
  if (!UCS_PTR_IS_PTR(request)) {
    give_back(what.zero_copy);
    if (UCS_PTR_IS_ERR(request)) fail(e, UCS_PTR_STATUS(request));
    return;
  }
  static_assert(sizeof(Request) <= UcxContext::kRequestBytes);
  new (request) Request{what.copy.release(), what.zero_copy};  // UCX calls back from progress() only
  if (what.zero_copy != nullptr) ++e.zero_copy;
  begin_pending(to);
}

void UcxRail::sent(void* request, ucs_status_t s, Endpoint& to) {
  const auto [copy, zero_copy] = *static_cast<Request*>(request);
  delete copy;
  if (zero_copy != nullptr) --to.zero_copy;
  give_back(zero_copy);
  end_pending(to.rank);
  lib_.ucp_request_free(request);
  if (s != UCS_OK && s != UCS_ERR_CANCELED) fail(to, s);  // a message is missing from now on
}

bool UcxRail::progress() {
  constexpr int kMostRounds = 32;
  const uint64_t before = moves_;
  for (int i = 0; i < kMostRounds && moves_ == before && lib_.ucp_worker_progress(worker_) != 0; ++i) {
  }
  return moves_ != before;
}

bool UcxRail::arm() { return lib_.ucp_worker_arm(worker_) == UCS_OK; }

// Receives data of a rendezvous; `announced` names it to UCX.
void UcxRail::fetch(const DataHeader& h, bool with_line, void* announced, size_t bytes) {
  auto* incoming = new Incoming{this, h, bytes, {}};
  void* to = with_line ? sink_.place(h.header, h.line, bytes, PostedReceiveUse::kNo).at : nullptr;
  if (to == nullptr) {
    incoming->elsewhere.resize(bytes);
    to = incoming->elsewhere.data();
  }
  ucp_request_param_t p{};
  p.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  p.user_data = incoming;
  p.cb.recv_am = [](void* request, ucs_status_t s, size_t, void* what) {
    auto* done = static_cast<Incoming*>(what);
    UcxRail* rail = done->rail;
    std::erase(rail->incoming_, done);
    ++rail->moves_;
    if (rail->closing_) s = UCS_ERR_CANCELED;
    const bool lined = has_line(done->header.header.kind);
    const bool kept = !lined || done->elsewhere.empty();
    if (s == UCS_OK && kept)
      rail->sink_.arrived(done->header.header, lined ? &done->header.line : nullptr,
                          reinterpret_cast<const std::byte*>(done->elsewhere.data()), done->bytes);
    else if (s != UCS_OK) rail->fail(rail->endpoints_[static_cast<size_t>(done->header.header.from)], s);
    delete done;
    rail->lib_.ucp_request_free(request);
  };
  incoming_.push_back(incoming);
  const ucs_status_ptr_t request = lib_.ucp_am_recv_data_nbx(worker_, announced, to, bytes, &p);
  if (UCS_PTR_IS_ERR(request)) {
    std::erase(incoming_, incoming);
    fail(endpoints_[static_cast<size_t>(h.header.from)], UCS_PTR_STATUS(request));
    delete incoming;
  }
}

ucs_status_t UcxRail::receive(const void* header, size_t header_bytes, void* data, size_t bytes,
                              const ucp_am_recv_param_t& param) {
  DataHeader h;
  if (header_bytes < sizeof(Header) || header_bytes > sizeof h) return UCS_OK;  // not rondo's message
  std::memcpy(static_cast<void*>(&h), header, header_bytes);
  if (closing_ || h.header.session != session()) return UCS_OK;
  if (!plausible(h, header_bytes)) {
    sink_.fail_here(malformed(rank_, h.header, bytes));
    return UCS_OK;
  }
  if (is_sealed()) {
    // No rank sends sealed data by rendezvous.
    if ((param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 ||
        !unseal(h.header.from, {static_cast<const char*>(header), header_bytes}, data, bytes)) {
      tampered(h.header.from);
      return UCS_OK;
    }
    data = const_cast<char*>(unsealed().data());
    bytes = unsealed().size();
  }
  ++moves_;
  const HeaderLine* line = header_bytes == sizeof h ? &h.line : nullptr;
  if ((param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
    if (line != nullptr && bytes != 0 && !sink_.put(h.header, *line, static_cast<const std::byte*>(data), bytes))
      return UCS_OK;
    sink_.arrived(h.header, line, static_cast<const std::byte*>(data), bytes);
    return UCS_OK;
  }
  fetch(h, line != nullptr, data, bytes);
  return UCS_OK;
}

}  // namespace rondo::net

#include "transport/net/rail.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"

namespace rondo::net {

Status malformed(Rank rank, const Header& h, size_t bytes) {
  return make_error(StatusCode::kInternal, "rank {}: a message of rank {} is malformed (kind {}, {} bytes)", rank,
                    h.from, static_cast<int>(h.kind), bytes);
}

bool Sink::put(const Header& header, const HeaderLine& line, const std::byte* data, size_t bytes) {
  const ReceiveTarget to = place(header, line, bytes, PostedReceiveUse::kComplete);
  if (to.at == nullptr && to.posted_receive == nullptr) return false;
  if (to.at == nullptr) to.posted_receive->add(data, 0, bytes);
  else if (to.at != data) std::memcpy(to.at, data, bytes);
  if (to.posted_receive != nullptr) to.posted_receive->finish();
  return true;
}

void Rail::set_peers(std::vector<PeerRoute> routes, uint64_t session) {
  routes_ = std::move(routes);
  session_ = session;
}

void Rail::send(Rank to, const DataHeader& header, const std::byte* data, size_t bytes, ZeroCopySend* zero_copy) {
  if (sealer_ == nullptr) return post(to, {&header, sizeof header, data, bytes, nullptr, zero_copy});
  post_copy(to, header, sizeof header, data, bytes);
  if (zero_copy != nullptr) zero_copy->give_back();
}

void Rail::send_copy(Rank to, Header header, const void* data, size_t bytes) {
  header.session = session_;
  header.from = rank_;
  DataHeader h;
  h.header = header;
  post_copy(to, h, sizeof h.header, data, bytes);
}

void Rail::post_copy(Rank to, const DataHeader& header, size_t header_bytes, const void* data, size_t bytes) {
  const std::string_view seen(reinterpret_cast<const char*>(&header), header_bytes);
  auto copy =
      std::make_unique<Copy>(Copy{header, sealer_ != nullptr ? sealer_->seal(to, seen, data, bytes)
                                                             : std::string(static_cast<const char*>(data), bytes)});
  const Copy& c = *copy;
  post(to,
       {&c.header, header_bytes, reinterpret_cast<const std::byte*>(c.data.data()), c.data.size(), std::move(copy)});
}

void Rail::give_back(ZeroCopySend* zero_copy) {
  if (zero_copy == nullptr) return;
  zero_copy->give_back();
  ++moves_;
}

void Rail::lose(Rank r, std::string_view how) {
  Peer& peer = peers_[static_cast<size_t>(r)];
  if (peer.lost) return;
  peer = {peer.pending, true, monotonic_ns(), std::string(how)};
}

std::vector<PeerLoss> Rail::losses(uint64_t before_ns) const {
  std::vector<PeerLoss> found;
  for (size_t r = 0; r < peers_.size(); ++r)
    if (const Peer& p = peers_[r]; p.lost && !p.how.empty() && p.lost_ns < before_ns)
      found.push_back({static_cast<Rank>(r), fmt::format("rank {} was lost: {}", r, p.how)});
  return found;
}

bool Rail::plausible(const DataHeader& h, size_t header_bytes, Rank from) const {
  return h.header.session == session_ && h.header.from >= 0 && static_cast<size_t>(h.header.from) < routes_.size() &&
         h.header.from != rank_ && (from < 0 || h.header.from == from) &&
         has_line(h.header.kind) == (header_bytes == sizeof h);
}

bool Rail::unseal(Rank from, std::string_view header, const void* data, size_t bytes) {
  unsealed_.resize(bytes < Sealer::kExtraBytes ? 0 : bytes - Sealer::kExtraBytes);
  return sealer_->open(from, header, static_cast<const std::byte*>(data), bytes,
                       reinterpret_cast<std::byte*>(unsealed_.data()));
}

void Rail::tampered(Rank from) {
  sink_.fail_here(make_error(StatusCode::kUnauthorized,
                             "a message from rank {} to rank {} was altered on the way, or arrived twice: "
                             "someone tampers with the network{} between these two ranks",
                             from, rank_, device_.empty() ? "" : " at " + device_));
}

}  // namespace rondo::net

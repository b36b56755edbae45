#include "transport/net/rail.h"

#include <fmt/format.h>

namespace rondo::net {

void Rail::set_peers(std::vector<PeerRoute> routes, uint64_t session) {
  routes_ = std::move(routes);
  session_ = session;
}

void Rail::send(Rank to, const DataHeader& header, const std::byte* data, size_t bytes, ZeroCopy* zero_copy) {
  if (sealer_ == nullptr) return post(to, &header, sizeof header, data, bytes, nullptr, zero_copy);
  post_copy(to, header, sizeof header, data, bytes);
  if (zero_copy != nullptr) zero_copy->zero_copy_send->give_back();
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
  post(to, &c.header, header_bytes, c.data.data(), c.data.size(), std::move(copy), nullptr);
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
  sink_.fail_here(Status(StatusCode::kUnauthorized,
                         fmt::format("a message from rank {} to rank {} was altered on the way, or arrived twice: "
                                     "someone tampers with the network{} between these two ranks",
                                     from, rank_, device_.empty() ? "" : " at " + device_)));
}

PeerLoss Rail::loss(Rank r, std::string_view how) const { return {r, fmt::format("rank {} was lost: {}", r, how)}; }

}  // namespace rondo::net

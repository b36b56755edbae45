#include "launch/id_handout.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "base/codec.h"
#include "base/error.h"
#include "base/outcome.h"
#include "bootstrap/acceptor.h"
#include "bootstrap/rendezvous.h"

namespace rondo {
namespace {

constexpr uint32_t kHandoutMagic = 0x52644964;
constexpr size_t kRequestBytes = 8;       // magic, rank
constexpr size_t kAnswerHeaderBytes = 5;  // status code, length of the following id or message
constexpr size_t kMaxAnswerBytes = 4096;
constexpr double kFirstRetryMs = 0.2, kMaxRetryMs = 5;  // rank 0 is often ready within a millisecond
constexpr double kRootGraceS = 2;                       // rank 0's error lists the missing ranks: it should come first

bool same_user(int fd, uid_t* uid) {
  ucred who = {};
  socklen_t len = sizeof(who);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0) return false;
  *uid = who.uid;
  return who.uid == ::getuid();
}

using Asker = Acceptor<FixedGreeting>::Connection;
using KnownAskers = std::vector<std::pair<Rank, Fd>>;

std::vector<Rank> missing_of(const KnownAskers& known, int nranks) {
  std::vector<bool> here(nranks, false);
  for (const auto& [rank, fd] : known) here[rank] = true;
  std::vector<Rank> missing;
  for (Rank r = 1; r < nranks; ++r)
    if (!here[r]) missing.push_back(r);
  return missing;
}

// The answer fits any socket buffer. A peer that does not read it harms only itself.
void answer_all(const KnownAskers& known, StatusCode code, std::string_view text) {
  Encoder w;
  w(static_cast<uint8_t>(code), text);
  for (const auto& [rank, fd] : known) (void)!::send(fd.get(), w.bytes().data(), w.bytes().size(), MSG_NOSIGNAL);
}

Status read_answer(int fd, rondo_unique_id* id, const Deadline& deadline) {
  char header[kAnswerHeaderBytes];
  constexpr std::string_view kDoing = "waiting for rank 0 to hand out the unique id";
  RONDO_TRY(read_exactly(fd, header, sizeof(header), deadline, kDoing));
  Decoder r({header, sizeof(header)});
  const auto code = r.get<uint8_t>();
  std::string text(std::min<size_t>(r.get<uint32_t>(), kMaxAnswerBytes), '\0');
  RONDO_TRY(read_exactly(fd, text.data(), text.size(), deadline, kDoing));
  return decode_id_answer(code, text, id);
}

Status handing_out_failed(const Status& why, const std::vector<Rank>& missing, const std::string& name,
                          const Deadline& deadline) {
  if (why.code() == StatusCode::kSystem) return make_error(why.code(), "rank 0 {}", why.message());
  if (why.code() != StatusCode::kTimeout) return make_error(why.code(), "rank 0 was {}", why.message());
  return make_error(why.code(), "{} {} not connected to rank 0's socket '{}' after {:g} s ({})", list_ranks(missing),
                    missing.size() == 1 ? "has" : "have", name, deadline.seconds(), kInitDeadline);
}

}  // namespace

std::optional<Rank> decode_id_request(std::string_view bytes, int nranks) {
  Decoder r(bytes);
  const auto magic = r.get<uint32_t>();
  const auto rank = static_cast<Rank>(r.get<uint32_t>());
  if (!r.finished() || magic != kHandoutMagic || rank < 1 || rank >= nranks) return std::nullopt;
  return rank;
}

Status decode_id_answer(uint8_t code, std::string_view text, rondo_unique_id* id) {
  if (code != 0) return status_from_peer(code, text);
  if (text.size() != sizeof(id->bytes)) return Status(StatusCode::kMismatch, "rank 0 runs another version");
  std::memcpy(id->bytes, text.data(), sizeof(id->bytes));
  return {};
}

Status hand_out_id(const std::string& name, const rondo_unique_id& id, int nranks, const Deadline& deadline) {
  if (nranks == 1) return {};
  auto listener = listen_abstract(name);
  if (!listener.ok())
    return make_error(StatusCode::kSystem, "rank 0: {}; is another rank 0 of this job running?",
                      listener.status().message());
  int num_refusals = 0;
  KnownAskers known;  // the number of others is limited (bootstrap/acceptor.h)
  Acceptor<FixedGreeting> acceptor;
  RONDO_TRY(acceptor.open(std::move(*listener), {}));
  acceptor.serve(
      [&](const Asker& a) {
        uid_t uid = 0;
        if (same_user(a.fd.get(), &uid)) return FixedGreeting(kRequestBytes);
        if (num_refusals++ < kMaxRefusalsLogged)
          std::fprintf(stderr, "rondo: refused to hand the unique id to %s: another user%s\n",
                       local_peer_name(a.fd.get()).c_str(),
                       num_refusals == kMaxRefusalsLogged ? "; further refusals are not shown" : "");
        return FixedGreeting(0);
      },
      [&](Asker& a, bool accepted) {
        const auto rank = accepted ? decode_id_request(a.handshake->bytes(), nranks) : std::nullopt;
        if (rank) known.emplace_back(*rank, std::move(a.fd));
      },
      false);
  for (;;) {
    Status s = acceptor.look();
    const std::vector<Rank> missing = missing_of(known, nranks);
    if (missing.empty()) break;
    if (s.ok()) s = deadline.check("handing out the unique id");
    if (!s.ok()) {
      const Status full = handing_out_failed(s, missing, name, deadline);
      answer_all(known, full.code(), full.message());
      return full;
    }
    pollfd p{acceptor.event_fd(), POLLIN, 0};
    ::poll(&p, 1, deadline.slice_ms());
  }
  acceptor.close();
  answer_all(known, StatusCode::kOk, {id.bytes, sizeof(id.bytes)});
  return {};
}

Expected<rondo_unique_id> fetch_id(const std::string& name, Rank rank, const Deadline& deadline) {
  Encoder request;
  request(kHandoutMagic, rank);
  const Deadline grace = deadline.extended(kRootGraceS);
  Status lost;  // why a connection closed without an answer: too many connections, or rank 0 has ended
  for (double retry_ms = kFirstRetryMs;; retry_ms = std::min(2 * retry_ms, kMaxRetryMs)) {
    bool refused = false;
    auto fd = connect_abstract(name, deadline, &refused);
    if (fd.ok()) {
      uid_t uid = 0;
      if (!same_user(fd->get(), &uid))
        return make_error(StatusCode::kUnauthorized, "rank {}: socket '{}' belongs to uid {}, this rank to uid {}",
                          rank, name, uid, ::getuid());
      rondo_unique_id id = {};
      Status s = write_all(fd->get(), request.bytes(), grace, "asking rank 0 for the unique id");
      if (s.ok()) s = read_answer(fd->get(), &id, grace);
      if (s.ok()) return id;
      lost = make_error(s.code(), "rank {}: {}", rank, s.message());
      if (s.code() != StatusCode::kPeerLost) return lost;
    } else if (refused && !lost.ok()) {
      return lost;
    }
    if (const Status s = deadline.pause(retry_ms, fmt::format("waiting for rank 0 at socket '{}'", name)); !s.ok())
      return make_error(s.code(), "rank {} {}", rank, s.message());
  }
}

}  // namespace rondo

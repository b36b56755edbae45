#include "core/id_handout.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <list>
#include <vector>

#include "core/rendezvous.h"
#include "core/wire.h"

namespace rondo {
namespace {

constexpr uint32_t kHandoutMagic = 0x52644964;
constexpr size_t kRequestBytes = 8;       // magic, rank
constexpr size_t kAnswerHeaderBytes = 5;  // status code, bytes of what follows: the id, or a message
constexpr size_t kMaxAnswerBytes = 4096;
constexpr double kFirstRetryMs = 0.2, kMaxRetryMs = 5;  // rank 0 is often there within a millisecond
constexpr double kRootGraceS = 2;                       // rank 0 knows who is missing and should speak first

struct Asker {
  Fd fd;
  std::string request;
  Rank rank = -1;
  bool broken = false;
};

bool same_user(int fd, uid_t* uid) {
  ucred who = {};
  socklen_t len = sizeof(who);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0) return false;
  *uid = who.uid;
  return who.uid == ::getuid();
}

void read_request(Asker* asker, int nranks) {
  char buffer[kRequestBytes];
  const ssize_t n = ::recv(asker->fd.get(), buffer, kRequestBytes - asker->request.size(), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    asker->broken = true;
    return;
  }
  asker->request.append(buffer, static_cast<size_t>(n));
  if (asker->request.size() < kRequestBytes) return;
  const std::optional<Rank> rank = decode_id_request(asker->request, nranks);
  asker->rank = rank.value_or(-1);
  asker->broken = !rank;
}

void accept_askers(int listener, std::list<Asker>* askers) {
  for (;;) {
    std::string who;
    Fd fd = accept_one(listener, &who);
    if (!fd) return;
    uid_t uid = 0;
    if (same_user(fd.get(), &uid)) askers->push_back({std::move(fd), "", -1, false});
    else std::fprintf(stderr, "rondo: refused to hand the unique id to %s: another user\n", who.c_str());
  }
}

std::vector<Rank> missing_ranks(const std::list<Asker>& askers, int nranks) {
  std::vector<bool> here(nranks, false);
  here[0] = true;
  for (const Asker& a : askers)
    if (a.rank >= 0) here[a.rank] = true;
  std::vector<Rank> missing;
  for (Rank r = 0; r < nranks; ++r)
    if (!here[r]) missing.push_back(r);
  return missing;
}

// Small enough for any socket buffer; an asker that does not read is its own trouble.
void answer_all(const std::list<Asker>& askers, StatusCode code, std::string_view text) {
  wire::Writer w;
  w.put(static_cast<uint8_t>(code)).str(text);
  for (const Asker& a : askers)
    if (a.rank >= 0) (void)!::send(a.fd.get(), w.bytes().data(), w.bytes().size(), MSG_NOSIGNAL);
}

Status read_answer(int fd, rondo_unique_id* id, const Patience& patience) {
  char header[kAnswerHeaderBytes];
  constexpr std::string_view kDoing = "waiting for rank 0 to hand out the unique id";
  RONDO_TRY(read_exactly(fd, header, sizeof(header), patience, kDoing));
  wire::Reader r({header, sizeof(header)});
  const auto code = r.get<uint8_t>();
  std::string text(std::min<size_t>(r.get<uint32_t>(), kMaxAnswerBytes), '\0');
  RONDO_TRY(read_exactly(fd, text.data(), text.size(), patience, kDoing));
  return decode_id_answer(code, text, id);
}

}  // namespace

std::optional<Rank> decode_id_request(std::string_view bytes, int nranks) {
  wire::Reader r(bytes);
  const auto magic = r.get<uint32_t>();
  const auto rank = static_cast<Rank>(r.get<uint32_t>());
  if (!r.finished() || magic != kHandoutMagic || rank < 1 || rank >= nranks) return std::nullopt;
  return rank;
}

Status decode_id_answer(uint8_t code, std::string_view text, rondo_unique_id* id) {
  if (code != 0) return status_from_peer(code, text);
  if (text.size() != sizeof(id->bytes)) return Status(StatusCode::kMismatch, "rank 0 speaks another version");
  std::memcpy(id->bytes, text.data(), sizeof(id->bytes));
  return {};
}

Status hand_out_id(const std::string& name, const rondo_unique_id& id, int nranks, const Patience& patience) {
  if (nranks == 1) return {};
  auto listener = listen_abstract(name);
  if (!listener.ok())
    return Status(StatusCode::kSystem, fmt::format("rank 0: {}; is another rank 0 of this job running?",
                                                   listener.status().message()));
  std::list<Asker> askers;
  for (;;) {
    accept_askers(listener->get(), &askers);
    for (Asker& a : askers)
      if (a.rank < 0) read_request(&a, nranks);
    askers.remove_if([](const Asker& a) { return a.broken; });
    const std::vector<Rank> missing = missing_ranks(askers, nranks);
    if (missing.empty()) break;
    if (const Status s = patience.check("handing out the unique id"); !s.ok()) {
      const Status full(s.code(), s.code() != StatusCode::kTimeout
                                      ? fmt::format("rank 0 was {}", s.message())
                                      : fmt::format("{} {} not come to rank 0's socket '{}' after {:g} s ({})",
                                                    list_ranks(missing), missing.size() == 1 ? "has" : "have", name,
                                                    patience.seconds(), kInitDeadline));
      answer_all(askers, full.code(), full.message());
      return full;
    }
    std::vector<pollfd> fds = {{listener->get(), POLLIN, 0}};
    for (const Asker& a : askers)
      if (a.rank < 0) fds.push_back({a.fd.get(), POLLIN, 0});
    ::poll(fds.data(), fds.size(), patience.slice_ms());
  }
  listener->shut();
  answer_all(askers, StatusCode::kOk, {id.bytes, sizeof(id.bytes)});
  return {};
}

Expected<rondo_unique_id> fetch_id(const std::string& name, Rank rank, const Patience& patience) {
  wire::Writer request;
  request.put(kHandoutMagic).put(static_cast<uint32_t>(rank));
  const Patience grace = patience.extended(kRootGraceS);
  for (double retry_ms = kFirstRetryMs;; retry_ms = std::min(2 * retry_ms, kMaxRetryMs)) {
    bool refused = false;
    auto fd = connect_abstract(name, patience, &refused);
    if (fd.ok()) {
      uid_t uid = 0;
      if (!same_user(fd->get(), &uid))
        return Status(StatusCode::kUnauthorized, fmt::format("rank {}: socket '{}' belongs to uid {}, this rank to uid {}",
                                                             rank, name, uid, ::getuid()));
      rondo_unique_id id = {};
      Status s = write_all(fd->get(), request.bytes(), grace, "asking rank 0 for the unique id");
      if (s.ok()) s = read_answer(fd->get(), &id, grace);
      if (s.ok()) return id;
      return Status(s.code(), fmt::format("rank {}: {}", rank, s.message()));
    }
    if (const Status s = patience.pause(retry_ms, fmt::format("waiting for rank 0 at socket '{}'", name)); !s.ok())
      return Status(s.code(), fmt::format("rank {} {}", rank, s.message()));
  }
}

}  // namespace rondo

// libFuzzer: input from an unauthenticated or faulty peer over the bootstrap's sockets. The first byte selects the
// reader: a link (of a host, or between hosts) with the decoders of its payloads, or either side of the handshake.
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "bootstrap/auth.h"
#include "bootstrap/link.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/survivors.h"
#include "bootstrap/unique_id.h"

namespace rondo {
namespace {

constexpr size_t kMaxPayloadBytes = 4096;

void read_payload(const Frame& frame) {
  if (frame.payload.size() > kMaxPayloadBytes) std::abort();
  if (frame.kind == FrameKind::kGoodbye) std::abort();  // a link handles these itself
  if (refusal(frame).ok() || refusal(frame).to_string().empty()) std::abort();
  for (const int nranks : {1, 3}) {
    const auto view = decode_view(frame.payload, nranks);
    if (view && encode_view(*view).size() != frame.payload.size()) std::abort();
    if (view && view->view.gone.size() != static_cast<size_t>(nranks)) std::abort();
  }
  for (Decoder r(frame.payload); r.ok() && !r.finished();) {
    const PeerInfo info = r.get<PeerInfo>();
    if (info.host.size() + info.greeting.size() > frame.payload.size()) std::abort();
  }
}

void read_as_link(int fd, bool passes_descriptors) {
  Link link(Fd(fd), passes_descriptors, kMaxPayloadBytes);
  link.drain();
  while (const auto frame = link.pop()) read_payload(*frame);
  std::string why;
  if (link.end(&why) == Link::End::kNone || why.empty()) std::abort();  // the other end is closed
}

}  // namespace
}  // namespace rondo

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace rondo;
  constexpr size_t kFitsSocket = 64 * 1024;
  if (bytes == 0 || bytes > kFitsSocket) return 0;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return 0;
  Fd sender(ends[1]), reader(ends[0]);
  if (send(sender.get(), data + 1, bytes - 1, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes - 1)) return 0;
  const Secret secret = {1, 2, 3};
  if (data[0] % 4 <= 1) {
    sender.reset();
    read_as_link(reader.release(), data[0] % 4 == 1);
  } else if (data[0] % 4 == 2) {
    shutdown(sender.get(), SHUT_WR);
    ServerHandshake server(secret, Purpose::kMesh);
    if (server.advance(reader.get()) == ServerHandshake::State::kAccepted) std::abort();  // a proof without the secret
  } else {
    shutdown(sender.get(), SHUT_WR);
    ClientHandshake client(secret, Purpose::kMesh, 1);
    if (client.start(reader.get()) == ClientHandshake::State::kUnderWay &&
        client.advance(reader.get()) == ClientHandshake::State::kAccepted)
      std::abort();
  }
  return 0;
}

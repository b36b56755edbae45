// Link: a stream socket that carries frames between two authenticated ends, and on Unix sockets file descriptors with
// them. It never waits: queue() keeps what cannot be written yet, flush() and drain() move what can be moved now, and
// the caller polls.
//
// Over a TLS session frames are sealed whole, when their turn to be written comes.
//
//   frame = magic u32 | kind u8 | descriptors u8 | 0 u16 | sequence u32 | payload bytes u32 | payload
//
// An end is remembered with its reason: kLeft when the peer said goodbye first, kLost otherwise.
//
// Thread safety: all members may be called from any thread; a frame belongs to whoever pops it.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/socket.h"
#include "bootstrap/tls.h"

namespace rondo {

enum class FrameKind : uint8_t {
  // rendezvous
  kJoin = 1,
  kTable = 2,
  kRefused = 3,
  kMeshed = 4,
  // mesh
  kGather = 16,
  kBarrier = 17,
  kDescriptors = 18,
  kGoodbye = 19,
  kOffer = 20,       // where the sender's port for a new mesh is
  kView = 21,        // who lives, as far as the sender knows
  kGaveUp = 22,      // the sender's wait in a collective call has failed, and why: status code, message
  kHostGather = 23,  // among the ranks of one host
  kNews = 24,        // who is lost, who has left: for those who have no link with that one
};
std::string_view frame_name(FrameKind kind);

struct Frame {
  FrameKind kind = FrameKind::kBarrier;
  uint32_t sequence = 0;
  std::string payload;
  std::vector<Fd> descriptors;  // empty also when the kernel dropped them, as this process may open no more
};

class Link {
 public:
  static constexpr size_t kMaxDescriptorsPerFrame = 200;  // the kernel allows 253 (SCM_MAX_FD)
  enum class End { kNone, kLeft, kLost };

  /// max_payload_bytes: a frame that announces more ends the link. `session`: of an encrypted connection, which passes
  /// no descriptors; it may hold what has come already.
  Link(Fd fd, bool passes_descriptors, size_t max_payload_bytes, std::unique_ptr<TlsSession> session = nullptr);
  ~Link() { close(); }

  int fd() const { return fd_.get(); }
  /// Descriptors are borrowed until the frame is flushed.
  void queue(FrameKind kind, uint32_t sequence, std::shared_ptr<const std::string> payload,
             std::span<const int> descriptors = {});
  /// Forgets frames of which nothing has been written yet, but for news.
  void drop_unsent();
  /// Writes what the socket takes. True when nothing is left (also when the link has ended).
  bool flush();
  /// Reads what has arrived, also the end of the stream if it has.
  void drain();
  /// The same with one system call less, for links that a poll has announced: an end that stands right behind the data
  /// may be left to the next poll.
  void drain_announced();
  std::optional<Frame> pop();
  /// The same for news, which come between all other frames.
  std::optional<Frame> pop_news();
  /// How the link ended, if it did; `why` may be nullptr.
  End end(std::string* why) const;
  /// Writes a goodbye if the stream stands between two frames, and ends the outgoing direction. `note`: for the peer.
  void say_goodbye(const std::string& note = {});
  /// The note of the peer's goodbye.
  std::string note() const;
  /// Ends the connection for both sides, also where a fork has copied the socket.
  void close();

 private:
  struct QueuedFrame {
    std::string header;
    std::shared_ptr<const std::string> payload;
    std::vector<int> descriptors;
    size_t done_bytes = 0;
    bool is_news = false;
  };
  bool flush_locked();
  bool flush_sealed();
  bool unseal_locked(std::string_view arrived);
  enum class Until { kNothingIsLeft, kShortRead };
  void drain_locked(Until until = Until::kNothingIsLeft);
  bool parse_locked();
  void end_locked(std::string why);

  mutable std::mutex mutex_;
  Fd fd_;
  const bool passes_descriptors_;
  const size_t max_payload_bytes_;
  // Lists: a deque holds half a KiB while it is empty, and a rank has a link to each of its peers.
  std::list<QueuedFrame> outbox_;
  std::string inbox_;
  std::unique_ptr<TlsSession> session_;
  std::string sealed_;             // and not written yet
  std::list<Fd> arrived_descriptors_;  // an empty one stands for all of a frame whose were dropped
  std::list<Frame> frames_, news_;
  bool said_goodbye_ = false;
  bool peer_said_goodbye_ = false;
  std::string note_;
  End end_ = End::kNone;
  std::string why_;
};

}  // namespace rondo

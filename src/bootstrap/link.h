// Link: a stream socket that carries frames between two authenticated ends. On Unix sockets, frames can also carry
// file descriptors. It never blocks: queue() stores a frame, flush() writes, drain() reads as much as possible. The
// caller polls.
//
// With a TLS session, each frame is encrypted as a whole just before it is written.
//
//   frame = magic u32 | kind u8 | descriptors u8 | 0 u16 | sequence u32 | payload bytes u32 | payload
//
// A link remembers how it ended: kLeft if the peer has sent a goodbye before, otherwise kLost.
//
// Thread safety: all members may be called from any thread. A frame belongs to the thread that pops it.
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
  kGoodbye = 19,
  kOffer = 20,       // addresses of the sender's port for a new mesh
  kView = 21,        // the sender's view of the survivors
  kGaveUp = 22,      // the sender's control call has failed, with status code and message
  kHostGather = 23,  // among the ranks of one host, with descriptors
  kEvents = 24,      // membership events, for ranks without a link to the rank concerned
};
std::string_view frame_name(FrameKind kind);

struct Frame {
  FrameKind kind = FrameKind::kBarrier;
  uint32_t sequence = 0;
  std::string payload;
  std::vector<Fd> descriptors;  // also empty if the kernel dropped them because this process has no descriptors left
};

class Link {
 public:
  static constexpr size_t kMaxDescriptorsPerFrame = 200;  // the kernel allows 253 (SCM_MAX_FD)
  enum class End { kNone, kLeft, kLost };

  /// max_payload_bytes: a frame with a larger payload ends the link. `session`: the TLS session of an encrypted
  /// connection, which passes no descriptors. It may contain bytes that have arrived already.
  Link(Fd fd, bool passes_descriptors, size_t max_payload_bytes, std::unique_ptr<TlsSession> session = nullptr);
  ~Link() { close(); }

  int fd() const { return fd_.get(); }
  /// Appends a frame to the outgoing ones. The descriptors must stay open until the frame is flushed.
  void queue(FrameKind kind, uint32_t sequence, std::shared_ptr<const std::string> payload,
             std::span<const int> descriptors = {});
  /// Drops the frames of which no byte has been written yet, except membership events.
  void drop_unsent();
  /// Writes as much as the socket takes. Returns true if nothing is left, also if the link has ended.
  bool flush();
  enum class Until { kNothingIsLeft, kShortRead };
  /// Reads all bytes that have arrived, and the end of the stream. kShortRead saves one system call for links that poll
  /// reports as readable. If the stream ends right after the data, the next poll may report the end.
  void drain(Until until = Until::kNothingIsLeft);
  std::optional<Frame> pop() { return pop_from(frames_); }
  /// Same as pop(), for membership events, which may arrive between any other frames.
  std::optional<Frame> pop_events() { return pop_from(events_); }
  /// Returns the kind of the link's end, kNone while it is open. `why` may be nullptr.
  End end(std::string* why) const;
  /// Writes a goodbye with `note` and ends the outgoing direction. The goodbye arrives only if the socket takes it now.
  void say_goodbye(const std::string& note = {});
  /// Returns the note of the peer's goodbye.
  std::string note() const;
  /// Ends the connection for both sides, also if a fork has copied the socket.
  void close();

 private:
  struct QueuedFrame {
    std::string header;
    std::shared_ptr<const std::string> payload;
    std::vector<int> descriptors;
    size_t done_bytes = 0;
    bool is_events = false;
  };
  bool flush_locked();
  bool flush_sealed();
  bool unseal_locked(std::string_view arrived);
  void drain_locked(Until until = Until::kNothingIsLeft);
  bool parse_locked();
  void end_locked(std::string why);
  void end_after_write(int error);
  void drop_unsent_locked();
  std::optional<Frame> pop_from(std::list<Frame>& frames);

  mutable std::mutex mutex_;
  Fd fd_;
  const bool passes_descriptors_;
  const size_t max_payload_bytes_;
  // Lists: a deque holds half a KiB while it is empty, and a rank has a link to each of its peers.
  std::list<QueuedFrame> outbox_;
  std::string inbox_;
  std::unique_ptr<TlsSession> session_;
  std::string sealed_;                 // encrypted bytes that are not written yet
  std::list<Fd> arrived_descriptors_;  // one empty Fd replaces all descriptors of a frame if the kernel dropped them
  std::list<Frame> frames_, events_;
  bool said_goodbye_ = false;
  bool peer_said_goodbye_ = false;
  std::string note_;
  End end_ = End::kNone;
  std::string why_;
};

/// Queues a frame on each link that exists, and writes as much as its socket takes.
void send_to_all(const std::vector<std::unique_ptr<Link>>& links, FrameKind kind, uint32_t sequence,
                 const std::shared_ptr<const std::string>& payload);

}  // namespace rondo

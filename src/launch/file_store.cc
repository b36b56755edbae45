#include "launch/file_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <string_view>

#include "base/error.h"
#include "base/limits.h"
#include "bootstrap/auth.h"
#include "bootstrap/unique_id.h"
#include "launch/launch.h"

namespace rondo {
namespace {

constexpr std::string_view kHeader = "rondo store 1\n";
constexpr size_t kMaxFileBytes = 4096;
constexpr double kFirstPauseMs = 1, kMaxPauseMs = 50;
constexpr double kAnswerS = 2;                              // deadline for an answer, per address
constexpr auto kAskAgain = std::chrono::milliseconds(500);  // a busy machine may have answered too late

// Returns whether the id's rendezvous is open: a process listens there and proves the secret. Leaves no trace.
bool answers(const rondo_unique_id& id, Rank rank, const Deadline& deadline) {
  const auto contents = decode_id(id);
  const auto encrypted = encryption();
  if (!contents.ok() || !encrypted.ok()) return false;
  return std::any_of(contents->addresses.begin(), contents->addresses.end(), [&](const IpAddress& address) {
    const Deadline brief = deadline.at_most(kAnswerS);
    bool refused = false;
    const auto fd = connect_tcp(address, contents->port, brief, &refused);
    ClientHandshake handshake(contents->secret, Purpose::kRendezvous, rank, *encrypted);
    return fd.ok() && authenticate_client(fd->get(), std::move(handshake), brief).ok();
  });
}

Status cannot(std::string_view what, const std::string& path, std::string_view remedy) {
  return make_error(StatusCode::kSystem, "cannot {} {}: {}; {}", what, path, errno_text(errno), remedy);
}

constexpr std::string_view kRemedy = "RONDO_STORE must name a directory that all ranks can access and write to";

}  // namespace

Expected<std::string> store_directory(const std::string& url) {
  constexpr std::string_view kScheme = "file://";
  if (!url.starts_with(std::string(kScheme) + "/"))
    return invalid_argument(
        "RONDO_STORE='{}': expected file:// and the absolute path of a directory, as in "
        "file:///scratch/me",
        url);
  std::string path = url.substr(kScheme.size());
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

Expected<FileStore> FileStore::open(const std::string& directory, const std::string& job) {
  Fd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return cannot("open the directory", directory, kRemedy);
  // The hash allows long job names, and the uid separates users with equal job names.
  return FileStore(directory, fmt::format("rondo-{}-{:016x}.id", ::geteuid(), fnv1a(job)), std::move(fd));
}

// Refuses a file that other users could have written or can read.
Status FileStore::check(int fd) const {
  struct stat file {};
  if (::fstat(fd, &file) != 0) return cannot("look at", path_, kRemedy);
  if (!S_ISREG(file.st_mode))
    return make_error(StatusCode::kUnauthorized, "{} is not a regular file: remove it", path_);
  if (file.st_uid != ::geteuid())
    return make_error(
        StatusCode::kUnauthorized,
        "{} belongs to uid {}, this rank to uid {}: all ranks must run as one user, who must own the file", path_,
        file.st_uid, ::geteuid());
  if ((file.st_mode & 077) != 0)
    return make_error(StatusCode::kUnauthorized,
                      "{} has mode {:04o}: other users could read or change the job's secret; remove it", path_,
                      file.st_mode & 07777);
  return {};
}

// Opens the directory again, so that a network file system queries its server. Otherwise it may cache for long that the
// file does not exist.
Expected<FileStore::Found> FileStore::look() const {
  const Fd again(::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Fd fd(::openat(again ? again.get() : fd_.get(), name_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd && (errno == ENOENT || errno == ESTALE)) return Found{};
  if (!fd && errno == ELOOP) return make_error(StatusCode::kUnauthorized, "{} is a symbolic link: remove it", path_);
  if (!fd) return cannot("open", path_, kRemedy);
  RONDO_TRY(check(fd.get()));
  Found found;
  found.text.resize(kMaxFileBytes);
  const ssize_t n = ::read(fd.get(), found.text.data(), found.text.size());
  if (n < 0 && errno == ESTALE) return Found{};  // replaced concurrently
  if (n < 0) return cannot("read", path_, kRemedy);
  found.text.resize(static_cast<size_t>(n));
  const std::string_view text = found.text;
  const size_t id_at = kHeader.size(), by_at = id_at + 2 * sizeof(found.id.bytes) + 1;
  if (!text.starts_with(kHeader) || text.size() < by_at)
    return make_error(StatusCode::kMismatch, "{} was not written by this version of rondo: remove it", path_);
  auto id = unique_id_from_hex(std::string(text.substr(id_at, 2 * sizeof(found.id.bytes))));
  if (!id.ok()) return make_error(StatusCode::kMismatch, "{} is damaged: remove it", path_);
  found.id = *id;
  found.by = text.substr(by_at, text.find('\n', by_at) - by_at);
  return found;
}

Expected<std::string> FileStore::write_beside(const std::string& text) const {
  uint64_t random = 0;
  RONDO_TRY(random_bytes(&random, sizeof(random)));
  const std::string temporary = fmt::format(".{}.{:016x}", name_, random);
  const NoSizeSignal no_signal;
  const Fd fd(::openat(fd_.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return cannot("write to the directory", directory_, kRemedy);
  if (::fchmod(fd.get(), 0600) == 0 &&
      ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(fd.get()) == 0)
    return temporary;
  const Status s = cannot("write", directory_ + "/" + temporary, kRemedy);
  ::unlinkat(fd_.get(), temporary.c_str(), 0);
  return s;
}

// If two processes start as rank 0 at once, neither must replace the other's file. Therefore first rename without
// replacing, if the file system supports it.
Status FileStore::put_in_place(const std::string& temporary, const Deadline& deadline) {
  const int dir = fd_.get();
  if (::syscall(SYS_renameat2, dir, temporary.c_str(), dir, name_.c_str(), /* RENAME_NOREPLACE */ 1) == 0) return {};
  RONDO_TRY_ASSIGN(const Found there, look());
  if (!there.text.empty()) {
    if (answers(there.id, 0, deadline))
      return make_error(StatusCode::kMismatch,
                        "another job of the same name is starting: {} holds the id of "
                        "{}; give each job its own name (RONDO_JOB_ID) or directory",
                        path_, there.by);
    std::fprintf(stderr, "rondo: %s is from an earlier job (%s) that does not answer: replaced\n", path_.c_str(),
                 there.by.c_str());
  }
  if (::renameat(dir, temporary.c_str(), dir, name_.c_str()) == 0) return {};
  return cannot("put the unique id to", path_, kRemedy);
}

Status FileStore::publish(const rondo_unique_id& id, const Deadline& deadline) {
  RONDO_TRY_ASSIGN(const PeerInfo self, describe_self(0));
  const std::string text = fmt::format("{}{}\n{}\n", kHeader, unique_id_to_hex(id), peer_text(0, self));
  RONDO_TRY_ASSIGN(const std::string temporary, write_beside(text));
  if (const Status s = put_in_place(temporary, deadline); !s.ok()) {
    ::unlinkat(fd_.get(), temporary.c_str(), 0);
    return s;
  }
  (void)::fsync(fd_.get());
  published_ = text;
  return {};
}

Expected<rondo_unique_id> FileStore::fetch(Rank rank, const Deadline& deadline) {
  std::string dead;  // the file of a dead job
  std::string whose;
  Deadline::Clock::time_point ask_again;
  for (double pause_ms = kFirstPauseMs;; pause_ms = std::min(2 * pause_ms, kMaxPauseMs)) {
    auto found = look();
    if (!found.ok()) return make_error(found.status().code(), "rank {}: {}", rank, found.status().message());
    if (!found->text.empty() && (found->text != dead || Deadline::Clock::now() >= ask_again)) {
      if (answers(found->id, rank, deadline)) return found->id;
      dead = found->text;
      ask_again = Deadline::Clock::now() + kAskAgain;
      whose = fmt::format("; there is one of an earlier job ({}) that does not answer", found->by);
    }
    if (const Status s = deadline.pause(pause_ms, fmt::format("waiting for rank 0's unique id in {}", path_)); !s.ok())
      return make_error(s.code(), "rank {} {}{}; is rank 0 running, with the same RONDO_STORE, job name and user?",
                        rank, s.message(), whose);
  }
}

void FileStore::withdraw() {
  if (published_.empty()) return;
  const auto there = look();
  if (there.ok() && there->text == published_) ::unlinkat(fd_.get(), name_.c_str(), 0);
  published_.clear();
}

}  // namespace rondo

#include "fsdp/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

namespace rondo::fsdp {

namespace {

// Blocks SIGXFSZ in its scope: a write beyond the file size limit then fails with EFBIG and does not end the process.
class NoSizeSignal {
 public:
  NoSizeSignal() {
    sigset_t pending;
    was_pending_ = ::sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~NoSizeSignal() {
    const int kept = errno;
    const timespec at_once{};
    if (!was_pending_) (void)::sigtimedwait(&signal_, nullptr, &at_once);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = kept;
  }
  NoSizeSignal(const NoSizeSignal&) = delete;
  NoSizeSignal& operator=(const NoSizeSignal&) = delete;

 private:
  sigset_t signal_, before_;
  bool was_pending_ = false;
};

}  // namespace

Status system_error(const std::string& what, const std::string& path) {
  const int error = errno;
  const std::string text = fmt::format("cannot {} '{}': {}", what, path, std::generic_category().message(error));
  rlimit limit{};
  if (error != EFBIG || ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return Status(StatusCode::kSystem, text);
  return Status(StatusCode::kExhausted,
                fmt::format("{}: raise the limit on file sizes (ulimit -f, now {} bytes)", text, limit.rlim_cur));
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  RONDO_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() { EVP_MD_CTX_free(context_); }
void Sha256::add(const void* data, uint64_t size_bytes) {
  RONDO_CHECK(EVP_DigestUpdate(context_, data, size_bytes) == 1);
}
std::string Sha256::finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  RONDO_CHECK(EVP_DigestFinal_ex(context_, digest, &length) == 1);
  std::string hex;
  for (unsigned int i = 0; i < length; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

Expected<File> File::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return system_error("open", path);
  struct stat s;
  if (::fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
    ::close(fd);
    return Status(StatusCode::kInvalidArgument, fmt::format("'{}' is not a file", path));
  }
  return File(fd, path, static_cast<uint64_t>(s.st_size));
}
File::File(File&& o) noexcept : fd_(o.fd_), path_(std::move(o.path_)), size_bytes_(o.size_bytes_) { o.fd_ = -1; }
File::~File() {
  if (fd_ >= 0) ::close(fd_);
}
Status File::read(uint64_t at, uint64_t size_bytes, void* to) const {
  auto* p = static_cast<char*>(to);
  while (size_bytes > 0) {
    const ssize_t n = ::pread(fd_, p, std::min<uint64_t>(size_bytes, 1 << 30), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("read", path_);
    if (n == 0)
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("'{}' ends at {} bytes: {} more are needed", path_, at, size_bytes));
    p += n, at += static_cast<uint64_t>(n), size_bytes -= static_cast<uint64_t>(n);
  }
  return {};
}

Expected<Writer> Writer::create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) return system_error("create", path);
  return Writer(fd, path);
}
Writer::Writer(Writer&& o) noexcept : fd_(o.fd_), path_(std::move(o.path_)) { o.fd_ = -1; }
Writer::~Writer() {
  if (fd_ >= 0) ::close(fd_);
}
Status Writer::write(const void* data, uint64_t size_bytes, Sha256* hash) {
  const NoSizeSignal no_signal;
  const auto* p = static_cast<const char*>(data);
  while (size_bytes > 0) {
    const ssize_t n = ::write(fd_, p, std::min(size_bytes, kPieceBytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("write", path_);
    if (hash != nullptr) hash->add(p, static_cast<uint64_t>(n));
    p += n, size_bytes -= static_cast<uint64_t>(n);
  }
  return {};
}
Status Writer::write_at(uint64_t at, const void* data, uint64_t size_bytes) {
  const NoSizeSignal no_signal;
  const auto* p = static_cast<const char*>(data);
  while (size_bytes > 0) {
    const ssize_t n = ::pwrite(fd_, p, std::min<uint64_t>(size_bytes, 1 << 30), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("write", path_);
    p += n, at += static_cast<uint64_t>(n), size_bytes -= static_cast<uint64_t>(n);
  }
  return {};
}
Status Writer::finish() {
  if (::fsync(fd_) != 0) return system_error("sync", path_);
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) return system_error("close", path_);
  return {};
}

Expected<WholeFile> WholeFile::create(const std::string& path) {
  if (::unlink((path + kBeside).c_str()) != 0 && errno != ENOENT) return system_error("replace", path + kBeside);
  RONDO_TRY_ASSIGN(Writer beside, Writer::create(path + kBeside));
  return WholeFile(std::move(beside), path);
}
WholeFile::WholeFile(WholeFile&& o) noexcept : beside_(std::move(o.beside_)), path_(std::move(o.path_)) {
  o.path_.clear();
}
WholeFile::~WholeFile() {
  if (!path_.empty()) ::unlink((path_ + kBeside).c_str());
}
Status WholeFile::finish() {
  RONDO_TRY(beside_.finish());
  if (::rename((path_ + kBeside).c_str(), path_.c_str()) != 0) return system_error("rename to", path_);
  const std::string folder = folder_of(path_);
  path_.clear();
  return sync_folder(folder);
}

Expected<std::string> read_file(const std::string& path, uint64_t most_bytes) {
  RONDO_TRY_ASSIGN(const File file, File::open(path));
  if (file.size_bytes() > most_bytes)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("'{}' has {} bytes, at most {} are read", path, file.size_bytes(), most_bytes));
  std::string text(file.size_bytes(), '\0');
  RONDO_TRY(file.read(0, text.size(), text.data()));
  return text;
}

bool exists(const std::string& path) {
  struct stat s;
  return ::lstat(path.c_str(), &s) == 0;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

Status make_folder(const std::string& path) {
  return ::mkdir(path.c_str(), 0777) == 0 ? Status() : system_error("make folder", path);
}

Status sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return system_error("open folder", path);
  const bool synced = ::fsync(fd) == 0;
  const Status s = synced ? Status() : system_error("sync folder", path);
  ::close(fd);
  return s;
}

Expected<std::string> sha256_of(const File& file) {
  const std::unique_ptr<char[]> piece(new char[kPieceBytes]);
  Sha256 hash;
  for (uint64_t at = 0; at < file.size_bytes(); at += kPieceBytes) {
    const uint64_t n = std::min(kPieceBytes, file.size_bytes() - at);
    RONDO_TRY(file.read(at, n, piece.get()));
    hash.add(piece.get(), n);
  }
  return hash.finish();
}

}  // namespace rondo::fsdp

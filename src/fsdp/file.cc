#include "fsdp/file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/error.h"
#include "base/limits.h"

namespace rondo::fsdp {

Status system_error(const std::string& what, const std::string& path) {
  const int error = errno;
  return make_error(code_of(error), "cannot {} '{}': {}", what, path, errno_reason(error));
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
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return system_error("open", path);
  struct stat s;
  if (::fstat(fd.get(), &s) != 0 || !S_ISREG(s.st_mode)) return invalid_argument("'{}' is not a file", path);
  return File(std::move(fd), path, static_cast<uint64_t>(s.st_size));
}
Status File::read(uint64_t at, uint64_t size_bytes, void* to) const {
  auto* p = static_cast<char*>(to);
  while (size_bytes > 0) {
    const ssize_t n = ::pread(fd_.get(), p, std::min<uint64_t>(size_bytes, 1 << 30), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("read", path_);
    if (n == 0) return invalid_argument("'{}' ends at {} bytes: {} more are needed", path_, at, size_bytes);
    p += n, at += static_cast<uint64_t>(n), size_bytes -= static_cast<uint64_t>(n);
  }
  return {};
}

Expected<Writer> Writer::create(const std::string& path) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd) return system_error("create", path);
  return Writer(std::move(fd), path);
}
template <class Some>
Status Writer::write_all(const void* data, uint64_t size_bytes, const Some& write_some) {
  const NoSizeSignal no_signal;
  const auto* p = static_cast<const char*>(data);
  while (size_bytes > 0) {
    const ssize_t n = write_some(p, std::min(size_bytes, kPieceBytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("write", path_);
    p += n, size_bytes -= static_cast<uint64_t>(n);
  }
  return {};
}
Status Writer::write(const void* data, uint64_t size_bytes, Sha256* hash) {
  return write_all(data, size_bytes, [&](const char* p, uint64_t most) {
    const ssize_t n = ::write(fd_.get(), p, most);
    if (n > 0 && hash != nullptr) hash->add(p, static_cast<uint64_t>(n));
    return n;
  });
}
Status Writer::write_at(uint64_t at, const void* data, uint64_t size_bytes) {
  return write_all(data, size_bytes, [&](const char* p, uint64_t most) {
    return ::pwrite(fd_.get(), p, most,
                    static_cast<off_t>(at + static_cast<uint64_t>(p - static_cast<const char*>(data))));
  });
}
Status Writer::finish() {
  if (::fsync(fd_.get()) != 0) return system_error("sync", path_);
  if (::close(fd_.release()) != 0) return system_error("close", path_);
  return {};
}

Expected<WholeFile> WholeFile::create(const std::string& path) {
  if (::unlink((path + kBeside).c_str()) != 0 && errno != ENOENT) return system_error("replace", path + kBeside);
  RONDO_TRY_ASSIGN(Writer beside, Writer::create(path + kBeside));
  return WholeFile(std::move(beside), path);
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
    return invalid_argument("'{}' has {} bytes, at most {} are read", path, file.size_bytes(), most_bytes);
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
  const Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return system_error("open folder", path);
  return ::fsync(fd.get()) == 0 ? Status() : system_error("sync folder", path);
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

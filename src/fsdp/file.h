// Files and folders of checkpoints: complete writes and reads, SHA-256 during the transfer, errors with path and
// reason. Thread safety: plain values. Use a File from one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/fd.h"
#include "rondo/status.h"

struct evp_md_ctx_st;

namespace rondo::fsdp {

constexpr uint64_t kPieceBytes = 1 << 20;  // unit of hashing, writing and copying: fits a cache

constexpr const char* kBeside = ".saving";  // suffix of a file or folder while it is written

/// Returns "cannot DO PATH: errno's text", as kSystem, or as kExhausted with the limit that was reached.
Status system_error(const std::string& what, const std::string& path);

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(const void* data, uint64_t size_bytes);
  /// Returns hexadecimal digits. Call it once.
  std::string finish();

 private:
  evp_md_ctx_st* context_;
};

/// A file that is open for reading.
class File {
 public:
  static Expected<File> open(const std::string& path);
  const std::string& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }
  /// Reads all size_bytes, or fails.
  Status read(uint64_t at, uint64_t size_bytes, void* to) const;

 private:
  File(Fd fd, std::string path, uint64_t size_bytes)
      : fd_(std::move(fd)), path_(std::move(path)), size_bytes_(size_bytes) {}
  Fd fd_;
  std::string path_;
  uint64_t size_bytes_;
};

/// A new file. An existing path, even a link, is an error. The file is on the disk after finish(). Without finish() its
/// content is undefined.
class Writer {
 public:
  static Expected<Writer> create(const std::string& path);
  Status write(const void* data, uint64_t size_bytes, Sha256* hash = nullptr);
  /// Writes at any offset. The position of write() does not change.
  Status write_at(uint64_t at, const void* data, uint64_t size_bytes);
  Status finish();

 private:
  Writer(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  template <class Some>
  Status write_all(const void* data, uint64_t size_bytes, const Some& write_some);
  Fd fd_;
  std::string path_;
};

/// Replaces a file atomically: writes PATH.saving and renames it in finish(). An existing PATH.saving (a leftover or a
/// link) is removed first, never written to.
class WholeFile {
 public:
  static Expected<WholeFile> create(const std::string& path);
  WholeFile(WholeFile&& o) noexcept : beside_(std::move(o.beside_)), path_(std::exchange(o.path_, {})) {}
  ~WholeFile();
  Status write(const void* data, uint64_t size_bytes) { return beside_.write(data, size_bytes); }
  Status write_at(uint64_t at, const void* data, uint64_t size_bytes) { return beside_.write_at(at, data, size_bytes); }
  Status finish();

 private:
  WholeFile(Writer beside, std::string path) : beside_(std::move(beside)), path_(std::move(path)) {}
  Writer beside_;
  std::string path_;  // empty after finish()
};

Expected<std::string> read_file(const std::string& path, uint64_t most_bytes);
bool exists(const std::string& path);  // does not follow links
/// The folder that contains `path`. "." if the path has no folder.
std::string folder_of(const std::string& path);
Status make_folder(const std::string& path);
/// After this call renames and removals in the folder are on the disk.
Status sync_folder(const std::string& path);
Expected<std::string> sha256_of(const File& file);

}  // namespace rondo::fsdp

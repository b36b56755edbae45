// Files and folders of checkpoints: whole writes and reads, SHA-256 on the way, errors that name path and reason.
//
// Thread safety: as values; a File is one thread's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "rondo/status.h"

struct evp_md_ctx_st;

namespace rondo::fsdp {

constexpr uint64_t kPieceBytes = 1 << 20;  // what is hashed, written and copied at a time: fits a cache

constexpr const char* kBeside = ".saving";  // what is being written stands beside its place under this suffix

/// kSystem: "cannot DO PATH: errno's text"; kExhausted naming the limit on file sizes.
Status system_error(const std::string& what, const std::string& path);

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(const void* data, uint64_t size_bytes);
  /// Hexadecimal. Once.
  std::string finish();

 private:
  evp_md_ctx_st* context_;
};

/// Opened for reading.
class File {
 public:
  static Expected<File> open(const std::string& path);
  File(File&& o) noexcept;
  File& operator=(File&&) = delete;
  ~File();
  const std::string& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }
  /// All of it, or an error.
  Status read(uint64_t at, uint64_t size_bytes, void* to) const;

 private:
  File(int fd, std::string path, uint64_t size_bytes) : fd_(fd), path_(std::move(path)), size_bytes_(size_bytes) {}
  int fd_;
  std::string path_;
  uint64_t size_bytes_;
};

/// A new file: what is there already, a link too, is an error. It is on the disk after finish(); without that
/// its content is undefined.
class Writer {
 public:
  static Expected<Writer> create(const std::string& path);
  Writer(Writer&& o) noexcept;
  Writer& operator=(Writer&&) = delete;
  ~Writer();
  Status write(const void* data, uint64_t size_bytes, Sha256* hash = nullptr);
  /// Anywhere; where write() goes on stays as it is.
  Status write_at(uint64_t at, const void* data, uint64_t size_bytes);
  Status finish();

 private:
  Writer(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_;
};

/// A file that is complete or as it was: written beside as PATH.saving, and renamed at its end. What lies at
/// PATH.saving,
/// a leftover or a link, is removed and not written to.
class WholeFile {
 public:
  static Expected<WholeFile> create(const std::string& path);
  WholeFile(WholeFile&& o) noexcept;
  WholeFile& operator=(WholeFile&&) = delete;
  ~WholeFile();
  Status write(const void* data, uint64_t size_bytes) { return beside_.write(data, size_bytes); }
  Status write_at(uint64_t at, const void* data, uint64_t size_bytes) { return beside_.write_at(at, data, size_bytes); }
  Status finish();

 private:
  WholeFile(Writer beside, std::string path) : beside_(std::move(beside)), path_(std::move(path)) {}
  Writer beside_;
  std::string path_;  // empty: finished
};

Expected<std::string> read_file(const std::string& path, uint64_t most_bytes);
bool exists(const std::string& path);  // links are not followed
/// What names of files in a folder stand for; "." where there is none.
std::string folder_of(const std::string& path);
Status make_folder(const std::string& path);
/// Renames and removals in it are on the disk.
Status sync_folder(const std::string& path);
Expected<std::string> sha256_of(const File& file);

}  // namespace rondo::fsdp

// FileStore: rank 0 passes a unique id to the other ranks through a directory that all ranks can access (NFS, Lustre,
// /tmp). For launchers that give ranks no other way to meet.
//
//   rank 0   writes .<name>.<random> (mode 0600), fsync, rename to <name>; removes it when all have joined
//   others   poll for <name> until it exists and a process that proves its secret answers at its address
//
// The file contains the secret, so every process that can read it can join. Therefore it must belong to this rank's
// user and be closed to all others, else it is refused. A file of a dead job is recognised because no process answers:
// the other ranks wait for a new file, and rank 0 replaces it. If a process answers, another job of the same name is
// starting, and rank 0 refuses to mix the two. Thread safety: one thread per store.
#pragma once

#include <string>

#include "bootstrap/socket.h"
#include "rondo/rondo.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

/// Returns the directory of "file:///path/of/it". Errors: kInvalidArgument.
Expected<std::string> store_directory(const std::string& url);

class FileStore {
 public:
  /// Opens the directory. `job` names the file. Errors: kSystem (no such directory).
  static Expected<FileStore> open(const std::string& directory, const std::string& job);
  FileStore(FileStore&& o) noexcept = default;
  ~FileStore() { withdraw(); }

  /// For rank 0. Errors: kSystem (cannot write there), kMismatch (another job of this name is starting), and those of
  /// fetch() for a file that is there already.
  Status publish(const rondo_unique_id& id, const Deadline& deadline);
  /// Reads the id from the file. For the other ranks. Errors: kTimeout (names the file, and who wrote it if its job is
  /// dead), kAborted, kUnauthorized (another user owns the file or can access it, or it is a link), kMismatch (damaged,
  /// or of another version), kSystem.
  Expected<rondo_unique_id> fetch(Rank rank, const Deadline& deadline);
  /// Removes the file that this store has published, if it still exists.
  void withdraw();

  const std::string& path() const { return path_; }

 private:
  FileStore(std::string directory, std::string name, Fd fd)
      : directory_(std::move(directory)), name_(std::move(name)), path_(directory_ + "/" + name_), fd_(std::move(fd)) {}
  struct Found {
    std::string text;  // empty: no file
    rondo_unique_id id = {};
    std::string by;  // its publisher
  };
  Expected<Found> look() const;
  Status check(int fd) const;
  Expected<std::string> write_beside(const std::string& text) const;
  Status put_in_place(const std::string& temporary, const Deadline& deadline);

  std::string directory_, name_, path_;
  Fd fd_;  // of the directory
  std::string published_;
};

}  // namespace rondo

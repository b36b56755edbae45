// FileStore: handing a unique id from rank 0 to the other ranks through a directory that all of them see (NFS, Lustre,
// /tmp), where nothing else tells them of one another.
//
//   rank 0   writes .<name>.<random> (mode 0600), fsync, rename to <name>;        takes it away when all have joined
//   others   look for <name> until it is there and somebody who holds its secret answers at the address that it tells
//
// The file holds the secret: whoever may read it can join. So it must belong to this rank's user and be closed to all
// others, else it is refused. What a dead job has left is known by that: nobody answers. The ranks wait on for another
// file, and rank 0 takes its place. Where somebody does answer, another job of the same name is at its start; rank 0
// refuses to mix the two.
//
// Thread safety: one thread per store.
#pragma once

#include <string>

#include "bootstrap/socket.h"
#include "rondo/rondo.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

/// The directory of "file:///path/of/it". kInvalidArgument: something else.
Expected<std::string> store_directory(const std::string& url);

class FileStore {
 public:
  /// `job` names the file. Errors: kSystem (no such directory).
  static Expected<FileStore> open(const std::string& directory, const std::string& job);
  FileStore(FileStore&& o) noexcept = default;
  ~FileStore() { withdraw(); }

  /// Rank 0. Errors: kSystem (cannot write there), kMismatch (another job of this name is at its start).
  Status publish(const rondo_unique_id& id, const Patience& patience);
  /// The other ranks. Errors: kTimeout (names the file and what lay there), kAborted, kUnauthorized (others may read or
  /// write the file, or it is theirs), kSystem.
  Expected<rondo_unique_id> fetch(Rank rank, const Patience& patience);
  /// Takes away what this store has published, if it is still there.
  void withdraw();

  const std::string& path() const { return path_; }

 private:
  FileStore(std::string directory, std::string name, Fd fd)
      : directory_(std::move(directory)), name_(std::move(name)), path_(directory_ + "/" + name_), fd_(std::move(fd)) {}
  struct Found {
    std::string text;  // empty: no file
    rondo_unique_id id = {};
    std::string by;  // who has published it
  };
  Expected<Found> look() const;
  Status check(int fd) const;
  Expected<std::string> write_beside(const std::string& text) const;
  Status put_in_place(const std::string& temporary, const Patience& patience);

  std::string directory_, name_, path_;
  Fd fd_;  // of the directory
  std::string published_;
};

}  // namespace rondo

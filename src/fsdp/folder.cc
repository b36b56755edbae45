#include "fsdp/folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "fsdp/file.h"
#include "fsdp/manifest.h"

namespace rondo::fsdp {
namespace {

bool is_shard(std::string_view name) {
  constexpr std::string_view kBegin = "shard-", kEnd = "-model-00001-of-00001.safetensors";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd) || name.size() < kBegin.size() + kEnd.size() + 5) return false;
  const std::string_view number = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
  return number.find_first_not_of("0123456789") == std::string_view::npos;
}

// Lists the paths of a checkpoint's folder, files before their subfolder. Returns an error if it holds anything else.
Status list_checkpoint(const std::string& folder, bool inner, std::vector<std::string>* paths) {
  std::error_code failed;
  std::filesystem::directory_iterator it(folder, failed);
  for (; !failed && it != std::filesystem::directory_iterator(); it.increment(failed)) {
    const std::string name = it->path().filename(), path = folder + "/" + name;
    std::error_code ignored;
    const auto type = it->symlink_status(ignored).type();
    const bool file = type == std::filesystem::file_type::regular;
    if (!inner && name == kOptimizerFolder && type == std::filesystem::file_type::directory) {
      RONDO_TRY(list_checkpoint(path, true, paths));
      paths->push_back(path);
    } else if (file && (is_shard(name) || (!inner && name == kManifest))) {
      paths->push_back(path);
    } else {
      return invalid_argument(
          "'{}' cannot be replaced by a checkpoint: it contains '{}', which is not part of a checkpoint; name another "
          "folder, or move that file away",
          folder, name);
    }
  }
  if (failed) return make_error(StatusCode::kSystem, "cannot list '{}': {}", folder, failed.message());
  return {};
}

// Returns the paths of a folder that may be replaced: none if it does not exist; its own comes last.
Expected<std::vector<std::string>> paths_of_checkpoint(const std::string& folder) {
  std::vector<std::string> paths;
  struct stat s;
  if (::lstat(folder.c_str(), &s) != 0) {
    if (errno == ENOENT) return paths;
    return system_error("look at", folder);
  }
  if (!S_ISDIR(s.st_mode))
    return invalid_argument("'{}' cannot be replaced by a checkpoint: it is not a folder", folder);
  RONDO_TRY(list_checkpoint(folder, false, &paths));
  paths.push_back(folder);
  return paths;
}

}  // namespace

std::string shard_name(int rank) { return fmt::format("shard-{:05}-model-00001-of-00001.safetensors", rank + 1); }

Status remove_checkpoint(const std::string& folder) {
  RONDO_TRY_ASSIGN(const std::vector<std::string> paths, paths_of_checkpoint(folder));
  for (const std::string& path : paths)
    if (::remove(path.c_str()) != 0 && errno != ENOENT) return system_error("remove", path);
  return {};
}

Status begin_folder(const std::string& folder, bool optimizer) {
  RONDO_TRY(paths_of_checkpoint(folder).status());
  const std::string beside = folder + kBeside;
  RONDO_TRY(remove_checkpoint(beside));
  RONDO_TRY(make_folder(beside));
  return optimizer ? make_folder(beside + "/" + kOptimizerFolder) : Status();
}

Status replace_folder(const std::string& folder, bool* replaced) {
  const std::string beside = folder + kBeside;
  const bool replaces = exists(folder);
  if (::renameat2(AT_FDCWD, beside.c_str(), AT_FDCWD, folder.c_str(), replaces ? RENAME_EXCHANGE : 0) != 0) {
    if (replaces && (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP))
      return unsupported(
          "'{}' cannot be replaced: its file system does not exchange two folders in one step; save under a new name "
          "each time",
          folder);
    return system_error("rename to", folder);
  }
  *replaced = true;
  RONDO_TRY(sync_folder(folder_of(folder)));
  // The new checkpoint is in place. If removing the old one fails, the next save removes it.
  if (replaces) (void)remove_checkpoint(beside);
  return {};
}

}  // namespace rondo::fsdp

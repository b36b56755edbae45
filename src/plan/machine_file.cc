#include "plan/machine_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/fd.h"
#include "base/forks.h"
#include "base/new_file.h"
#include "base/read_file.h"
#include "bootstrap/unique_id.h"
#include "plan/calibration.h"
#include "topology/handover.h"

namespace rondo {
namespace {

std::string size_text(long bytes) {
  if (bytes <= 0) return "?";
  return bytes % (1 << 20) == 0 ? fmt::format("{}M", bytes >> 20) : fmt::format("{}K", bytes >> 10);
}

// Returns true if only this user may write it.
bool is_ours(const struct stat& facts) {
  return facts.st_uid == ::geteuid() && (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// The hand-over's range: from a power of two to below the next. Measured once in a process.
const std::string& handover_text() {
  struct Text {
    std::string text = "unknown";
    Text() {
      const std::optional<double> ns = measure_handover_ns();
      if (!ns || *ns < 1) return;
      const uint64_t from = std::bit_floor(static_cast<uint64_t>(*ns));
      text = fmt::format("{} to {} ns", from, 2 * from);
    }
  };
  return of_this_process<Text>().text;
}

constexpr size_t kMostFileBytes = 64 * 1024;

}  // namespace

std::string machine_name() {
  utsname system{};
  ::uname(&system);
  std::string cpus = first_line_of("/sys/fs/cgroup/cpuset.cpus.effective");
  if (cpus.empty()) cpus = "?";
  return fmt::format("{}, caches {} {} {}, CPUs {} of {}, hand-over {}, {} {}, rondo {}", processor_name(),
                     size_text(::sysconf(_SC_LEVEL1_DCACHE_SIZE)), size_text(::sysconf(_SC_LEVEL2_CACHE_SIZE)),
                     size_text(::sysconf(_SC_LEVEL3_CACHE_SIZE)), cpus, first_line_of("/sys/devices/system/cpu/online"),
                     handover_text(), system.sysname, system.release, RONDO_VERSION);
}

std::string machine_file_path() {
  const char *xdg = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  std::string folder;
  if (xdg != nullptr && *xdg != '\0') folder = xdg;
  else if (home != nullptr && *home != '\0') folder = fmt::format("{}/.cache", home);
  return folder.empty() ? "" : fmt::format("{}/rondo/machine-{:016x}", folder, fnv1a(machine_name()));
}

Expected<std::optional<CostModel>> read_machine_file(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && errno == ENOENT) return std::optional<CostModel>();
  struct stat facts {};
  if (!fd || ::fstat(fd.get(), &facts) != 0)
    return make_error(StatusCode::kSystem, "{} cannot be read: {}", path, std::strerror(errno));
  if (!S_ISREG(facts.st_mode) || !is_ours(facts))
    return make_error(StatusCode::kSystem, "{} is not a file that only this user may write (uid {}, mode {:o})", path,
                      facts.st_uid, facts.st_mode & 07777);
  const auto c = parse_calibration(read_file(fmt::format("/proc/self/fd/{}", fd.get()), kMostFileBytes).value_or(""));
  if (!c.ok()) return invalid_argument("{} is malformed: {}", path, c.status().message());
  if (c->version != kCalibrationVersion || c->machine != machine_name())
    return invalid_argument("{} is of another machine or version", path);
  return std::optional(c->costs);
}

Status write_machine_file(const std::string& path, const CostModel& costs) {
  Calibration c;
  sign(c);
  c.machine = machine_name();
  c.costs = costs;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder.parent_path(), error);
  ::mkdir(folder.c_str(), 0700);  // it may exist
  struct stat facts {};
  if (::lstat(folder.c_str(), &facts) != 0)
    return make_error(StatusCode::kSystem, "{} cannot be made: {}", folder.string(), std::strerror(errno));
  if (!S_ISDIR(facts.st_mode) || !is_ours(facts))
    return make_error(StatusCode::kSystem, "{} is not a folder that only this user may write", folder.string());
  const std::string text = format_calibration(c);
  const std::string_view piece = text;
  return write_whole_file(path, {&piece, 1}, 0600);
}

}  // namespace rondo

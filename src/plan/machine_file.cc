#include "plan/machine_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

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

std::string range_of_handover(double ns) {
  const uint64_t from = std::bit_floor(static_cast<uint64_t>(ns));
  return fmt::format("{} to {} ns", from, 2 * from);
}

// The range of the hand-over's time, measured once in a process, and then the ranges whose files may take its place:
// the neighbour of a time near its border. If the time could not be measured, because other work uses the cores, any.
const std::vector<std::string>& ranges_of_handover() {
  struct Ranges {
    std::vector<std::string> all;
    Ranges() {
      constexpr double kNear = 1.15, kLeast = 8, kMost = 4096;
      const std::optional<double> ns = measure_handover_ns();
      if (ns) {
        all.push_back(range_of_handover(std::clamp(*ns, kLeast, kMost)));
        for (const double near : {*ns / kNear, *ns * kNear})
          if (const std::string range = range_of_handover(std::clamp(near, kLeast, kMost)); range != all[0])
            all.push_back(range);
      } else {
        all.push_back("unknown");
        for (double from = kLeast; from <= kMost; from *= 2) all.push_back(range_of_handover(from));
      }
    }
  };
  return of_this_process<Ranges>().all;
}

std::string name_with(std::string_view handover) {
  utsname system{};
  ::uname(&system);
  std::string cpus = first_line_of("/sys/fs/cgroup/cpuset.cpus.effective");
  if (cpus.empty()) cpus = "?";
  return fmt::format("{}, caches {} {} {}, CPUs {} of {}, hand-over {}, {} {}, rondo {}", processor_name(),
                     size_text(::sysconf(_SC_LEVEL1_DCACHE_SIZE)), size_text(::sysconf(_SC_LEVEL2_CACHE_SIZE)),
                     size_text(::sysconf(_SC_LEVEL3_CACHE_SIZE)), cpus, first_line_of("/sys/devices/system/cpu/online"),
                     handover, system.sysname, system.release, RONDO_VERSION);
}

constexpr size_t kMostFileBytes = 64 * 1024;

}  // namespace

std::string machine_name() { return name_with(ranges_of_handover()[0]); }

std::string machine_file_path() {
  const char *xdg = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  std::string folder;
  if (xdg != nullptr && *xdg != '\0') folder = xdg;
  else if (home != nullptr && *home != '\0') folder = fmt::format("{}/.cache", home);
  if (folder.empty()) return {};
  std::string first;
  for (const std::string& range : ranges_of_handover()) {
    const std::string path = fmt::format("{}/rondo/machine-{:016x}", folder, fnv1a(name_with(range)));
    if (::access(path.c_str(), F_OK) == 0) return path;
    if (first.empty()) first = path;
  }
  return first;
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
  const auto is_this = [&](std::string_view range) { return c->machine == name_with(range); };
  if (c->version != kCalibrationVersion || std::ranges::none_of(ranges_of_handover(), is_this))
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

#include "config/setting_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "algorithms/registry.h"
#include "kernels/kernels.h"

namespace rondo {
namespace {

using Kind = SettingRow::Kind;
constexpr uint8_t kEnv = SettingRow::kEnvironmentOnly, kSecret = SettingRow::kConfidential;

constexpr SettingRow kRows[] = {
    {"config", Kind::kText, 0, 0, "", "~/.config/rondo.conf, /etc/rondo.conf",
     "path of the configuration file; empty: none is read", kEnv},
    {"timeout_s", Kind::kSeconds, 0, 0, "", "600", "deadline of an operation, in seconds"},
    {"init_timeout_s", Kind::kSeconds, 0, 0, "", "120", "deadline of making a communicator, in seconds"},
    {"algo", Kind::kAlgorithm, 0, 0, "", "the planner's choice", "algorithm for every collective that has it"},
    {"proto", Kind::kChoice, 0, 0, "inline|simple|ll|ll128", "the planner's choice",
     "protocol, where the message size permits"},
    {"message_bytes", Kind::kNumber, 64, 2097152, "", "the planner's choice",
     "longest message of the simple protocol; on one host at most 65536, between hosts what the transport takes"},
    {"transport", Kind::kChoice, 0, 0, "auto|shm+ucx|shm+tcp|ucx|tcp",
     "auto: shared memory on one host, UCX or TCP between hosts",
     "what carries messages; auto: UCX between hosts that have devices for it; ucx, tcp: also between ranks of one "
     "host"},
    {"rails", Kind::kText, 0, 0, "", "whichever there are",
     "network devices to send over at once, as UCX or the kernel names them: eth0,eth1; as many on every rank"},
    {"cma", Kind::kChoice, 0, 0, "0|1", "1", "0: ranks do not read one another's memory"},
    {"cuda", Kind::kChoice, 0, 0, "0|1", "1", "0: the NVIDIA driver is not looked for", kEnv},
    {"hosts", Kind::kText, 0, 0, "", "where they are",
     "on which hosts ranks pretend to be, for their plans: 2x4, 3+2, 0,1,0,1; transports stay as they are"},
    {"device_channels", Kind::kNumber, 1, 64, "", "by size, at most 16", "blocks of a device kernel for each lane"},
    {"device_min_blocks", Kind::kNumber, 1, 1024, "", "1",
     "a call's device kernel has no fewer blocks, where it has room"},
    {"device_max_blocks", Kind::kNumber, 1, 1024, "", "as many as are resident",
     "a call's device kernel has no more blocks, but one for each lane of an algorithm"},
    {"device_direct", Kind::kChoice, 0, 0, "off|on", "on",
     "off: calls on devices do not go from buffer to buffer, but through staging memory"},
    {"device_engine", Kind::kChoice, 0, 0, "auto|interpreter|stream", "auto",
     "what runs schedules on devices: a kernel that waits there, or copies and flags in streams"},
    {"bind", Kind::kChoice, 0, 0, "none|core|numa", "none",
     "where a rank's threads are bound: nowhere, to a core of its own, to its NUMA node"},
    {"order", Kind::kChoice, 0, 0, "places|rank", "places",
     "how rings and trees go through the ranks of a host: by the places that these are bound to, or by rank"},
    {"p2p", Kind::kChoice, 0, 0, "0|1", "1",
     "0: devices do not touch one another's memory: through pinned host memory"},
    {"p2p_level", Kind::kChoice, 0, 0, "loc|nvl|pix|pxb|phb|node|sys", "pxb; sys for two devices of an AMD host",
     "how far apart devices may be that touch one another's memory"},
    {"simd", Kind::kSimd, 0, 0, "", "the best that the processor has", "instruction set of the kernels"},
    {"calibration", Kind::kText, 0, 0, "", "~/.config/rondo/calibration, if it is there",
     "file with the planner's constants, or off: the built-in ones", kEnv},
    {"pool_bytes", Kind::kText, 0, 0, "", "16G", "size of this process's pool of staging memory", kEnv},
    {"trace", Kind::kText, 0, 0, "", "no trace", "folder for traces of every executed instruction", kEnv},
    {"trace_records", Kind::kNumber, 64, 67108864, "", "65536", "instructions that a trace keeps", kEnv},
    {"flight_dir", Kind::kText, 0, 0, "", "no files", "folder for the flight records of failing ranks", kEnv},
    {"flight_signal", Kind::kText, 0, 0, "", "no handler", "signal on which flight records are written", kEnv},
    {"plugin", Kind::kText, 0, 0, "", "none", "shared object with algorithms of your own, for the command line", kEnv},
    {"nccl_memory", Kind::kChoice, 0, 0, "auto|host|cuda", "auto: cuda where there is a device",
     "where libnccl.so.2's communicators have their buffers", kEnv},
    {"nccl_version", Kind::kNumber, 21400, 99999, "", "23203", "what libnccl.so.2's ncclGetVersion answers", kEnv},
    {"socket_ifname", Kind::kText, 0, 0, "", "all that are up", "network interfaces on which ranks listen"},
    {"full_mesh", Kind::kNumber, 2, 65536, "", "64",
     "up to so many ranks have control connections each with each; more have them along the rows and columns of a grid",
     kEnv},
    {"port", Kind::kNumber, 1, 65535, "", "MASTER_PORT + 1, or by the job's name", "port of rank 0's rendezvous"},
    {"store", Kind::kText, 0, 0, "", "by the launcher", "file:///directory where rank 0 puts the id for the others"},
    {"secret", Kind::kText, 0, 0, "", "by the job's name", "secret that the ranks share, any text", kSecret},
    {"encrypt", Kind::kChoice, 0, 0, "off|on", "off", "on: what leaves the host is encrypted", kEnv},
    {"job_id", Kind::kText, 0, 0, "", "what the launcher sets", "names the job", kEnv},
    {"rank", Kind::kNumber, 0, 1 << 20, "", "by the launcher", "a launch by hand: this process's rank", kEnv},
    {"nranks", Kind::kNumber, 1, 1 << 20, "", "by the launcher", "a launch by hand: how many ranks", kEnv},
    {"local_rank", Kind::kNumber, 0, 1 << 20, "", "the rank", "a launch by hand: this process's rank on its host",
     kEnv},
    {"unique_id", Kind::kText, 0, 0, "", "by the launcher", "a launch by hand: 256 hex digits", kEnv | kSecret},
};

// Levenshtein's distance, at most `limit` + 1.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

template <class T>
std::optional<T> whole(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

bool is_one_of(std::string_view value, std::string_view choices) {
  while (!choices.empty()) {
    const size_t bar = std::min(choices.find('|'), choices.size());
    if (value == choices.substr(0, bar)) return true;
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
  return false;
}

bool is_valid(const SettingRow& row, std::string_view value) {
  switch (row.kind) {
    case Kind::kSeconds: {
      const auto s = whole<double>(value);
      return s && *s > 0 && std::isfinite(*s);
    }
    case Kind::kNumber: {
      const auto n = whole<uint64_t>(value);
      return n && *n >= row.least && *n <= row.most;
    }
    case Kind::kChoice: return is_one_of(value, row.choices);
    case Kind::kAlgorithm: {
      const auto all = all_algorithms();
      return std::any_of(all.begin(), all.end(), [&](const Algorithm& a) { return a.name == value; });
    }
    case Kind::kSimd: {
      const auto level = simd_level_from_name(std::string(value).c_str());
      return level && kernel_table(*level) != nullptr;
    }
    case Kind::kText: return true;
  }
  return false;
}

}  // namespace

std::span<const SettingRow> setting_rows() { return kRows; }

const SettingRow* find_setting(std::string_view key) {
  const auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const SettingRow& r) { return r.key == key; });
  return row != std::end(kRows) ? row : nullptr;
}

std::string variable_of(std::string_view key) {
  std::string name = "RONDO_";
  for (const char c : key) name.push_back(c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c);
  return name;
}

std::string expected_form(const SettingRow& row) {
  switch (row.kind) {
    case Kind::kSeconds: return "a positive number of seconds";
    case Kind::kNumber: return fmt::format("a number from {} to {}", row.least, row.most);
    case Kind::kChoice: {
      std::string text;
      for (const char c : row.choices) c == '|' ? text += " or " : text += c;
      return text;
    }
    case Kind::kAlgorithm: return "the name of an algorithm (rondo check lists them)";
    case Kind::kSimd: return "baseline, avx2 or avx512, as far as this processor has it";
    case Kind::kText: return "text";
  }
  return "?";
}

Status check_setting(const SettingRow& row, std::string_view value, std::string_view where) {
  if (is_valid(row, value)) return {};
  return Status(StatusCode::kInvalidArgument, fmt::format("{}: expected {}", where, expected_form(row)));
}

std::string_view similar_setting(std::string_view key) {
  constexpr size_t kMostEdits = 3, kLongestKey = 40;
  std::string_view best;
  size_t fewest = kMostEdits + 1;
  if (key.size() > kLongestKey) return best;
  for (const SettingRow& row : kRows) {
    const size_t edits = row.key.size() >= 4 && key.starts_with(row.key) ? 1 : distance(key, row.key);
    if (edits < fewest && 2 * edits < row.key.size() + 1) fewest = edits, best = row.key;
  }
  return best;
}

std::string describe_settings(const SettingValues& values) {
  struct Line {
    std::string_view key;
    std::string shown, from;
  };
  std::vector<Line> lines = {{"setting", "in force", "from"}};
  for (const SettingRow& row : kRows) {
    const SettingValue* v = values.find(row.key);
    std::string shown(v == nullptr ? row.fallback : std::string_view(v->text));
    if (v != nullptr && (row.flags & kSecret) != 0) shown = "(set, not shown)";
    if (shown.empty()) shown = "(empty)";
    lines.push_back({row.key, std::move(shown), v == nullptr ? "default" : v->from});
  }
  constexpr size_t kWidest = 60;  // a longer path pushes its own line only
  size_t keys = 0, width = 0;
  for (const Line& l : lines) keys = std::max(keys, l.key.size());
  for (const Line& l : lines)
    if (l.shown.size() <= kWidest) width = std::max(width, l.shown.size());
  std::string text;
  for (const Line& l : lines) text += fmt::format("{:<{}} {:<{}} {}\n", l.key, keys, l.shown, width, l.from);
  return text;
}

}  // namespace rondo

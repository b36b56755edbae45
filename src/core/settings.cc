#include "core/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/tracing.h"
#include "core/calibration.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace rondo {
namespace {

// Every RONDO_* variable that some part of rondo reads.
constexpr std::string_view kKnown[] = {
    "RONDO_ALGO",      "RONDO_PROTO",  "RONDO_MESSAGE_BYTES", "RONDO_TIMEOUT_S", "RONDO_INIT_TIMEOUT_S",
    "RONDO_SIMD",      "RONDO_RANK",   "RONDO_NRANKS",        "RONDO_UNIQUE_ID", "RONDO_SECRET",
    "RONDO_CALIBRATION", "RONDO_CMA",       "RONDO_PORT",   "RONDO_SOCKET_IFNAME", "RONDO_JOB_ID",    "RONDO_LOCAL_RANK",
    "RONDO_TRACE",     "RONDO_TRACE_RECORDS", "RONDO_FLIGHT_DIR", "RONDO_FLIGHT_SIGNAL",
    "RONDO_POOL_BYTES"};

void report_unknown() {
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry(*e), name = entry.substr(0, entry.find('='));
    if (!name.starts_with("RONDO_") || name.starts_with("RONDO_TEST_") || name.starts_with("RONDO_PERF_")) continue;
    if (std::find(std::begin(kKnown), std::end(kKnown), name) == std::end(kKnown))
      std::fprintf(stderr, "rondo: %.*s is set but rondo knows no such variable\n", static_cast<int>(name.size()),
                   name.data());
  }
}

Status bad(const char* name, const char* value, std::string_view expected) {
  return Status(StatusCode::kInvalidArgument, fmt::format("{}={}: expected {}", name, value, expected));
}

Status read_seconds(const char* name, double* seconds) {
  const char* value = std::getenv(name);
  if (value == nullptr) return {};
  char* end = nullptr;
  const double s = std::strtod(value, &end);
  if (end == value || *end != '\0' || !(s > 0)) return bad(name, value, "a positive number of seconds");
  *seconds = s;
  return {};
}

template <size_t kSize>
Status read_name(const char* name, char (&to)[kSize]) {
  const char* value = std::getenv(name);
  if (value == nullptr) return {};
  if (std::strlen(value) >= kSize) return bad(name, value, fmt::format("a name of less than {} characters", kSize));
  std::strcpy(to, value);
  return {};
}

bool algorithm_exists(std::string_view name) {
  const auto all = all_algorithms();
  return std::any_of(all.begin(), all.end(), [&](const Algorithm& a) { return a.name == name; });
}

std::string or_unset(std::string_view s) { return s.empty() ? "not set" : std::string(s); }

}  // namespace

Expected<Settings> read_settings(const Config& config) {
  Settings s;
  std::strncpy(s.version, RONDO_VERSION, sizeof s.version - 1);
  report_unknown();
  RONDO_TRY(read_seconds("RONDO_TIMEOUT_S", &s.deadline_s));
  RONDO_TRY(read_seconds("RONDO_INIT_TIMEOUT_S", &s.init_deadline_s));
  if (config.deadline_s > 0) s.deadline_s = config.deadline_s;
  if (config.init_deadline_s > 0) s.init_deadline_s = config.init_deadline_s;
  RONDO_TRY_ASSIGN(s.planner.costs, costs_in_force(nullptr, true));
  RONDO_TRY(read_name("RONDO_ALGO", s.planner.algorithm));
  RONDO_TRY(read_name("RONDO_PROTO", s.planner.protocol));
  if (s.planner.algorithm[0] != 0 && !algorithm_exists(s.planner.algorithm))
    return bad("RONDO_ALGO", s.planner.algorithm, "the name of an algorithm (rondo check lists them)");
  const std::string_view proto = s.planner.protocol;
  if (!proto.empty() && proto != "inline" && proto != "simple")
    return bad("RONDO_PROTO", s.planner.protocol, "inline or simple");
  if (const char* value = std::getenv("RONDO_MESSAGE_BYTES")) {
    char* end = nullptr;
    s.planner.message_bytes = std::strtoull(value, &end, 10);
    if (end == value || *end != '\0' || s.planner.message_bytes < 64 || s.planner.message_bytes > 65536)
      return bad("RONDO_MESSAGE_BYTES", value, "a number of bytes from 64 to 65536");
  }
  if (const char* value = std::getenv("RONDO_SIMD")) {
    const std::optional<SimdLevel> level = simd_level_from_name(value);
    if (!level || kernel_table(*level) == nullptr)
      return bad("RONDO_SIMD", value, "baseline, avx2 or avx512, as far as this processor has it");
    s.simd = static_cast<int32_t>(*level);
  }
  RONDO_TRY(read_trace_settings().status());  // every communicator reads them for itself
  CPU_ZERO(&s.cpus);
  if (sched_getaffinity(0, sizeof s.cpus, &s.cpus) != 0) CPU_SET(0, &s.cpus);
  return s;
}

Expected<Settings> override_settings(const Settings& parent, const Config& config) {
  Settings s = parent;
  if (config.deadline_s > 0) s.deadline_s = config.deadline_s;
  if (config.init_deadline_s > 0) s.init_deadline_s = config.init_deadline_s;
  return s;
}

int count_cpus(const std::vector<Settings>& all) {
  cpu_set_t any;
  CPU_ZERO(&any);
  for (const Settings& s : all) CPU_OR(&any, &any, &s.cpus);
  return std::max(1, CPU_COUNT(&any));
}

Expected<Settings> agree(Rank rank, const std::vector<Settings>& all) {
  const Settings& first = all[0];
  for (size_t r = 1; r < all.size(); ++r) {
    const Settings& other = all[r];
    auto conflict = [&](std::string_view what, std::string_view a, std::string_view b) {
      return Status(StatusCode::kMismatch, fmt::format("rank {}: ranks disagree on {}: rank 0 has {}, rank {} has {}", rank,
                                                       what, or_unset(a), r, or_unset(b)));
    };
    const PlannerSettings &p = first.planner, &q = other.planner;
    if (first.abi != other.abi || std::string_view(first.version) != other.version)
      return conflict("the version of rondo", first.version, other.version);
    // A rank that sets nothing follows rank 0; one that sets something else is named.
    if (q.algorithm[0] != 0 && std::string_view(p.algorithm) != q.algorithm)
      return conflict("RONDO_ALGO", p.algorithm, q.algorithm);
    if (q.protocol[0] != 0 && std::string_view(p.protocol) != q.protocol)
      return conflict("RONDO_PROTO", p.protocol, q.protocol);
    if (q.message_bytes != 0 && p.message_bytes != q.message_bytes)
      return conflict("RONDO_MESSAGE_BYTES", std::to_string(p.message_bytes), std::to_string(q.message_bytes));
  }
  Settings mine = all[static_cast<size_t>(rank)];
  mine.planner = first.planner;
  const int cpus = count_cpus(all), nranks = static_cast<int>(all.size());
  mine.planner.ranks_per_core = (nranks + cpus - 1) / cpus;
  return mine;
}

}  // namespace rondo

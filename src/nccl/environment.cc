#include "nccl/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "nccl/config.h"

namespace rondo::nccl {
namespace {

// Applies a variable to `env`. Returns the reason if it is ignored, else an empty string.
using Obey = std::string (*)(std::string_view value, Environment& env);

std::string obey_debug(std::string_view value, Environment& env) {
  const std::string v = lower(value);
  if (v == "version") env.level = LogLevel::kVersion;
  else if (v == "warn") env.level = LogLevel::kWarn;
  else if (v == "info" || v == "trace" || v == "abort") env.level = LogLevel::kInfo;
  else return fmt::format("'{}' is not a level: expected VERSION, WARN or INFO", value);
  return v == "trace" || v == "abort" ? "rondo has no such level: it counts as INFO" : "";
}

std::string obey_debug_file(std::string_view value, Environment& env) {
  env.log_file = expand_file_name(value);
  return "";
}

std::string obey_comm_id(std::string_view value, Environment& env) {
  env.comm_id = value;
  return "";
}

std::string obey_interfaces(std::string_view value, Environment& env) {
  env.settings += fmt::format("socket_ifname = {}\n", value);
  return "";
}

std::string obey_algorithm(std::string_view value, Environment& env) {
  const std::string_view name = algorithm_named(value);
  if (name.empty())
    return fmt::format("'{}': only Ring and Tree have an equivalent here; use RONDO_ALGO for rondo's own algorithms",
                       value);
  env.settings += fmt::format("algo = {}\n", name);
  return "";
}

std::string obey_protocol(std::string_view value, Environment& env) {
  const std::string v = lower(value);
  if (v != "simple" && v != "ll")
    return fmt::format("'{}': only Simple and LL have an equivalent here (RONDO_PROTO's simple and inline)", value);
  env.settings += v == "ll" ? "proto = inline\n" : "proto = simple\n";
  return "";
}

std::string obey_p2p_disable(std::string_view value, Environment& env) {
  if (value == "1") env.settings += "cma = 0\n";  // ranks then do not read one another's memory
  else if (value != "0") return fmt::format("'{}' is neither 0 nor 1", value);
  return "";
}

std::string note_shm_disable(std::string_view value, Environment&) {
  return value == "0" ? "" : "rondo has only shared memory between the processes of a host: it stays in use";
}

// Thread blocks of device kernels. Host memory has none.
std::string obey_ctas(std::string_view value, uint32_t* blocks) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < 1)
    return fmt::format("'{}' is not a number of thread blocks", value);
  *blocks = std::min<uint32_t>(number, kMostBlocks);
  return "";
}
std::string obey_min_ctas(std::string_view value, Environment& env) { return obey_ctas(value, &env.blocks.least); }
std::string obey_max_ctas(std::string_view value, Environment& env) { return obey_ctas(value, &env.blocks.most); }

struct Row {
  const char* name;
  Obey obey;
};
constexpr Row kRows[] = {
    {"NCCL_DEBUG", obey_debug},
    {"NCCL_DEBUG_FILE", obey_debug_file},
    {"NCCL_COMM_ID", obey_comm_id},
    {"NCCL_SOCKET_IFNAME", obey_interfaces},
    {"NCCL_ALGO", obey_algorithm},
    {"NCCL_PROTO", obey_protocol},
    {"NCCL_P2P_DISABLE", obey_p2p_disable},
    {"NCCL_SHM_DISABLE", note_shm_disable},
    {"NCCL_MIN_CTAS", obey_min_ctas},
    {"NCCL_MAX_CTAS", obey_max_ctas},
};

}  // namespace

std::string lower(std::string_view text) {
  std::string s(text);
  for (char& c : s) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return s;
}

const char* const kParameterKeys[] = {"NCCL_DEBUG",    "NCCL_DEBUG_FILE", "NCCL_COMM_ID",     "NCCL_SOCKET_IFNAME",
                                      "NCCL_ALGO",     "NCCL_PROTO",      "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE",
                                      "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",   kIgnoredKey,        nullptr};

std::string_view algorithm_named(std::string_view nccl_name) {
  const std::string name = lower(nccl_name);
  return name == "ring" ? "ring" : name == "tree" ? "tree" : "";
}

Environment read_environment(const char* const* variables) {
  Environment env;
  for (const char* const* v = variables; *v != nullptr; ++v) {
    const std::string_view entry(*v);
    if (!entry.starts_with("NCCL_")) continue;
    const size_t equals = std::min(entry.find('='), entry.size());
    const std::string_view name = entry.substr(0, equals);
    const std::string_view value = entry.substr(std::min(equals + 1, entry.size()));
    if (value.empty()) continue;  // the same as not set
    const auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return name == r.name; });
    std::string why = row != std::end(kRows) ? row->obey(value, env) : "rondo has no such setting";
    if (!why.empty()) env.ignored.push_back({std::string(name), std::move(why)});
  }
  setting::Blocks& blocks = env.blocks;
  if (blocks.most != 0) blocks.least = std::min(blocks.least, blocks.most);
  if (blocks.least != 0 || blocks.most != 0) env.settings += fmt::format("device_blocks = {}\n", blocks.text());
  return env;
}

std::string Environment::ignored_text() const {
  std::string text;
  for (const IgnoredVariable& v : ignored) text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", v.name, v.why);
  return text;
}

}  // namespace rondo::nccl

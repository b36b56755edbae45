#include "nccl/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "nccl/config.h"

namespace rondo::nccl {
namespace {

// Thread blocks of device kernels. Host memory has none.
std::string read_blocks(std::string_view value, uint32_t* blocks) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < 1)
    return fmt::format("'{}' is not a number of thread blocks", value);
  *blocks = std::min<uint32_t>(number, kMostBlocks);
  return "";
}

std::string read_level(std::string_view value, LogLevel* level) {
  const std::string v = lower(value);
  if (v == "version") *level = LogLevel::kVersion;
  else if (v == "warn") *level = LogLevel::kWarn;
  else if (v == "info" || v == "trace" || v == "abort") *level = LogLevel::kInfo;
  else return fmt::format("'{}' is not a level: expected VERSION, WARN or INFO", value);
  return v == "trace" || v == "abort" ? "rondo has no such level: it counts as INFO" : "";
}

// Applies a variable of kParameterKeys. Returns the reason if it is ignored, else an empty string.
std::string obey(std::string_view name, std::string_view value, Environment& env) {
  if (name == "NCCL_DEBUG") return read_level(value, &env.level);
  if (name == "NCCL_MIN_CTAS") return read_blocks(value, &env.blocks.least);
  if (name == "NCCL_MAX_CTAS") return read_blocks(value, &env.blocks.most);
  if (name == "NCCL_DEBUG_FILE") env.log_file = expand_file_name(value);
  if (name == "NCCL_COMM_ID") env.comm_id = value;
  if (name == "NCCL_SOCKET_IFNAME") env.settings += fmt::format("socket_ifname = {}\n", value);
  if (name == "NCCL_ALGO") {
    const std::string v = lower(value);
    if (v != "ring" && v != "tree")
      return fmt::format("'{}': only Ring and Tree have an equivalent here; use RONDO_ALGO for rondo's own algorithms",
                         value);
    env.settings += fmt::format("algo = {}\n", v);
  }
  if (name == "NCCL_PROTO") {
    const std::string v = lower(value);
    if (v != "simple" && v != "ll")
      return fmt::format("'{}': only Simple and LL have an equivalent here (RONDO_PROTO's simple and inline)", value);
    env.settings += v == "ll" ? "proto = inline\n" : "proto = simple\n";
  }
  if (name == "NCCL_P2P_DISABLE") {
    if (value == "1") env.settings += "cma = 0\n";  // ranks then do not read one another's memory
    else if (value != "0") return fmt::format("'{}' is neither 0 nor 1", value);
  }
  if (name == "NCCL_SHM_DISABLE" && value != "0")
    return "rondo has only shared memory between the processes of a host: it stays in use";
  return "";
}

}  // namespace

std::string lower(std::string_view text) {
  std::string s(text);
  for (char& c : s) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return s;
}

const char* const kParameterKeys[] = {"NCCL_DEBUG",    "NCCL_DEBUG_FILE", "NCCL_COMM_ID",     "NCCL_SOCKET_IFNAME",
                                      "NCCL_ALGO",     "NCCL_PROTO",      "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE",
                                      "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",   kIgnoredKey,        nullptr};

const char* const* find_parameter(std::string_view name) {
  for (const char* const* key = kParameterKeys; *key != nullptr; ++key)
    if (*key == name) return key;
  return nullptr;
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
    std::string why = find_parameter(name) != nullptr ? obey(name, value, env) : "rondo has no such setting";
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

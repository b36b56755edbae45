#include "perf_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace rondo::tools {
namespace {

struct Alias {
  std::string_view name;
  Dtype dtype;
};
constexpr Alias kAliases[] = {
    {"float32", Dtype::kFloat32}, {"fp32", Dtype::kFloat32},      {"f32", Dtype::kFloat32},
    {"float64", Dtype::kFloat64}, {"fp64", Dtype::kFloat64},      {"f64", Dtype::kFloat64},
    {"float16", Dtype::kFloat16}, {"fp16", Dtype::kFloat16},      {"f16", Dtype::kFloat16},
    {"bf16", Dtype::kBfloat16},   {"f8e4m3", Dtype::kFloat8E4m3}, {"f8e5m2", Dtype::kFloat8E5m2},
    {"int", Dtype::kInt32},
};

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

std::optional<Dtype> dtype_from_any_name(std::string_view name) {
  for (const Alias& a : kAliases)
    if (a.name == name) return a.dtype;
  return dtype_from_name(name);
}

/// Parses a comma-separated list of names, each by `one`; "all" gives every value below `num`.
template <class T, class OneName>
Expected<std::vector<T>> parse_list(std::string_view text, int num, std::string_view what, OneName one) {
  std::vector<T> list;
  if (text == "all") {
    for (int i = 0; i < num; ++i) list.push_back(static_cast<T>(i));
    return list;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view name = text.substr(begin, end - begin);
    const std::optional<T> value = one(name);
    if (!value) return invalid(fmt::format("there is no {} '{}'", what, name));
    list.push_back(*value);
    begin = end + 1;
  }
  return list;
}

}  // namespace

Expected<uint64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (error != std::errc() || !std::isfinite(number) || number < 0)
    return invalid(fmt::format("'{}' is no size: expected a number and K, M, G or T", text));
  double factor = 1;
  if (!unit.empty()) {
    constexpr std::string_view kUnits = "KMGT";
    const size_t power = kUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0]))));
    if (power != std::string_view::npos) {
      factor = std::pow(1024.0, static_cast<double>(power + 1));
      unit.remove_prefix(1);
      if (unit.starts_with('i') && unit.size() == 2) unit.remove_prefix(1);
    }
    if (unit == "B" || unit == "b") unit = "";
  }
  if (!unit.empty()) return invalid(fmt::format("'{}' is no size: the unit must be K, M, G or T", text));
  const double bytes = number * factor;
  if (bytes > 0x1p62) return invalid(fmt::format("'{}' is too large", text));
  if (bytes != std::floor(bytes)) return invalid(fmt::format("'{}' is no whole number of bytes", text));
  return static_cast<uint64_t>(bytes);
}

std::optional<Collective> parse_collective(std::string_view text) {
  auto letters = [](std::string_view name) {
    std::string s;
    for (char c : name)
      if (c != '_' && c != '-') s += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return s;
  };
  for (int i = 0; i < kNumCollectives; ++i)
    if (letters(collective_name(static_cast<Collective>(i))) == letters(text)) return static_cast<Collective>(i);
  return std::nullopt;
}

Expected<std::vector<Dtype>> parse_dtypes(std::string_view text) {
  return parse_list<Dtype>(text, kNumDtypes, "datatype", dtype_from_any_name);
}
Expected<std::vector<Op>> parse_ops(std::string_view text) { return parse_list<Op>(text, kNumOps, "op", op_from_name); }

Expected<std::vector<uint64_t>> sweep_bytes(const PerfOptions& options) {
  if (options.max_bytes < options.min_bytes)
    return invalid(fmt::format("-e {} is below -b {}", options.max_bytes, options.min_bytes));
  std::vector<uint64_t> sizes{options.min_bytes};
  while (sizes.size() < 100000) {
    const uint64_t last = sizes.back();
    uint64_t next = options.step_factor > 1 ? last * options.step_factor : last + options.step_bytes;
    if (options.step_factor > 1 && last == 0) next = 1;
    if (next <= last || next > options.max_bytes) return sizes;
    sizes.push_back(next);
  }
  return invalid("more than 100000 sizes: raise -i or use -f");
}

TypeRow types_of(const PerfOptions& options, Dtype dtype) {
  const TypeRow row = uniform_row(dtype);
  return {dtype, options.wire.value_or(row.wire), options.accumulator.value_or(row.accumulator),
          options.output.value_or(row.output)};
}

}  // namespace rondo::tools

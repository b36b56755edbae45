#include "perf_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

/// Parses a comma-separated list of names with `one`. "all" gives all values of `names`.
template <class T, class OneName>
Expected<std::vector<T>> parse_list(std::string_view text, const std::vector<std::string>& names, std::string_view what,
                                    OneName one) {
  std::vector<T> list;
  if (text == "all") {
    for (size_t i = 0; i < names.size(); ++i) list.push_back(static_cast<T>(i));
    return list;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view name = text.substr(begin, end - begin);
    const std::optional<T> value = one(name);
    if (!value) return no_such(what, name, names);
    list.push_back(*value);
    begin = end + 1;
  }
  return list;
}

/// The names of all values below `num`.
template <class T, class NameOf>
std::vector<std::string> all_names(int num, NameOf name_of) {
  std::vector<std::string> names;
  for (int i = 0; i < num; ++i) names.emplace_back(name_of(static_cast<T>(i)));
  return names;
}

}  // namespace

Status no_such(std::string_view what, std::string_view name, const std::vector<std::string>& names) {
  return invalid(fmt::format("there is no {} '{}': choose one of {}", what, name, fmt::join(names, ", ")));
}

Expected<uint64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (error != std::errc() || !std::isfinite(number) || number < 0)
    return invalid(fmt::format("'{}' is not a size: expected a number and K, M, G or T", text));
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
  if (!unit.empty()) return invalid(fmt::format("'{}' is not a size: the unit must be K, M, G or T", text));
  const double bytes = number * factor;
  if (bytes > 0x1p62) return invalid(fmt::format("'{}' is too large", text));
  if (bytes != std::floor(bytes)) return invalid(fmt::format("'{}' is not a whole number of bytes", text));
  return static_cast<uint64_t>(bytes);
}

std::optional<Collective> parse_collective(std::string_view text) {
  for (int i = 0; i < kNumCollectives; ++i)
    if (letters_of(collective_name(static_cast<Collective>(i))) == letters_of_collective(text))
      return static_cast<Collective>(i);
  return std::nullopt;
}

Expected<Collective> named_collective(std::string_view text) {
  if (const auto collective = parse_collective(text)) return *collective;
  std::vector<std::string> names;
  for (int i = 0; i < kNumCollectives; ++i)
    if (const auto c = static_cast<Collective>(i); !is_point_to_point(c)) names.emplace_back(collective_name(c));
  return no_such("collective", text, names);
}

Expected<const Algorithm*> named_algorithm(Collective collective, std::string_view name) {
  std::vector<std::string> names;
  for (const Algorithm& a : all_algorithms()) {
    if (a.collective != collective) continue;
    if (letters_of(a.name) == letters_of(name)) return &a;
    names.emplace_back(a.name);
  }
  if (!names.empty())
    return invalid(fmt::format("there is no algorithm '{}' for {}: choose one of {}", name, collective_name(collective),
                               fmt::join(names, ", ")));
  return invalid(fmt::format("{} has no algorithms to choose from", collective_name(collective)));
}

Expected<std::string> named_protocol(std::string_view name) {
  const std::vector<std::string> names{"inline", "simple", "ll", "ll128"};
  const std::string letters = letters_of(name);
  if (std::find(names.begin(), names.end(), letters) != names.end()) return letters;
  return no_such("protocol", name, names);
}

Expected<std::vector<Dtype>> parse_dtypes(std::string_view text) {
  return parse_list<Dtype>(text, all_names<Dtype>(kNumDtypes, dtype_name), "datatype", dtype_from_any_name);
}
Expected<std::vector<Op>> parse_ops(std::string_view text) {
  const int num = text == "all" ? kNumArithmeticOps : kNumOps;
  return parse_list<Op>(text, all_names<Op>(num, op_name), "op", op_from_name);
}

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

#include "nccl/call_config.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "nccl/config.h"
#include "nccl/process.h"
#include "nccl/result.h"
#include "rondo/algorithm.h"
#include "rondo/nccl_ext.h"

namespace rondo::nccl {
namespace {

constexpr size_t kLeastBytes = offsetof(ncclCollConfig_t, launchCompletionEvent);  // the struct of 2.31
constexpr size_t kMostOptions = 1024;                                              // a longer list is a cycle

Status read_option(const ncclConfigExt_t& option, CallConfig* to) {
  const auto promise = [&](const char* name, uint32_t bit) -> Status {
    if (option.val.i != 0 && option.val.i != 1)
      return invalid_argument("{} is {}: expected 0 or 1", name, option.val.i);
    if (option.val.i == 1) to->promises |= bit;
    return {};
  };
  switch (option.key.optionId) {
    case RONDO_NCCL_EXT_ACCUMULATION: {
      const char* name = option.val.s;
      if (name == nullptr) return null_argument("RONDO_NCCL_EXT_ACCUMULATION's string");
      to->accumulator = dtype_from_name(name);
      if (!to->accumulator)
        return invalid_argument("RONDO_NCCL_EXT_ACCUMULATION is '{}', which is not an element type", name);
      return {};
    }
    case RONDO_NCCL_EXT_SAME_BITS_PER_RUN:
      return promise("RONDO_NCCL_EXT_SAME_BITS_PER_RUN", RONDO_PROMISE_SAME_BITS_PER_RUN);
    case RONDO_NCCL_EXT_SAME_BITS_PER_SIZE:
      return promise("RONDO_NCCL_EXT_SAME_BITS_PER_SIZE", RONDO_PROMISE_SAME_BITS_PER_SIZE);
    case RONDO_NCCL_EXT_SAME_BITS_PER_ALGORITHM:
      return promise("RONDO_NCCL_EXT_SAME_BITS_PER_ALGORITHM", RONDO_PROMISE_SAME_BITS_PER_ALGORITHM);
    case RONDO_NCCL_EXT_SAME_BITS_PER_TRANSPORT:
      return promise("RONDO_NCCL_EXT_SAME_BITS_PER_TRANSPORT", RONDO_PROMISE_SAME_BITS_PER_TRANSPORT);
    case RONDO_NCCL_EXT_RANK_ORDER: return promise("RONDO_NCCL_EXT_RANK_ORDER", RONDO_PROMISE_RANK_ORDER);
    case RONDO_NCCL_EXT_TRACE_TAG: to->tag = reinterpret_cast<uintptr_t>(option.val.raw); return {};
    default:
      return unsupported(
          "config.ext has option {} of rondo, which this release does not support (rondo/nccl_ext.h lists them)",
          option.key.optionId);
  }
}

Status read_options(const ncclConfigExt_t* list, CallConfig* to) {
  std::set<std::pair<int, int>> seen;
  for (const ncclConfigExt_t* o = list; o != nullptr; o = o->next) {
    if (seen.size() >= kMostOptions) return invalid_argument("config.ext has no end: is the list a cycle?");
    if (!seen.emplace(o->key.vendorId, o->key.optionId).second)
      return invalid_argument("config.ext names option {} of vendor {:#x} twice", o->key.optionId, o->key.vendorId);
    if (o->key.vendorId == RONDO_NCCL_VENDOR_ID) RONDO_TRY(read_option(*o, to));
    else
      process().log().info(
          fmt::format("config.ext: option {} belongs to vendor {:#x}", o->key.optionId, o->key.vendorId));
  }
  return {};
}

Status check_range(const char* name, int value, int least, int most) {
  if (value == NCCL_CONFIG_UNDEF_INT || (value >= least && value <= most)) return {};
  return invalid_argument("config.{} is {}: expected {} to {}, or unset", name, value, least, most);
}

// NCCL's name of a family or of a member: "ring", "ring_ll128". Empty for known families without an equivalent in
// rondo. nullopt for unknown names.
std::optional<std::string_view> nccl_family(std::string_view name) {
  for (const std::string_view family : {"ring", "tree"})
    if (name == family || name.starts_with(std::string(family) + "_")) return family;
  for (const std::string_view other : {"collnet", "nvls", "pat", "symk"})
    if (name.starts_with(other)) return std::string_view();
  return std::nullopt;
}

}  // namespace

Expected<CallConfig> read_call_config(const ncclCollConfig_t& c) {
  if (c.size < kLeastBytes)
    return invalid_argument("config.size is {}: the first version of the struct has {} bytes", c.size, kLeastBytes);
  if (c.magic != NCCL_API_MAGIC)
    return invalid_argument("config.magic is {:#x}, not {:#x}: begin with NCCL_COLLCONFIG_INITIALIZER", c.magic,
                            NCCL_API_MAGIC);
  RONDO_TRY(check_range("minCTAs", c.minCTAs, 1, INT_MAX));
  RONDO_TRY(check_range("maxCTAs", c.maxCTAs, 1, INT_MAX));
  if (c.minCTAs != NCCL_CONFIG_UNDEF_INT && c.maxCTAs != NCCL_CONFIG_UNDEF_INT && c.minCTAs > c.maxCTAs)
    return invalid_argument("config.minCTAs is {} and maxCTAs {}", c.minCTAs, c.maxCTAs);
  RONDO_TRY(check_range("nvlsCTAs", c.nvlsCTAs, 1, INT_MAX));
  RONDO_TRY(check_range("cgaClusterSize", c.cgaClusterSize, 0, 8));
  RONDO_TRY(check_range("CTAPolicy", c.CTAPolicy, 0, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO));
  if (c.forceAlgSelection != 0 && c.forceAlgSelection != 1)
    return invalid_argument("config.forceAlgSelection is {}: expected 0 or 1", c.forceAlgSelection);
  CallConfig own;
  if (c.algSelection != nullptr) own.selection = c.algSelection;
  own.force_selection = c.forceAlgSelection == 1;
  own.tag = c.userProfilerTag;
  // The last field came with 2.32; a struct of 2.31 ends before it.
  if (c.size >= sizeof c && c.version >= 23200) own.launch_event = c.launchCompletionEvent;
  if (c.minCTAs != NCCL_CONFIG_UNDEF_INT) own.min_blocks = std::min(c.minCTAs, kMostBlocks);
  if (c.maxCTAs != NCCL_CONFIG_UNDEF_INT) own.max_blocks = std::min(c.maxCTAs, kMostBlocks);
  RONDO_TRY(read_options(c.ext, &own));
  return own;
}

Expected<std::vector<std::string>> selected_algorithms(const std::string& selection, Collective collective) {
  std::vector<std::string> all, named;
  for (const Algorithm& a : all_algorithms())
    if (a.collective == collective) all.emplace_back(a.name);
  std::string_view rest(selection);
  const bool except = rest.starts_with('^');
  if (except) rest.remove_prefix(1);
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string name = lower(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const auto own = all_algorithms();
    const auto family = nccl_family(name);
    const bool ours = std::ranges::any_of(own, [&](const Algorithm& a) { return a.name == name; });
    if (!ours && !family) return invalid_argument("config.algSelection: '{}' is not an algorithm", name);
    named.emplace_back(ours ? std::string_view(name) : *family);
  }
  std::erase_if(all, [&](const std::string& a) { return (std::ranges::find(named, a) != named.end()) == except; });
  return all;
}

Expected<const Algorithm*> choose_algorithm(CommunicatorImpl& impl, const CallConfig& config, CallShape shape) {
  const Algorithm* best = nullptr;
  if (config.selection.empty()) return best;
  const auto selected = selected_algorithms(config.selection, shape.collective);
  std::string why(selected.status().message());
  double least_us = 0;
  if (selected.ok()) {
    for (const std::string& name : *selected) {
      shape.algorithm = find_algorithm(shape.collective, name);
      const auto us = impl.forecast_us(shape);
      if (us.ok() && (best == nullptr || *us < least_us)) best = shape.algorithm, least_us = *us;
    }
    why = fmt::format("config.algSelection '{}' leaves no algorithm for this {}", config.selection,
                      collective_name(shape.collective));
  }
  if (best != nullptr) return best;
  if (config.force_selection) return invalid_argument("{}", why);
  process().log().info(why + "; the planner chooses");
  return best;
}

}  // namespace rondo::nccl

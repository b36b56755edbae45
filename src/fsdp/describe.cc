// Prints a plan as text.
#include <fmt/format.h>

#include <algorithm>

#include "rondo/fsdp/plan.h"

namespace rondo::fsdp {
namespace {

constexpr std::string_view kStrategies[] = {"replicate (DDP)", "shard the optimizer (ZeRO-1)",
                                            "shard gradients and optimizer (ZeRO-2)", "shard all (ZeRO-3)"};
constexpr std::string_view kActs[] = {"gather",   "wait gather", "FORWARD",     "release",
                                      "BACKWARD", "reduce",      "wait reduce", "step"};

std::string bytes_text(uint64_t bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string buffer_text(int buffer) { return buffer < 0 ? "-" : std::to_string(buffer); }

std::string units_text(const Plan& plan) {
  std::string text =
      fmt::format("{:<4} {:<20} {:>14} {:>12} {:>10} {:>12} {:>10} {:>14} {:>14}\n", "unit", "name", "elements",
                  "parameters", "in buffer", "gradients", "in buffer", "least part", "largest part");
  for (size_t i = 0; i < plan.units().size(); ++i) {
    const UnitPlan& u = plan.units()[i];
    std::vector<uint64_t> parts(static_cast<size_t>(plan.shard_ranks()));
    uint64_t elems = 0;
    for (const Segment& s : u.segments) {
      elems += s.num_elems;
      for (size_t r = 0; r < parts.size(); ++r) parts[r] += s.counts[r];
    }
    text += fmt::format("{:<4} {:<20} {:>14} {:>12} {:>10} {:>12} {:>10} {:>14} {:>14}\n", i, u.name, elems,
                        bytes_text(u.data_bytes), buffer_text(u.data_buffer), bytes_text(u.grad_bytes),
                        buffer_text(u.grad_buffer), *std::ranges::min_element(parts), *std::ranges::max_element(parts));
  }
  return text;
}

std::string memory_text(const Plan& plan) {
  Memory least = plan.memory(0), most = least;
  for (Rank r = 1; r < plan.shard_ranks(); ++r) {
    const Memory m = plan.memory(r);
    if (m.total() < least.total()) least = m;
    if (m.total() > most.total()) most = m;
  }
  std::string text;
  auto line = [&](std::string_view what, uint64_t bytes) {
    text += fmt::format("  {:<22} {:>14} B  {}\n", what, bytes, bytes_text(bytes));
  };
  line("owned parameters", most.master);
  line("owned gradients", most.grads);
  line("optimizer", most.optimizer);
  line("parameter buffers", most.data_buffers);
  line("gradient buffers", most.grad_buffers);
  if (plan.options().offload) {
    line("staging", most.staging);
    line("in host memory", most.host);
    line("on the device", most.device());
  }
  line("together", most.total());
  if (least.total() != most.total()) text += fmt::format("  the least of any rank: {} B\n", least.total());
  return text;
}

std::string traffic_text(const Plan& plan) {
  uint64_t payload = 0, whole = 0;
  const auto all = plan.communications(0);
  for (const Communication& c : all) payload += c.payload_bytes, whole += c.whole_bytes;
  return fmt::format("traffic of a step: {} collectives; rank 0 contributes {} B ({}), all ranks together {} B ({})\n",
                     all.size(), payload, bytes_text(payload), whole, bytes_text(whole));
}

std::string step_text(const Plan& plan) {
  std::string text = "step:", line;
  for (const Action& a : plan.step()) {
    const std::string word = fmt::format(" {} {};", kActs[static_cast<size_t>(a.act)], a.unit);
    if (line.size() + word.size() > 110) {
      text += line + "\n     ";
      line.clear();
    }
    line += word;
  }
  return text + line + "\n";
}

}  // namespace

std::string Plan::describe() const {
  std::string text = fmt::format("{}, {} ranks", kStrategies[static_cast<size_t>(options_.strategy)], options_.nranks);
  if (options_.shard_ranks > 1 && options_.shard_ranks < options_.nranks)
    text += fmt::format(", sharded among {}, replicated {} times", options_.shard_ranks,
                        options_.nranks / options_.shard_ranks);
  if (options_.offload) text += ", parts kept in host memory";
  text += fmt::format("; prefetch {} forward, {} backward ({}); {} buffers for parameters, {} for gradients\n\n",
                      options_.forward_prefetch, options_.backward_prefetch,
                      options_.backward_order == BackwardPrefetch::kPre ? "before gradients" : "after gradients",
                      num_data_buffers(), num_grad_buffers());
  return text + units_text(*this) + "\nmemory of a rank, the most of any:\n" + memory_text(*this) + "\n" +
         traffic_text(*this) + "\n" + step_text(*this);
}

}  // namespace rondo::fsdp

#include "fsdp/row_ranges.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"
#include "fsdp/json.h"

namespace rondo::fsdp {

std::vector<RowRange> row_ranges(const Plan& plan, Rank r) {
  const auto part = static_cast<size_t>(r % plan.shard_ranks());
  const auto replica = static_cast<uint64_t>(r / plan.shard_ranks());
  const auto replicas = static_cast<uint64_t>(plan.options().nranks / plan.shard_ranks());
  std::vector<RowRange> all;
  for (size_t u = 0; u < plan.units().size(); ++u) {
    const UnitPlan& unit = plan.units()[u];
    for (size_t t = 0; t < unit.tensors.size(); ++t) {
      if (!unit.tensors[t].tied_to.empty()) continue;
      const Placed& at = unit.placed[t];
      const uint64_t rows = rows_of(unit.tensors[t].shape);
      if (at.num_elems == 0) {
        if (r == 0) all.push_back({u, t, 0, rows});
        continue;
      }
      const Segment& s = unit.segments[at.segment];
      const uint64_t begin = std::max(s.offsets[part], at.offset_elems);
      const uint64_t end = std::min(s.offsets[part] + s.counts[part], at.offset_elems + at.num_elems);
      if (begin >= end) continue;
      const uint64_t row = at.num_elems / rows, first = (begin - at.offset_elems) / row, owned = (end - begin) / row;
      auto share = [&](uint64_t k) { return owned / replicas * k + owned % replicas * k / replicas; };
      const uint64_t from = share(replica), to = share(replica + 1);
      if (from < to) all.push_back({u, t, first + from, to - from});
    }
  }
  return all;
}

size_t first_of_tied(const UnitPlan& unit, const Tensor& tensor) {
  const std::string* name = &tensor.tied_to;
  size_t found = static_cast<size_t>(&tensor - unit.tensors.data());
  for (size_t i = found; i-- > 0 && !name->empty();)  // a partner comes before and may itself be tied
    if (unit.tensors[i].name == *name) found = i, name = &unit.tensors[i].tied_to;
  return found;
}

Status check_names(const Plan& plan) {
  std::set<std::string> names;
  for (const UnitPlan& unit : plan.units())
    for (const Tensor& t : unit.tensors) {
      const std::string name = full_name(unit, t);
      if (!is_utf8(name))
        return invalid_argument("unit '{}', tensor '{}': names in a checkpoint must be UTF-8", unit.name, t.name);
      if (!names.insert(name).second)
        return invalid_argument(
            "unit '{}', tensor '{}': another tensor has the full name '{}' too: give the units different names",
            unit.name, t.name, name);
    }
  return {};
}

}  // namespace rondo::fsdp

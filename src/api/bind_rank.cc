#include "api/bind_rank.h"

#include <cstdio>
#include <string>

#include "topology/host_reader.h"

namespace rondo {
namespace {

Expected<HostTopology> read_processor() {
  RONDO_TRY_ASSIGN(HostTopology host, read_processors());
  if (!host.this_machine)
    return Status(StatusCode::kUnsupported,
                  "hwloc is set to describe another machine (HWLOC_XMLFILE, HWLOC_SYNTHETIC)");
  return host;
}

std::vector<RankCpus> cpus_of(const AllSettings& all) {
  std::vector<RankCpus> ranks;
  for (const auto& s : all) ranks.push_back({s->cpus, s->gpu_numa});
  return ranks;
}

void say(Rank rank, const char* what, const std::string& text) {
  std::fprintf(stderr, "rondo: rank %d%s%s\n", rank, what, text.c_str());
}

}  // namespace

std::optional<Binding> bind_calling_thread(Rank rank, const AllSettings& host, size_t self) {
  auto bound = [&]() -> Expected<Binding> {
    RONDO_TRY_ASSIGN(const HostTopology topology, read_processor());
    RONDO_TRY_ASSIGN(Binding binding, choose_binding(topology, cpus_of(host), self, bind_from_name(host[self]->bind)));
    RONDO_TRY(bind_this_thread(binding));
    return binding;
  }();
  if (bound.ok()) {
    say(rank, " is bound to ", bound->text);
    return *bound;
  }
  say(rank, " is not bound, although RONDO_BIND requests it: ", std::string(bound.status().message()));
  return std::nullopt;
}

std::vector<std::optional<Binding>> bindings_of_threads(const AllSettings& all) {
  std::vector<std::optional<Binding>> bindings(all.size());
  if (all.empty() || all[0]->bind == "none") return bindings;  // all ranks are in one process and have one setting
  const auto host = read_processor();
  const std::vector<RankCpus> ranks = cpus_of(all);
  for (size_t r = 0; r < all.size(); ++r) {
    auto binding =
        host.ok() ? choose_binding(*host, ranks, r, bind_from_name(all[r]->bind)) : Expected<Binding>(host.status());
    const auto rank = static_cast<Rank>(r);
    if (binding.ok()) say(rank, "'s progress thread will be bound to ", binding->text);
    else say(rank, "'s progress thread will not be bound: ", std::string(binding.status().message()));
    if (binding.ok()) bindings[r] = std::move(*binding);
  }
  return bindings;
}

}  // namespace rondo

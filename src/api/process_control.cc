#include "api/process_control.h"

#include <algorithm>
#include <chrono>

#include "api/bind_rank.h"
#include "api/communicator_impl.h"
#include "api/machine_probe.h"
#include "api/rank_order.h"
#include "base/error.h"
#include "bootstrap/caller_ranks.h"
#include "bootstrap/socket.h"
#include "device/device_side.h"
#include "device/topology/probe.h"
#include "schedule/own_algorithms.h"

namespace rondo {

namespace {

// Returns options to make a communicator from the ranks of another. Waits also call `look`, at most every 10 ms
// because it costs system calls. *heard gets its last result.
BootstrapOptions listening(const ChildOptions& options, std::function<Status()> look, Status* heard) {
  static constexpr auto kPause = std::chrono::milliseconds(10);
  BootstrapOptions how = bootstrap_options(options);
  how.interrupt = [look = std::move(look), heard, next = Deadline::Clock::now() + kPause]() mutable -> Status {
    if (!heard->ok() || Deadline::Clock::now() < next) return *heard;
    *heard = look();
    next = Deadline::Clock::now() + kPause;
    return *heard;
  };
  return how;
}

// Makes a communicator of a Bootstrap whose rank i is the caller's rank members[i]. heard: see listening().
Expected<std::unique_ptr<CommunicatorImpl>> make_of_members(std::unique_ptr<Bootstrap> bootstrap,
                                                            const std::vector<Rank>& members,
                                                            const ChildOptions& options, const Status& heard) {
  auto made = make_process_communicator(std::move(bootstrap), options);
  if (made.ok()) return made;
  RONDO_TRY(heard);
  return in_callers_ranks(made.status(), members);
}

bool binds(const ChildOptions& options) { return options.settings.bind != "none" && !options.binding; }

std::optional<Binding> bind_among_local_ranks(Rank rank, const HostLayout& machines, const AllSettings& all) {
  AllSettings host;
  const int here = machines.host(rank);
  for (int l = 0; l < machines.num_ranks(here); ++l) host.push_back(all[machines.rank(here, l)]);
  return bind_calling_thread(rank, host, static_cast<size_t>(machines.local(rank)));
}

// Passes before the first yield. Over the network a pass makes system calls and takes a microsecond. A yield costs
// less, and lets other ranks on the same core continue (in tests also those of other hosts).
constexpr uint32_t kPassesOverWire = 1;

Expected<std::unique_ptr<Transport>> make_transport(Bootstrap& bootstrap, const HostLayout& machines,
                                                    const HostLayout& hosts, const Settings& settings) {
  const bool alone = !settings.transport.starts_with("shm+");
  if (machines.one_host() && !alone) {
    RONDO_TRY_ASSIGN(auto shm, ShmTransport::create(bootstrap, machines, settings.cma));
    return std::unique_ptr<Transport>(std::move(shm));
  }
  RONDO_TRY_ASSIGN(auto remote,
                   net::RemoteTransport::create(bootstrap, machines, hosts,
                                                {.network = net::networks()[net::network_index(settings.transport)],
                                                 .alone = alone,
                                                 .may_pull = settings.cma,
                                                 .encrypted = settings.encrypt,
                                                 .rails = settings.rails}));
  return std::unique_ptr<Transport>(std::move(remote));
}

}  // namespace

BootstrapOptions bootstrap_options(const ChildOptions& options) {
  return {.deadline_s = options.settings.init_timeout_s,
          .abort = options.abort ? options.abort->flag() : nullptr,
          .greeting = [&options](Rank rank, int nranks) {
            Settings mine = options.settings;
            if (binds(options) && options.device) mine.gpu_numa = numa_node_of_device(*options.device);
            if (rank != 0) mine.costs = nullptr;  // only rank 0's costs are used
            else if (mine.costs == nullptr && nranks > 1 && !options.device) mine.costs = costs_of_this_machine();
            return encode(mine);
          }};
}

Expected<std::unique_ptr<CommunicatorImpl>> make_process_communicator(std::unique_ptr<Bootstrap> bootstrap,
                                                                      const ChildOptions& options) {
  const Rank rank = bootstrap->rank();
  const int nranks = bootstrap->nranks();
  std::vector<std::string_view> greetings;
  for (Rank r = 0; r < nranks; ++r) greetings.push_back(bootstrap->greeting_of(r));
  RONDO_TRY_ASSIGN(const AllSettings all, decode_settings(rank, greetings));
  const HostLayout machines = bootstrap->hosts();
  RONDO_TRY_ASSIGN(Agreement agreed, agree(rank, options.settings, all, machines));
  if (agreed.settings.order != "rank" && !agreed.settings.hosts_pretended) {
    RONDO_TRY_ASSIGN(const HostLayout ordered, order_by_places(*bootstrap, all, machines));
    if (!options.device) agreed.hosts = ordered;  // devices have their own order
    RONDO_TRY(prove_own_algorithms(agreed.hosts));
  }
  ChildOptions inherited = options;
  if (binds(options)) inherited.binding = bind_among_local_ranks(rank, machines, all);  // before memory is touched
  auto control = std::make_unique<ProcessControl>(std::move(bootstrap), options);
  RONDO_TRY_ASSIGN(std::unique_ptr<Transport> transport,
                   make_transport(control->bootstrap(), machines, agreed.hosts, agreed.settings));
  const int here = machines.host(rank);
  SpinSettings spin = spin_settings(machines.num_ranks(here), count_cpus(all, machines, here));
  if (transport->needs_progress()) {  // only passes move its messages
    spin.pauses = std::min(spin.pauses, kPassesOverWire);
    spin.callers_compete = false;
  }
  if (spin.oversubscribed) go_to_cpu(nth_cpu(machines.local(rank)));  // the same number of ranks on each core
  else if (const auto place = place_among_hosts(all, machines, rank); place && !inherited.binding)
    go_to_cpu(spin.home_cpu = nth_cpu(*place));
  auto impl = std::make_unique<CommunicatorImpl>(rank, agreed.hosts, agreed.settings, spin,
                                                 options.decorated(rank, nranks, std::move(transport)));
  impl->take_control(std::move(control), inherited);
  if (options.device) RONDO_TRY(impl->take_device(*options.device));
  return impl;
}

Expected<std::unique_ptr<CommunicatorImpl>> init_communicator(int nranks, const rondo_unique_id& id, Rank rank,
                                                              const Config& config,
                                                              const TransportDecorator& decorate) {
  auto settings = read_settings(config);
  if (!settings.ok())
    return make_error(settings.status().code(), "init: rank {}: {}", rank, settings.status().message());
  auto device = device_of(config);
  if (!device.ok()) return in_call("init", device.status());
  return join_communicator("init", nranks, id, rank, {*settings, config.abort, decorate, *device});
}

Expected<std::unique_ptr<CommunicatorImpl>> join_communicator(std::string_view call, int nranks,
                                                              const rondo_unique_id& id, Rank rank,
                                                              const ChildOptions& options,
                                                              const std::function<Status()>& interrupt) {
  Status heard;
  auto made = [&]() -> Expected<std::unique_ptr<CommunicatorImpl>> {
    const BootstrapOptions how = interrupt ? listening(options, interrupt, &heard) : bootstrap_options(options);
    RONDO_TRY_ASSIGN(auto bootstrap, Bootstrap::join(nranks, id, rank, how));
    return make_process_communicator(std::move(bootstrap), options);
  }();
  if (made.ok()) return made;
  return in_call(call, heard.ok() ? made.status() : heard);
}

Expected<std::unique_ptr<CommunicatorImpl>> ProcessControl::make_child(const std::vector<Rank>& members,
                                                                       const ChildOptions& options) {
  Status heard;
  RONDO_TRY_ASSIGN(std::unique_ptr<Bootstrap> child,
                   bootstrap_->subset(members, listening(
                                                   options, [this] { return bootstrap_->still_whole(); }, &heard)));
  if (child == nullptr) return std::unique_ptr<CommunicatorImpl>();
  return make_of_members(std::move(child), members, options, heard);
}

// Agrees on the members, makes their communicator, and agrees on whether all succeeded. Restarts after another death.
Expected<std::unique_ptr<CommunicatorImpl>> ProcessControl::make_of_survivors(const std::vector<Rank>& excluded,
                                                                              const ChildOptions& options) {
  RONDO_TRY(bootstrap_->begin_shrink(excluded, bootstrap_options(options)));
  RONDO_TRY_ASSIGN(Bootstrap::Survivors found, bootstrap_->agree({}));
  for (;;) {
    Status heard;
    Expected<std::unique_ptr<CommunicatorImpl>> made = [&]() -> Expected<std::unique_ptr<CommunicatorImpl>> {
      RONDO_TRY_ASSIGN(
          auto bootstrap,
          bootstrap_->subset_of_survivors(
              found.members, listening(
                                 options, [&] { return bootstrap_->still_with_survivors(found.members); }, &heard)));
      return make_of_members(std::move(bootstrap), found.members, options, heard);
    }();
    RONDO_TRY_ASSIGN(Bootstrap::Survivors after, bootstrap_->agree(made.status()));
    if (after.members == found.members && !after.begun_anew) {
      RONDO_TRY(after.failure);
      return made;
    }
    found = std::move(after);
  }
}

}  // namespace rondo

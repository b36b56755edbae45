#include "core/process_control.h"

#include <fmt/format.h>

#include <cstring>

#include "core/communicator_impl.h"

namespace rondo {

BootstrapOptions bootstrap_options(const ChildOptions& options) {
  BootstrapOptions o;
  o.deadline_s = options.settings.init_deadline_s;
  o.abort = options.abort ? options.abort->flag() : nullptr;
  return o;
}

Expected<std::unique_ptr<CommunicatorImpl>> make_process_communicator(std::unique_ptr<Bootstrap> bootstrap,
                                                                      const ChildOptions& options) {
  const Rank rank = bootstrap->rank();
  const int nranks = bootstrap->nranks();
  std::vector<std::string> blobs;
  RONDO_TRY(bootstrap->all_gather(&options.settings, sizeof options.settings, &blobs));
  std::vector<Settings> all(blobs.size());
  for (size_t r = 0; r < blobs.size(); ++r) {
    if (blobs[r].size() != sizeof(Settings))
      return Status(StatusCode::kMismatch, fmt::format("rank {}: rank {} runs another version of rondo", rank, r));
    std::memcpy(&all[r], blobs[r].data(), sizeof(Settings));
  }
  RONDO_TRY_ASSIGN(const Settings agreed, agree(rank, all));
  for (Rank r = 0; r < nranks; ++r)
    if (!bootstrap->same_host(r))
      return Status(StatusCode::kUnsupported,
                    fmt::format("rank {} and {} are on different hosts: this release has transports inside one host only "
                                "(inproc, shm)", rank, bootstrap->describe(r)));
  auto control = std::make_unique<ProcessControl>(std::move(bootstrap), options);
  RONDO_TRY_ASSIGN(std::unique_ptr<Transport> transport, [&]() -> Expected<std::unique_ptr<Transport>> {
    RONDO_TRY_ASSIGN(auto shm, ShmTransport::create(rank, nranks, *control));
    return std::unique_ptr<Transport>(std::move(shm));
  }());
  const SpinSettings spin = spin_settings(nranks, count_cpus(all));
  if (spin.crowded) start_on_cpu(rank);  // as many ranks on each core
  auto impl = std::make_unique<CommunicatorImpl>(rank, nranks, agreed, spin, std::move(transport));
  impl->take_control(std::move(control), options.abort);
  return impl;
}

std::optional<PeerLoss> ProcessControl::find_lost() {
  auto loss = bootstrap_->find_lost();
  if (!loss) return std::nullopt;
  return PeerLoss{loss->rank, std::move(loss->how)};
}

Expected<std::unique_ptr<CommunicatorImpl>> ProcessControl::make_child(const std::vector<Rank>& members,
                                                                       const ChildOptions& options) {
  RONDO_TRY_ASSIGN(std::unique_ptr<Bootstrap> child, bootstrap_->subset(members, bootstrap_options(options)));
  if (child == nullptr) return std::unique_ptr<CommunicatorImpl>();
  return make_process_communicator(std::move(child), options);
}

// Agrees on the members, makes their communicator, and agrees on whether all could: a death meanwhile begins anew.
Expected<std::unique_ptr<CommunicatorImpl>> ProcessControl::make_of_survivors(const std::vector<Rank>& excluded,
                                                                              const ChildOptions& options) {
  const BootstrapOptions how = bootstrap_options(options);
  RONDO_TRY(bootstrap_->begin_shrink(excluded, how));
  RONDO_TRY_ASSIGN(Bootstrap::Survivors found, bootstrap_->agree({}));
  for (;;) {
    Expected<std::unique_ptr<CommunicatorImpl>> made = [&]() -> Expected<std::unique_ptr<CommunicatorImpl>> {
      RONDO_TRY_ASSIGN(auto bootstrap, bootstrap_->subset_of_survivors(found.members, how));
      return make_process_communicator(std::move(bootstrap), options);
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

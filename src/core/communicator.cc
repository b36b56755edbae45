#include "rondo/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/communicator_impl.h"
#include "core/launch.h"
#include "transport/inproc/inproc.h"

namespace rondo {
namespace {

// Ranks as processes: the bootstrap serves the shm transport with descriptors and news of deaths.
struct Processes final : LocalPeers {
  std::unique_ptr<Bootstrap> bootstrap;
  ~Processes() override {
    if (bootstrap != nullptr) bootstrap->say_goodbye();
  }
  Status exchange_descriptors(std::span<const int> mine, std::vector<std::vector<int>>* all) override {
    return bootstrap->exchange_descriptors(mine, all);
  }
  Status all_gather(const void* mine, uint64_t bytes, std::vector<std::string>* all) override {
    return bootstrap->all_gather(mine, bytes, all);
  }
  std::optional<PeerLoss> find_lost() override {
    auto loss = bootstrap->find_lost();
    if (!loss) return std::nullopt;
    return PeerLoss{loss->rank, std::move(loss->how)};
  }
};

Expected<std::unique_ptr<CommunicatorImpl>> connect(std::unique_ptr<Bootstrap> bootstrap, const Settings& mine) {
  const Rank rank = bootstrap->rank();
  const int nranks = bootstrap->nranks();
  std::vector<std::string> blobs;
  RONDO_TRY(bootstrap->all_gather(&mine, sizeof mine, &blobs));
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
  auto processes = std::make_unique<Processes>();
  processes->bootstrap = std::move(bootstrap);
  RONDO_TRY_ASSIGN(std::unique_ptr<Transport> transport, [&]() -> Expected<std::unique_ptr<Transport>> {
    RONDO_TRY_ASSIGN(auto shm, ShmTransport::create(rank, nranks, *processes));
    return std::unique_ptr<Transport>(std::move(shm));
  }());
  const SpinSettings spin = spin_settings(nranks, count_cpus(all));
  if (spin.crowded) start_on_cpu(rank);  // as many ranks on each core
  auto impl = std::make_unique<CommunicatorImpl>(rank, nranks, agreed, spin, std::move(transport));
  impl->processes = std::move(processes);
  return impl;
}

BootstrapOptions bootstrap_options(const Settings& s) {
  BootstrapOptions o;
  o.deadline_s = s.init_deadline_s;
  return o;
}

}  // namespace

Communicator::Communicator(std::unique_ptr<CommunicatorImpl> impl) : impl_(std::move(impl)) {}
Communicator::~Communicator() = default;

Expected<UniqueId> Communicator::make_unique_id() { return rondo::make_unique_id(); }

Expected<std::unique_ptr<Communicator>> Communicator::init_rank(int nranks, const UniqueId& id, Rank rank,
                                                                const Config& config) {
  RONDO_TRY_ASSIGN(const Settings settings, read_settings(config));
  RONDO_TRY_ASSIGN(auto bootstrap, Bootstrap::join(nranks, id, rank, bootstrap_options(settings)));
  RONDO_TRY_ASSIGN(auto impl, connect(std::move(bootstrap), settings));
  return std::unique_ptr<Communicator>(new Communicator(std::move(impl)));
}

Expected<std::unique_ptr<Communicator>> Communicator::init_env(const Config& config) {
  RONDO_TRY_ASSIGN(const Settings settings, read_settings(config));
  RONDO_TRY_ASSIGN(auto bootstrap, join_from_environment(bootstrap_options(settings)));
  RONDO_TRY_ASSIGN(auto impl, connect(std::move(bootstrap), settings));
  return std::unique_ptr<Communicator>(new Communicator(std::move(impl)));
}

Expected<std::vector<std::unique_ptr<Communicator>>> Communicator::init_all(int nranks, const Config& config) {
  if (nranks < 1 || nranks > 65535)
    return Status(StatusCode::kInvalidArgument, fmt::format("nranks is {}: expected 1 to 65535", nranks));
  RONDO_TRY_ASSIGN(const Settings mine, read_settings(config));
  const std::vector<Settings> all(static_cast<size_t>(nranks), mine);
  RONDO_TRY_ASSIGN(const std::shared_ptr<InprocWorld> world, InprocWorld::create(nranks));
  std::vector<std::unique_ptr<Communicator>> comms;
  for (Rank r = 0; r < nranks; ++r) {
    RONDO_TRY_ASSIGN(const Settings agreed, agree(r, all));
    comms.emplace_back(new Communicator(std::make_unique<CommunicatorImpl>(
        r, nranks, agreed, spin_settings(nranks, count_cpus(all)), std::make_unique<InprocTransport>(r, world))));
  }
  return comms;
}

Rank Communicator::rank() const { return impl_->rank(); }
int Communicator::size() const { return impl_->nranks(); }

Expected<void*> Communicator::alloc(uint64_t bytes) { return impl_->alloc(bytes); }
Status Communicator::free(void* ptr) { return impl_->free(ptr); }
void Communicator::abort() { impl_->abort(); }
Status Communicator::error() const { return impl_->error(); }
std::string Communicator::explain_plan(Collective collective, uint64_t count_elems, Dtype dtype, Op op) {
  PlanRequest request;
  request.collective = collective;
  request.dtype = dtype;
  request.op = op;
  request.count_elems = count_elems;
  return impl_->explain_plan(request);
}

Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&&) noexcept = default;
Work::~Work() = default;

Status Work::wait() {
  if (state_ == nullptr) return Status(StatusCode::kInvalidArgument, "this Work belongs to no operation");
  if (!state_->submitted.load(std::memory_order_acquire))
    return Status(StatusCode::kInvalidArgument, "the operation's group is still open: end it before waiting");
  if (!state_->op.done.load(std::memory_order_acquire)) {
    const BatchEntry entry{&state_->comm->queue(), &state_->op};
    (void)Engine::run(std::span(&entry, 1));
  }
  return state_->op.status;
}

Status Work::test() {
  if (state_ == nullptr) return Status(StatusCode::kInvalidArgument, "this Work belongs to no operation");
  if (!state_->op.done.load(std::memory_order_acquire)) return Status(StatusCode::kInProgress, "");
  return state_->op.status;
}

}  // namespace rondo

// ProcessControl: the control plane of ranks that met through a Bootstrap (processes of a host, or threads that joined
// one by one), and how their communicators are made. It also serves the shm transport with descriptors and deaths.
//
// Thread safety: as ControlPlane.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/bootstrap.h"
#include "core/control_plane.h"
#include "transport/shm/shm.h"

namespace rondo {

/// Collective over the Bootstrap's ranks: exchanges the settings, makes the transport.
/// Errors: kMismatch (settings, version), kUnsupported (ranks on several hosts), those of the Bootstrap and the transport.
Expected<std::unique_ptr<CommunicatorImpl>> make_process_communicator(std::unique_ptr<Bootstrap> bootstrap,
                                                                      const ChildOptions& options);
/// Communicator::init_rank.
Expected<std::unique_ptr<CommunicatorImpl>> init_communicator(int nranks, const rondo_unique_id& id, Rank rank,
                                                              const Config& config,
                                                              const TransportDecorator& decorate = nullptr);
/// Collective over those who meet under the id, for init or for what else `call` says.
Expected<std::unique_ptr<CommunicatorImpl>> join_communicator(std::string_view call, int nranks, const rondo_unique_id& id,
                                                              Rank rank, const ChildOptions& options);
/// What the Bootstrap takes from the options. The token must outlive it.
BootstrapOptions bootstrap_options(const ChildOptions& options);

class ProcessControl final : public ControlPlane, public LocalPeers {
 public:
  ProcessControl(std::unique_ptr<Bootstrap> bootstrap, const ChildOptions& options)
      : abort_(options.abort), may_pull_(options.settings.may_pull != 0), bootstrap_(std::move(bootstrap)) {}
  ~ProcessControl() override { bootstrap_->say_goodbye(); }

  Status gather(std::string_view mine, std::vector<std::string>* all) override {
    return bootstrap_->all_gather(mine.data(), mine.size(), all);
  }
  Expected<std::unique_ptr<CommunicatorImpl>> make_child(const std::vector<Rank>& members,
                                                         const ChildOptions& options) override;
  Expected<std::unique_ptr<CommunicatorImpl>> make_of_survivors(const std::vector<Rank>& excluded,
                                                                const ChildOptions& options) override;
  void set_interrupt(std::function<Status()> interrupt) override { bootstrap_->set_interrupt(std::move(interrupt)); }

  Status exchange_descriptors(std::span<const int> mine, std::vector<std::vector<int>>* all) override {
    return bootstrap_->exchange_descriptors(mine, all);
  }
  Status all_gather(const void* mine, uint64_t bytes, std::vector<std::string>* all) override {
    return bootstrap_->all_gather(mine, bytes, all);
  }
  bool may_pull() const override { return may_pull_; }
  std::optional<PeerLoss> find_lost() override;

 private:
  const std::optional<AbortToken> abort_;  // whose flag the Bootstrap looks at
  const bool may_pull_;
  std::unique_ptr<Bootstrap> bootstrap_;
};

}  // namespace rondo

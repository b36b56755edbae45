// ProcessControl: the control plane of ranks on a Bootstrap (processes, or threads that joined one by one), and the
// making of their communicators.
//
// Thread safety: see ControlPlane.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/control_plane.h"
#include "bootstrap/bootstrap.h"
#include "transport/net/remote.h"
#include "transport/shm/shm.h"

namespace rondo {

/// Collective over the Bootstrap's ranks. Compares the settings and makes the transport. It is shm on one host, except
/// with RONDO_TRANSPORT=tcp or ucx; otherwise it is net. Errors: kMismatch (settings, version), kUnsupported (no UCX),
/// those of the Bootstrap and the transport.
Expected<std::unique_ptr<CommunicatorImpl>> make_process_communicator(std::unique_ptr<Bootstrap> bootstrap,
                                                                      const ChildOptions& options);
/// Implements Communicator::init_rank.
Expected<std::unique_ptr<CommunicatorImpl>> init_communicator(int nranks, const rondo_unique_id& id, Rank rank,
                                                              const Config& config,
                                                              const TransportDecorator& decorate = nullptr);
/// Collective over the ranks that join under the id. `call` ("init", "grow") is for error texts. `interrupt` is called
/// at least every 60 ms, and its error ends the call.
Expected<std::unique_ptr<CommunicatorImpl>> join_communicator(std::string_view call, int nranks,
                                                              const rondo_unique_id& id, Rank rank,
                                                              const ChildOptions& options,
                                                              const std::function<Status()>& interrupt = nullptr);
/// Returns the Bootstrap's options; the greeting has the rank's settings. `options` must outlive the returned options.
/// Its abort token must outlive the Bootstrap.
BootstrapOptions bootstrap_options(const ChildOptions& options);

class ProcessControl final : public ControlPlane {
 public:
  ProcessControl(std::unique_ptr<Bootstrap> bootstrap, const ChildOptions& options)
      : abort_(options.abort), bootstrap_(std::move(bootstrap)) {}
  ~ProcessControl() override { bootstrap_->say_goodbye(cause_); }

  Status gather(std::string_view mine, std::vector<std::string>* all) override {
    return bootstrap_->all_gather(mine.data(), mine.size(), all);
  }
  Expected<std::unique_ptr<CommunicatorImpl>> make_child(const std::vector<Rank>& members,
                                                         const ChildOptions& options) override;
  Expected<std::unique_ptr<CommunicatorImpl>> make_of_survivors(const std::vector<Rank>& excluded,
                                                                const ChildOptions& options) override;
  Status commit(const Status& made, const ChildOptions& options) override {
    return bootstrap_->commit(made, bootstrap_options(options));
  }
  void set_interrupt(std::function<Status()> interrupt) override { bootstrap_->set_interrupt(std::move(interrupt)); }

  Bootstrap& bootstrap() { return *bootstrap_; }

 private:
  const std::optional<AbortToken> abort_;  // keeps the flag alive that the Bootstrap reads
  std::unique_ptr<Bootstrap> bootstrap_;
};

}  // namespace rondo

// A transport that forwards to the one below it. Base of decorators that change a part.
#pragma once

#include <memory>
#include <utility>

#include "transport/transport.h"

namespace rondo::testing {

class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> real) : real_(std::move(real)) {}

  std::string_view name() const override { return real_->name(); }
  Expected<FifoView> open_writer(const ConnectionKey& key) override { return real_->open_writer(key); }
  std::optional<FifoView> open_reader(const ConnectionKey& key) override { return real_->open_reader(key); }
  uint32_t counter_index(const ConnectionKey& key, Rank r) const override { return real_->counter_index(key, r); }
  StatusPage* page(Rank r) override { return real_->page(r); }
  PairPage* pair_page(Rank r) override { return real_->pair_page(r); }
  Doorbell* bell(Rank r) override { return real_->bell(r); }
  void tell_disagreement(uint64_t sequence, std::string_view text) override {
    real_->tell_disagreement(sequence, text);
  }
  std::optional<std::string> told_disagreement(uint64_t sequence) override {
    return real_->told_disagreement(sequence);
  }
  void tell_failure(const Status& cause) override { real_->tell_failure(cause); }
  Status parting_failure(Rank r) override { return real_->parting_failure(r); }
  void raise_abort(Rank by) override { real_->raise_abort(by); }
  std::optional<Rank> aborted_by() override { return real_->aborted_by(); }
  std::string abort_reason(Rank by) override { return real_->abort_reason(by); }
  bool departed(Rank r) override { return real_->departed(r); }
  std::optional<PeerLoss> find_lost() override { return real_->find_lost(); }
  Expected<void*> alloc(uint64_t bytes) override { return real_->alloc(bytes); }
  void adopt_alloc() override { real_->adopt_alloc(); }
  Status free(void* ptr) override { return real_->free(ptr); }
  bool may_be_direct() const override { return real_->may_be_direct(); }
  bool can_pull() const override { return real_->can_pull(); }
  RemoteAddress describe(const void* ptr, uint64_t bytes) const override { return real_->describe(ptr, bytes); }
  std::byte* resolve(Rank peer, const RemoteAddress& a) const override { return real_->resolve(peer, a); }
  Status pull(Rank peer, const RemoteAddress& a, uint64_t offset_bytes, void* to, uint64_t bytes) override {
    return real_->pull(peer, a, offset_bytes, to, bytes);
  }
  void keep(std::shared_ptr<void> what) override { real_->keep(std::move(what)); }
  uint64_t agreed_id() const override { return real_->agreed_id(); }
  std::optional<PeersOnHost> local_peers() override { return real_->local_peers(); }
  Proxy* proxy() override { return real_->proxy(); }
  uint32_t longest_message_bytes() const override { return real_->longest_message_bytes(); }
  bool needs_progress() const override { return real_->needs_progress(); }
  bool progress() override { return real_->progress(); }
  void rest() override { real_->rest(); }

 protected:
  const std::unique_ptr<Transport> real_;
};

}  // namespace rondo::testing

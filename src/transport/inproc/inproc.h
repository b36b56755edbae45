// inproc: ranks are threads of one process. Segments are anonymous memory; every buffer is reachable by every rank, so
// collectives go straight from user buffer to user buffer (the `direct` algorithm) where that is faster.
//
// Ownership: the ranks share an InprocWorld, so that a segment outlives the rank that is destroyed first.
// Thread safety: as Transport.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "transport/segment.h"

namespace rondo {

class InprocWorld {
 public:
  static Expected<std::shared_ptr<InprocWorld>> create(int nranks);
  ~InprocWorld();
  InprocWorld(const InprocWorld&) = delete;
  InprocWorld& operator=(const InprocWorld&) = delete;
  const SegmentLayout& layout() const { return layout_; }
  const std::vector<std::byte*>& segments() const { return segments_; }

 private:
  explicit InprocWorld(int nranks) : layout_(nranks) {}
  SegmentLayout layout_;
  std::vector<std::byte*> segments_;
};

class InprocTransport final : public SegmentTransport {
 public:
  InprocTransport(Rank rank, std::shared_ptr<InprocWorld> world);
  ~InprocTransport() override;
  std::string_view name() const override { return "inproc"; }
  std::optional<PeerLoss> find_lost() override { return std::nullopt; }  // a thread does not die alone
  Expected<void*> alloc(uint64_t bytes) override;
  Status free(void* ptr) override;
  bool may_be_direct() const override { return true; }
  bool can_pull() const override { return true; }
  Status pull(Rank, const RemoteAddress&, uint64_t, void*, uint64_t) override {
    return Status(StatusCode::kInternal, "every buffer of this process is mapped");
  }
  RemoteAddress describe(const void* ptr, uint64_t) const override {
    return {0, reinterpret_cast<uint64_t>(ptr)};
  }
  std::byte* resolve(Rank, const RemoteAddress& a) const override {
    return reinterpret_cast<std::byte*>(a.offset_bytes);
  }

 private:
  struct Block {
    void* ptr;
    uint64_t bytes;
  };
  std::shared_ptr<InprocWorld> world_;
  std::vector<Block> blocks_;  // made by alloc
};

}  // namespace rondo

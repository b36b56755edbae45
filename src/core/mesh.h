// Mesh: connects every rank with every other after the rendezvous. Each rank listens; rank r connects to the ranks
// below it and accepts those above, so every pair gets exactly one stream. All handshakes of a rank are under way at
// the same time, and a connect succeeds without its listener's help, so no two ranks wait for each other in a cycle.
//
// Thread safety: one MeshPort belongs to one join.
#pragma once

#include <memory>
#include <vector>

#include "core/rendezvous.h"

namespace rondo {

constexpr size_t kMaxPayloadBytes = size_t{1} << 30;  // of a frame between two ranks

/// Where this rank can be reached by its peers.
struct MeshPort {
  Fd local;
  Listeners tcp;
};
/// Opens the listeners and writes their addresses into *self.
Expected<MeshPort> open_mesh_port(PeerInfo* self);

struct MeshRequest {
  Rank rank = 0;
  const Secret* secret = nullptr;
  const Met* met = nullptr;  // the table, and the root that tells of ranks that die meanwhile
};
/// Collective. links[r] is the stream to rank r, empty for this rank. Strangers at the listeners are dropped.
Expected<std::vector<std::unique_ptr<Link>>> connect_mesh(const MeshRequest& request, MeshPort port,
                                                          const Patience& patience);

}  // namespace rondo

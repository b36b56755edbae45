// Mesh: connects every rank with every other after the rendezvous. Each rank listens; rank r connects to the ranks
// below it, in order, and accepts those above, so every pair gets exactly one stream and no two ranks wait for each
// other in a cycle (rank 0 only accepts, rank 1 needs only rank 0, and so on).
//
// Thread safety: one MeshPort belongs to one join.
#pragma once

#include <memory>
#include <vector>

#include "core/rendezvous.h"

namespace rondo {

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

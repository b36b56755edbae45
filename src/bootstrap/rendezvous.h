// Rendezvous: the ranks of one communicator connect to one thread, the root, and get each other's addresses from it.
//
//   joiner                        root (a thread of the id's maker)
//   connect, handshake  ------->  both sides prove the secret; the root refuses joiners without it
//   join(nranks, PeerInfo) ---->  collects; if two joins contradict each other, all ranks get an error that names both
//                       <-------  when all ranks have joined: the host of each rank, and the addresses of the ranks to
//                                 which it must connect (bootstrap/mesh_plan.h)
//   (connects the mesh)
//   meshed             -------->  if a joiner dies before this, the root reports it to the others
//
// The root serves one communicator and ends. The mesh does not need it. Unauthenticated connections cannot block it: it
// accepts each at once, and closes one if there are too many (bootstrap/acceptor.h). If a joiner's connection was
// closed before its proof, it connects again. After its proof the root keeps its connection.
//
// Thread safety: start_rendezvous and join_rendezvous from any thread. The root shares only sockets with them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "bootstrap/link.h"
#include "bootstrap/mesh_plan.h"
#include "bootstrap/socket.h"
#include "bootstrap/unique_id.h"
#include "rondo/host_layout.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

/// Maximum number of ranks of a communicator, because an instruction has 16 bits for a chunk number. Check nranks
/// against it before allocating memory for every rank.
constexpr int kMaxRanks = 65535;

/// Starts the root's thread on the listeners. It ends when the ranks have connected, or after `deadline_s` if no rank
/// joins. local: a listening Unix socket with root_name() for ranks of this host, which is cheaper than TCP; may be
/// empty.
Status start_rendezvous(Fd local, Listeners listeners, const Secret& secret, double deadline_s);
/// Returns the name of the root's Unix socket.
std::string root_name(const Secret& secret);

/// Returns "ranks 2, 5, 7" for messages. It names at most 16 ranks.
std::string list_ranks(const std::vector<Rank>& ranks);

/// Up to this number of ranks, all pairs of ranks have a link. Tests set RONDO_TEST_FULL_MESH for grids of few ranks.
constexpr int kMostFullMesh = 64;

/// Returns the hosts of the peers.
HostLayout hosts_of(const std::vector<PeerInfo>& peers);

/// Returns the tables that the root sends when all ranks have joined, by rank.
std::vector<std::shared_ptr<const std::string>> encode_tables(const std::vector<PeerInfo>& peers, int most_full);

/// The result of a rendezvous.
struct Met {
  MeshPlan plan;
  std::vector<PeerInfo> peers;  // by rank; from a rendezvous: only this rank's and those to which the plan has a link
  std::unique_ptr<Link> root;   // reports ranks that die before the mesh is connected; send kMeshed when it is. nullptr
                                // if the communicator is made from another one
};
/// Collective. Waits for all ranks. `interrupt`, if set, is called before each attempt to connect to the root and, when
/// connected, at least every 50 ms. Its error ends the wait. Errors: those of Bootstrap::join.
Expected<Met> join_rendezvous(const IdContents& id, int nranks, Rank rank, const PeerInfo& self,
                              const Deadline& deadline, const std::function<Status()>& interrupt = nullptr);
/// Decodes the error in a kRefused or kGaveUp frame.
Status refusal(const Frame& frame);
/// Encodes an error as the payload of a kRefused or kGaveUp frame.
std::shared_ptr<const std::string> refusal_payload(const Status& why);

}  // namespace rondo

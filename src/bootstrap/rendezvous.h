// Rendezvous: where the ranks of one communicator meet before they know each other's addresses.
//
//   joiner                        root (a thread of the id's maker)
//   connect, handshake  ------->  proves the secret both ways; whoever does not hold it is refused
//   join(nranks, who I am) ---->  collects; a contradiction fails the whole group at once, naming both sides
//                       <-------  when the last has come: which ranks are on one host, and where those are with whom
//                                 it gets links (bootstrap/mesh_plan.h): of few ranks all
//   (connects the mesh)
//   meshed             -------->  a joiner that dies before this is announced to the others
//
// The root serves one communicator and ends; the mesh does not need it. Unauthenticated connections cannot stall it:
// each is accepted at once, and when too many are half-open one is closed (bootstrap/acceptor.h). A joiner whose connection
// was closed before it had proved the secret connects again. One that has proved it keeps its place.
//
// Thread safety: start_rendezvous and join_rendezvous from any thread; the root shares nothing with them but sockets.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "bootstrap/link.h"
#include "bootstrap/mesh_plan.h"
#include "bootstrap/socket.h"
#include "bootstrap/unique_id.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

/// Of a communicator: an instruction names a chunk of each rank in 16 bits. Whatever is made for each of so many ranks
/// is made after a look at this.
constexpr int kMaxRanks = 65535;

/// Starts the root's thread on the listeners. It ends when the ranks have meshed, or `deadline_s` after now if none
/// came.
Status start_rendezvous(Listeners listeners, const Secret& secret, double deadline_s);

/// "2, 5 and 7", for messages; ranges are not folded, at most 16 ranks are named.
std::string list_ranks(const std::vector<Rank>& ranks);

/// Up to so many ranks have links each with each; tests say otherwise (RONDO_TEST_FULL_MESH).
constexpr int kMostFullMesh = 64;

/// Of each peer a number for its host, equal for peers of one host.
std::vector<uint32_t> hosts_of(const std::vector<PeerInfo>& peers);

/// What the root says to each rank when all have come.
class TableWriter {
 public:
  TableWriter(const std::vector<PeerInfo>& peers, int most_full);
  std::shared_ptr<const std::string> of(Rank rank) const;

 private:
  std::string entries_of(const std::vector<Rank>& ranks) const;
  MeshPlan plan_;
  std::vector<std::string> encoded_;               // by rank
  std::shared_ptr<const std::string> everything_;  // of a full plan
};

struct Met {
  MeshPlan plan;
  std::vector<PeerInfo> peers;  // by rank; empty for those with whom the plan makes no link, but for this rank itself
  std::unique_ptr<Link> root;   // tells of ranks that die before all are meshed; answer with kMeshed. Of a communicator
                                // that is made from another one: nullptr
};
/// Collective: waits for all ranks. `interrupt`, where there is one, is asked at least every 50 ms, or between two
/// attempts to reach the root: an error ends the wait. Errors: those of Bootstrap::join.
Expected<Met> join_rendezvous(const IdContents& id, int nranks, Rank rank, const PeerInfo& self,
                              const Patience& patience, const std::function<Status()>& interrupt = nullptr);
/// The error in a kRefused frame.
Status refusal(const Frame& frame);
/// Its payload, and that of kGaveUp.
std::shared_ptr<const std::string> refusal_payload(const Status& why);

}  // namespace rondo

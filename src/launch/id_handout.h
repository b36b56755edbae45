// Handing a unique id from rank 0 to the other ranks of one host, when all they share is a job name: rank 0 listens on
// an abstract Unix socket of that name, the others connect (retrying until it is there), and each side checks with
// SO_PEERCRED that the other belongs to the same user, since anybody on the host may bind or connect to such a name.
//
// Nobody gets the id before all have asked, and the socket is closed before the first gets it: so the same name can be
// used again for the next communicator of the job without old and new askers mixing.
//
// Thread safety: plain functions; each call owns its sockets.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "bootstrap/socket.h"
#include "rondo/rondo.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

/// Rank 0. Collective with fetch_id. Errors: kTimeout (names the ranks that did not come), kAborted, kSystem (the name
/// is taken: another rank 0 of the same job is waiting).
Status hand_out_id(const std::string& name, const rondo_unique_id& id, int nranks, const Patience& patience);
/// The other ranks. Connects again where a connection ends unanswered, while rank 0 listens. Errors: kTimeout,
/// kAborted, kPeerLost (rank 0 has ended), kUnauthorized (another user listens there), or rank 0's.
Expected<rondo_unique_id> fetch_id(const std::string& name, Rank rank, const Patience& patience);

/// Which rank asks; nothing when the bytes are no request of a rank 1..nranks-1.
std::optional<Rank> decode_id_request(std::string_view bytes, int nranks);
/// What rank 0 answered: a status code, and the id or a message.
Status decode_id_answer(uint8_t code, std::string_view text, rondo_unique_id* id);

}  // namespace rondo

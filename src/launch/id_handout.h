// Passes a unique id from rank 0 to the other ranks of one host that share only a job name. Rank 0 listens on an
// abstract Unix socket of that name. The others connect and retry until it exists. Each side checks with SO_PEERCRED
// that the other belongs to the same user, because any process on the host may bind or connect to such a name.
//
// Rank 0 answers only when all ranks have asked, and closes the listener before the first answer. Therefore the job's
// next communicator can use the same name without mixing old and new requests.
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

/// Sends the id to all ranks. For rank 0. Collective with fetch_id. Errors: kTimeout (with the missing ranks),
/// kAborted, kSystem (another rank 0 of the same job uses the name).
Status hand_out_id(const std::string& name, const rondo_unique_id& id, int nranks, const Deadline& deadline);
/// For the other ranks. While rank 0 listens, reconnects if a connection closes without an answer. Errors: kTimeout,
/// kAborted, kPeerLost (rank 0 has ended), kUnauthorized (another user listens there), or rank 0's error.
Expected<rondo_unique_id> fetch_id(const std::string& name, Rank rank, const Deadline& deadline);

/// Returns the rank in a request, nullopt if the bytes are not a request of a rank 1..nranks-1.
std::optional<Rank> decode_id_request(std::string_view bytes, int nranks);
/// Decodes rank 0's answer: a status code, and the id or a message.
Status decode_id_answer(uint8_t code, std::string_view text, rondo_unique_id* id);

}  // namespace rondo

// The contents of the 128 bytes of a rondo_unique_id, and PeerInfo, the identity and addresses of a rank.
//
//   bytes 0..7    magic "RNDO", version, flags, port (little-endian)
//   bytes 8..23   the 128-bit secret
//   bytes 24..31  hash of the maker's host identity
//   byte  32      number of addresses; then per address: 1 byte family (4 or 6), 16 bytes
//   bytes 124..   FNV-1a of the bytes before, to detect incomplete copies
//
// Thread safety: plain functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/codec.h"
#include "base/process_name.h"
#include "bootstrap/auth.h"
#include "bootstrap/socket.h"
#include "rondo/rondo.h"
#include "rondo/status.h"

namespace rondo {

struct IdContents {
  static constexpr size_t kMaxAddresses = 5;
  bool derived = false;  // every rank computes it from the environment: its rendezvous may not be open yet
  uint16_t port = 0;
  Secret secret = {};
  uint64_t host_hash = 0;
  std::vector<IpAddress> addresses;  // at most kMaxAddresses
};
rondo_unique_id encode_id(const IdContents& contents);
/// Decodes an id. Errors: kInvalidArgument if the bytes are not an id of this version.
Expected<IdContents> decode_id(const rondo_unique_id& id);

/// The process and the listeners of a rank. Join and table messages contain it.
struct PeerInfo {
  std::string host;            // boot id and network namespace; ranks with equal values reach each other's Unix sockets
  ProcessName process;
  std::string host_name;
  std::string unix_name;       // abstract socket; random, so that it also identifies the listener
  uint16_t tcp_port = 0;       // 0: no TCP listener
  std::vector<IpAddress> addresses;
  std::string greeting;  // BootstrapOptions::greeting
};
/// Returns the PeerInfo of this process, without listeners. pretend_host: see BootstrapOptions.
Expected<PeerInfo> describe_self(uint64_t pretend_host);
template <class C>
void fields(C& c, IpAddress& a) {
  c(a.v6, a.bytes);
}
template <class C>
void fields(C& c, PeerInfo& p) {
  c(p.host, p.process, p.host_name, p.unix_name, p.tcp_port, p.addresses, p.greeting);
}
/// Returns "rank 3 (pid 4711 on node7)".
std::string peer_text(Rank rank, const PeerInfo& info);

uint64_t fnv1a(std::string_view bytes);

}  // namespace rondo

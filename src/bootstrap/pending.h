// Connections that a listener has taken and that have not proved yet that they belong to the job: how many there may
// be, and which one goes for the next. It serves the rendezvous, the ports of the mesh and the hand-out of an id.
//
//   silent    has sent no whole greeting. A rank greets as soon as it is connected, so that its greeting is usually
//             there when its connection is accepted.
//   greeted   has sent what a rank sends first, and has the challenge to answer.
//
// Whoever has proved the secret is no longer pending, and never goes for another. A rank whose connection was closed
// before its proof connects again until its deadline: so a connection may be closed at any time, and the limit is never
// a reason to stop accepting.
//
// Thread safety: plain functions.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <string_view>
#include <unordered_map>

namespace rondo {

constexpr size_t kMaxPending = 64;      // of a listener, beside the ranks that may still come
constexpr int kMaxAcceptsAtOnce = 256;  // between two looks at the connections that are there
constexpr auto kPendingPatience = std::chrono::seconds(5);
constexpr int kMaxRefusalsLogged = 8;

/// Where a connection comes from, of accept_one()'s text: an address without its port, or a process.
inline uint64_t source_of(std::string_view peer) {
  return std::hash<std::string_view>()(peer.substr(0, peer.rfind(':')));
}

/// The one that is closed for the next, end() where there is none: a silent one where any is, and among those the
/// oldest of the source that has most of them. `pending` is in order of arrival; a C has source() and has_greeted().
template <class C>
typename std::list<C>::iterator first_to_close(std::list<C>& pending) {
  bool any_silent = false;
  for (const C& c : pending) any_silent = any_silent || !c.has_greeted();
  std::unordered_map<uint64_t, size_t> num_of_source;
  size_t most = 0;
  for (const C& c : pending)
    if (c.has_greeted() != any_silent) most = std::max(most, ++num_of_source[c.source()]);
  for (auto c = pending.begin(); c != pending.end(); ++c)
    if (c->has_greeted() != any_silent && num_of_source[c->source()] == most) return c;
  return pending.end();
}

}  // namespace rondo

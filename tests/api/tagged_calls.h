// Calls of send and recv that match by their tags, with data that depends on the message.
#pragma once

#include <vector>

#include "rondo/communicator.h"

namespace rondo::testing {

inline CallOptions tagged(uint64_t tag, Rank* source = nullptr, double deadline_s = 0) {
  CallOptions o;
  o.tag = tag;
  o.match_tags = true;
  o.source = source;
  o.deadline_s = deadline_s;
  return o;
}

/// The data of message `number` with a tag from one rank to another.
inline std::vector<int> tagged_data(Rank from, Rank to, uint64_t tag, int number, uint64_t count) {
  std::vector<int> m(count);
  for (uint64_t i = 0; i < count; ++i)
    m[i] = from * 100'000'007 + to * 1'000'003 + static_cast<int>(tag) * 10'007 + number * 101 + static_cast<int>(i);
  return m;
}

inline Status send_tagged(Communicator& comm, const std::vector<int>& data, Rank to, uint64_t tag,
                          Work* work = nullptr) {
  const CallOptions o = tagged(tag);
  return comm.send(data.data(), data.size(), Dtype::kInt32, to, &o, work);
}
inline Status recv_tagged(Communicator& comm, std::vector<int>& data, Rank from, uint64_t tag, Rank* source = nullptr,
                          Work* work = nullptr) {
  const CallOptions o = tagged(tag, source);
  return comm.recv(data.data(), data.size(), Dtype::kInt32, from, &o, work);
}

}  // namespace rondo::testing

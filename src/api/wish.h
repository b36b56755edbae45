// Wish: what a rank asks of the others when it makes a communicator of theirs, as all ranks of it hear it before
// anything is made. So a rank that cannot take part says why, and one that calls something else is named.
#pragma once

#include <string>

#include "api/communicator_impl.h"

namespace rondo {

struct CommunicatorImpl::Wish {
  enum class Kind : uint8_t { kSplit = 1, kGrow = 2 };
  Kind kind = Kind::kSplit;
  int64_t first = 0;   // split: colour; grow: new_nranks
  int64_t second = 0;  // split: key
  std::string bytes;   // grow: rank 0's unique id
  Status status;       // why this rank cannot take part
};

}  // namespace rondo

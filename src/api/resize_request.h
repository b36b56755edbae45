// Preference: a rank's request in split or grow. All ranks exchange their requests before anything is made. A rank that
// cannot take part sends the reason, and the error names a rank that makes another call.
#pragma once

#include <string>

#include "api/communicator_impl.h"

namespace rondo {

struct CommunicatorImpl::ResizeRequest {
  enum class Kind : uint8_t { kSplit = 1, kGrow = 2 };
  Kind kind = Kind::kSplit;
  int64_t first = 0;   // split: colour; grow: new_nranks
  int64_t second = 0;  // split: key
  std::string bytes;   // grow: the unique id, empty if this rank has none
  Status status;       // why this rank cannot take part
};

}  // namespace rondo

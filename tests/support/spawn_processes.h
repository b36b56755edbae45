// Passes the unique id to processes that will be ranks. Rank 0 makes it (its rendezvous lives in that process) and
// writes it to one pipe for each other rank.
//
// Make it before the forks. Each rank calls exchange() once.
#pragma once

#include <array>
#include <vector>

#include "rondo/communicator.h"

namespace rondo::testing {

class IdPipes {
 public:
  explicit IdPipes(int nranks);
  ~IdPipes();
  IdPipes(const IdPipes&) = delete;
  IdPipes& operator=(const IdPipes&) = delete;
  /// In the child of `rank`: makes or reads the id, then closes the pipes.
  Expected<UniqueId> exchange(Rank rank);

 private:
  void close_all();
  std::vector<std::array<int, 2>> pipes_;
};

}  // namespace rondo::testing

#include "fsdp/agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace rondo::fsdp {

Status agree(HostCalls& calls, const Status& mine) {
  Communicator& comm = calls.comm();
  const auto code = static_cast<int32_t>(mine.code());
  std::vector<int32_t> codes(static_cast<size_t>(comm.size()));
  RONDO_TRY(calls.all_gather(&code, codes.data(), 1, Dtype::kInt32));
  const auto failed = std::find_if(codes.begin(), codes.end(), [](int32_t c) { return c != 0; });
  if (failed == codes.end()) return {};
  const auto rank = static_cast<Rank>(failed - codes.begin());
  char text[2048] = {};
  if (rank == comm.rank()) std::memcpy(text, mine.message().data(), std::min(mine.message().size(), sizeof text - 1));
  RONDO_TRY(calls.broadcast(text, sizeof text, Dtype::kUint8, rank));
  return Status(static_cast<StatusCode>(*failed), fmt::format("rank {}: {}", rank, text));
}

}  // namespace rondo::fsdp

// libFuzzer: answers of any server on MASTER_PORT, which may not be torch's store.
#include <sys/socket.h>

#include "launch/torch_store.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace rondo;
  constexpr size_t kMostBytes = 128;  // each "not yet" costs a pause
  if (bytes > kMostBytes) return 0;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return 0;
  const Fd server(ends[1]);
  if (send(server.get(), data, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) return 0;
  shutdown(server.get(), SHUT_WR);
  TorchStore store = TorchStore::over(Fd(ends[0]));
  const Deadline deadline(0.02, nullptr);
  (void)store.add("count", 1, deadline);
  (void)store.set("key", "value", deadline);
  (void)store.get("key", deadline);
  return 0;
}

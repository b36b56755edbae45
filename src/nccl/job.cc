#include "nccl/job.h"

#include "base/thread.h"
#include "nccl/comm.h"

namespace rondo::nccl {

void Job::start(const std::vector<std::shared_ptr<Comm>>& comms, std::function<Status()> work) {
  auto end = std::make_shared<std::promise<Status>>();
  const auto job = std::make_shared<const Job>(Job{{comms.begin(), comms.end()}, end->get_future().share()});
  for (const auto& comm : comms) comm->start_job(job);
  Thread thread;
  const Status started = thread.start("a thread of a nonblocking call", [end, work = std::move(work)]() mutable {
    Status result = work();
    work = nullptr;  // frees its captures before the end is visible
    end->set_value(std::move(result));
  });
  if (started.ok()) thread.detach();
  else end->set_value(started);
}

}  // namespace rondo::nccl

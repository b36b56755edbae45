#include "overlap/link.h"

#include <utility>

#include "api/communicator_impl.h"
#include "api/process_control.h"
#include "support/link_transport.h"

namespace rondo::bench {

std::unique_ptr<Communicator> make_linked_communicator(Crew& crew, double bytes_per_us, double latency_us) {
  auto impl = init_communicator(crew.nranks(), crew.agree_on_id(), crew.rank(), {},
                                testing::behind_line({.bytes_per_us = bytes_per_us, .latency_us = latency_us}));
  crew.need(impl.status());
  return CommunicatorImpl::handle(std::move(*impl));
}

}  // namespace rondo::bench

// The C ABI: how communicators are made and ended.
#include <string>
#include <utility>
#include <vector>

#include "api/c_handles.h"
#include "api/communicator_impl.h"
#include "bootstrap/rendezvous.h"
#include "rondo/rondo.h"

namespace rondo {
namespace {

// nullptr: the defaults.
Expected<Config> config_of(const rondo_config* c) {
  if (c == nullptr) return Config{};
  if (c->size_bytes != sizeof(rondo_config))
    return Status(StatusCode::kInvalidArgument, "config.size_bytes is " + std::to_string(c->size_bytes) +
                                                    ", not the size of this release's rondo_config (" +
                                                    std::to_string(sizeof(rondo_config)) + "); use RONDO_CONFIG_INIT");
  for (const auto& [name, seconds] : {std::pair{"deadline_s", c->deadline_s}, {"init_deadline_s", c->init_deadline_s}})
    if (!(seconds >= 0))
      return Status(StatusCode::kInvalidArgument,
                    std::string("config.") + name + " is " + std::to_string(seconds) + ": not a time");
  Config config;
  config.deadline_s = c->deadline_s;
  config.init_deadline_s = c->init_deadline_s;
  if (c->abort != nullptr) config.abort = c->abort->token;
  if (c->settings != nullptr) config.settings = c->settings;
  RONDO_TRY(check_memory("config.memory", c->memory));
  config.memory = static_cast<Memory>(c->memory);
  config.device = c->device;
  return config;
}

// Makes a communicator with the config, and reports the status. *to may become nullptr.
template <class Make>
rondo_status make_comm(const rondo_config* config, rondo_comm* parent, rondo_comm** to, Make make) {
  auto c = config_of(config);
  if (!c.ok()) return report(c.status(), parent);
  Expected<std::unique_ptr<Communicator>> made = make(*c);
  if (made.ok()) *to = *made != nullptr ? new rondo_comm{std::move(*made)} : nullptr;
  return report(made.status(), parent);
}

}  // namespace
}  // namespace rondo

using rondo::Config;
using rondo::make_comm;
using rondo::null_argument;
using rondo::report;

extern "C" {

rondo_status rondo_get_unique_id(rondo_unique_id* id) {
  if (id == nullptr) return null_argument("id");
  auto made = rondo::Communicator::make_unique_id();
  if (made.ok()) *id = *made;
  return report(made.status());
}

rondo_status rondo_comm_init_rank(rondo_comm** comm, int nranks, const rondo_unique_id* id, int rank,
                                  const rondo_config* config) {
  if (comm == nullptr) return null_argument("comm");
  if (id == nullptr) return null_argument("id");
  return make_comm(config, nullptr, comm,
                   [=](const Config& c) { return rondo::Communicator::init_rank(nranks, *id, rank, c); });
}

rondo_status rondo_comm_init_all(rondo_comm** comms, int nranks, const rondo_config* config) {
  if (comms == nullptr) return null_argument("comms");
  auto c = rondo::config_of(config);
  if (!c.ok()) return report(c.status());
  if (config != nullptr && config->devices != nullptr && nranks > 0 && nranks <= rondo::kMaxRanks)
    c->devices.assign(config->devices, config->devices + nranks);
  auto made = rondo::Communicator::init_all(nranks, *c);
  if (made.ok())
    for (size_t r = 0; r < made->size(); ++r) comms[r] = new rondo_comm{std::move((*made)[r])};
  return report(made.status());
}

rondo_status rondo_comm_init_env(rondo_comm** comm, const rondo_config* config) {
  if (comm == nullptr) return null_argument("comm");
  return make_comm(config, nullptr, comm, rondo::Communicator::init_env);
}

rondo_status rondo_comm_rank(const rondo_comm* comm, int* rank) {
  if (comm == nullptr || rank == nullptr) return null_argument(comm == nullptr ? "comm" : "rank");
  *rank = comm->comm->rank();
  return RONDO_OK;
}

rondo_status rondo_comm_size(const rondo_comm* comm, int* nranks) {
  if (comm == nullptr || nranks == nullptr) return null_argument(comm == nullptr ? "comm" : "nranks");
  *nranks = comm->comm->size();
  return RONDO_OK;
}

const char* rondo_comm_transport(const rondo_comm* comm) {
  return comm != nullptr ? comm->comm->transport().data() : nullptr;
}

rondo_status rondo_comm_error(rondo_comm* comm) {
  if (comm == nullptr) return null_argument("comm");
  return report(comm->comm->error(), comm);
}

rondo_status rondo_comm_abort(rondo_comm* comm) {
  if (comm == nullptr) return null_argument("comm");
  comm->comm->abort();
  return report(impl_of(*comm->comm).check_process(), comm);
}

rondo_status rondo_comm_destroy(rondo_comm* comm) {
  delete comm;
  return RONDO_OK;
}

rondo_status rondo_abort_create(rondo_abort** abort) {
  if (abort == nullptr) return null_argument("abort");
  *abort = new rondo_abort;
  return RONDO_OK;
}

rondo_status rondo_abort_raise(rondo_abort* abort) {
  if (abort == nullptr) return null_argument("abort");
  abort->token.raise();
  return RONDO_OK;
}

rondo_status rondo_abort_free(rondo_abort* abort) {
  delete abort;
  return RONDO_OK;
}

rondo_status rondo_comm_finalize(rondo_comm* comm) {
  if (comm == nullptr) return null_argument("comm");
  return report(comm->comm->finalize(), comm);
}

rondo_status rondo_comm_split(rondo_comm* comm, int colour, int key, rondo_comm** part, const rondo_config* config) {
  if (comm == nullptr || part == nullptr) return null_argument(comm == nullptr ? "comm" : "part", comm);
  return make_comm(config, comm, part, [=](const Config& c) { return comm->comm->split(colour, key, c); });
}

rondo_status rondo_comm_shrink(rondo_comm* comm, const int* excluded, int num_excluded, rondo_comm** smaller,
                               const rondo_config* config) {
  if (comm == nullptr || smaller == nullptr) return null_argument(comm == nullptr ? "comm" : "smaller", comm);
  if (num_excluded < 0 || num_excluded > comm->comm->size())
    return rondo::bad_argument("num_excluded",
                               "is " + std::to_string(num_excluded) +
                                   ": expected 0 to the communicator's number of ranks, " +
                                   std::to_string(comm->comm->size()),
                               comm);
  if (num_excluded > 0 && excluded == nullptr) return null_argument("excluded", comm);
  const std::vector<rondo::Rank> ranks(excluded, excluded + num_excluded);
  return make_comm(config, comm, smaller, [&](const Config& c) { return comm->comm->shrink(ranks, c); });
}

rondo_status rondo_comm_grow(rondo_comm* comm, int new_nranks, const rondo_unique_id* id, rondo_comm** larger,
                             const rondo_config* config) {
  if (comm == nullptr || larger == nullptr) return null_argument(comm == nullptr ? "comm" : "larger", comm);
  return make_comm(config, comm, larger, [=](const Config& c) { return comm->comm->grow(new_nranks, id, c); });
}

}  // extern "C"

// The C ABI for abort handles, and to finalize, split, shrink and grow communicators.
#include <string>
#include <vector>

#include "api/c_handles.h"

namespace rondo {

Status check_memory(const char* field, rondo_memory value) {
  if (value == RONDO_MEMORY_HOST || value == RONDO_MEMORY_CUDA) return {};
  return Status(StatusCode::kInvalidArgument, std::string(field) + " is " + std::to_string(value) +
                                                  ": expected RONDO_MEMORY_HOST or RONDO_MEMORY_CUDA");
}

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

}  // namespace rondo

using rondo::Config;
using rondo::make_comm;
using rondo::null_argument;
using rondo::report;
using rondo::Status;
using rondo::StatusCode;

extern "C" {

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

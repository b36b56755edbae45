// What a caller's ncclConfig_t says, whatever version it was compiled with.
//
// The struct grew at its end and, twice, inside its padding: so a field counts when the caller's size holds it *and*
// the caller's version knows it. Thread safety: values.
#pragma once

#include <cstddef>
#include <string>

#include "nccl/abi.h"
#include "rondo/status.h"

namespace rondo::nccl {

/// Thread blocks that a setting may ask for.
inline constexpr int kMostBlocks = 1024;

/// Defaults where the caller said nothing. Fields that steer clusters of blocks, NICs or NVLink's switches are checked,
/// and have no effect.
struct CommConfig {
  unsigned version = 0;  // of the caller's header: 23203; 0: there was no config
  bool blocking = true;
  int min_ctas = 1;
  int max_ctas = 64;
  bool most_given = false;  // maxCTAs was set: 64 of its own is no limit
  bool no_blocks = false;  // CTAPolicy asks for none: copies and flags in streams, kernels for reductions alone
  std::string name;  // commName, of our own: the caller's text may go
};

/// One field of the struct, and which header brought it.
struct ConfigField {
  const char* name;
  size_t offset;
  size_t bytes;
  unsigned since;   // 21400
  int least, most;  // of ints
};
/// In the order of the struct; ends with a name of nullptr.
extern const ConfigField kConfigFields[];

/// `config` may be nullptr: the defaults. Errors: kInvalidArgument naming the field, the value and what is expected.
Expected<CommConfig> read_config(const ncclConfig_t* config);

/// The lines of settings that it stands for: how many thread blocks a device kernel has, and whether there is one; what
/// it leaves out too, since a child's config replaces its parent's. What rondo's own settings and NCCL_MIN_CTAS and
/// NCCL_MAX_CTAS say of the same is stronger. Errors: those of read_setting.
Expected<std::string> settings_of(const CommConfig& config);

/// The fields that the caller knows, everything else as if not set. Errors: kInvalidArgument (magic, size).
Expected<ncclConfig_t> normalise(const ncclConfig_t* config);

}  // namespace rondo::nccl

// A caller's ncclConfig_t, of any version. The struct grew at its end and, twice, within its padding. Therefore a field
// counts only if the caller's size contains it *and* the caller's version has it. Thread safety: values.
#pragma once

#include <cstddef>
#include <string>

#include "nccl/abi.h"
#include "rondo/communicator.h"
#include "rondo/status.h"

namespace rondo::nccl {

/// Limit on the thread blocks of a setting.
inline constexpr int kMostBlocks = 1024;

/// The caller's values or the defaults. Fields for clusters of blocks, NICs and NVLink switches are checked but have no
/// effect.
struct CommConfig {
  unsigned version = 0;  // of the caller's header: 23203; 0: there was no config
  bool blocking = true;
  int min_ctas = 1;
  int max_ctas = 64;
  bool most_given = false;  // maxCTAs was set: the default 64 is not a limit
  bool no_blocks = false;  // from CTAPolicy: copies and flags in streams, kernels only for reductions
  std::string name;  // a copy of commName
};

/// One field of the struct, and the header version that added it.
struct ConfigField {
  const char* name;
  size_t offset;
  size_t bytes;
  unsigned since;   // 21400
  int least, most;  // of ints
};
/// In struct order; ends with a null name.
extern const ConfigField kConfigFields[];

/// `config` may be nullptr: the defaults. Errors: kInvalidArgument with the field, the value and the expected values.
Expected<CommConfig> read_config(const ncclConfig_t* config);

/// The settings lines of a config: the number of thread blocks of a device kernel, or no kernel. Defaults are written
/// too, because a child's config replaces its parent's. Calls on device memory have no deadline, as with NCCL: its
/// callers have a watchdog that aborts. rondo's own settings, NCCL_MIN_CTAS and NCCL_MAX_CTAS override them. Errors: as
/// read_setting.
Expected<std::string> settings_of(const CommConfig& config, Memory memory);

}  // namespace rondo::nccl

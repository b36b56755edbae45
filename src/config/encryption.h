// The encryption setting of this process: whether its connections to other hosts are encrypted.
//
// Thread safety: all functions from any thread.
#pragma once

#include <optional>
#include <string>

#include "rondo/status.h"

namespace rondo {

struct Encryption {
  bool on = false;
  std::string psk = {};  // input of the keys, in addition to the id's secret; must be equal on all ranks
};

/// Returns the value of the last set_encryption(), otherwise RONDO_ENCRYPT. Errors: those of the setting.
Expected<Encryption> encryption();
/// Sets the encryption of connections made after this call. std::nullopt: RONDO_ENCRYPT decides again.
void set_encryption(std::optional<Encryption> e);

}  // namespace rondo

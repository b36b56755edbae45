// Whether what leaves this host is encrypted: what all connections of this process are made by.
//
// Thread safety: all functions from any thread.
#pragma once

#include <optional>
#include <string>

#include "rondo/status.h"

namespace rondo {

struct Encryption {
  bool on = false;
  std::string psk = {};  // goes into the keys, beside the id's secret; equal on all ranks
};

/// As set_encryption() said, else as RONDO_ENCRYPT does. Errors: those of the setting.
Expected<Encryption> encryption();
/// For the connections made from now on. std::nullopt: RONDO_ENCRYPT decides again.
void set_encryption(std::optional<Encryption> e);

}  // namespace rondo

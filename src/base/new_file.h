// Files under predictable names: never written through a link that somebody else put there, and written completely or
// not at all.
//
// Thread safety: any thread, one path at a time.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "rondo/status.h"

namespace rondo {

/// Opens a new file for writing. Removes an old file or link at `path` instead of writing to it. -1: see errno.
int create_new_file(const std::string& path, unsigned mode = 0666);

/// Writes a file of these pieces to `path`: readers see the old file or the whole new one. It is written to
/// PATH.tmp.PID and renamed; a link at `path` is replaced. Errors: kSystem, kExhausted.
Status write_whole_file(const std::string& path, std::span<const std::string_view> pieces, unsigned mode = 0666);

}  // namespace rondo

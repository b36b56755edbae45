// Files that the library makes under a name that others can guess: never through a link that somebody has put there,
// and whole or not at all.
//
// Thread safety: any thread, of one path one at a time.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "rondo/status.h"

namespace rondo {

/// Opens a new file for writing. What lies at `path`, a leftover or a link, is removed and not written to. -1: errno
/// says why.
int create_new_file(const std::string& path);

/// Puts a file of these bytes, one piece after the other, to `path`: readers see the old file or the whole new one. It
/// is written beside, to PATH.tmp.PID, and moved; a link at `path` is replaced. Errors: kSystem, kExhausted.
Status write_whole_file(const std::string& path, std::span<const std::string_view> pieces);

}  // namespace rondo

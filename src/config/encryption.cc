#include "config/encryption.h"

#include <mutex>

#include "config/setting_table.h"

namespace rondo {
namespace {

std::mutex mutex;
std::optional<Encryption> said;

}  // namespace

Expected<Encryption> encryption() {
  {
    const std::lock_guard lock(mutex);
    if (said) return *said;
  }
  const Expected<std::string> text = read_setting("encrypt");
  if (!text.ok()) return text.status();
  return Encryption{*text == "on"};
}

void set_encryption(std::optional<Encryption> e) {
  const std::lock_guard lock(mutex);
  said = std::move(e);
}

}  // namespace rondo

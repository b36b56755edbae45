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
  RONDO_TRY_ASSIGN(const SettingFields settings, read_process_settings());
  return Encryption{settings.encrypt};
}

void set_encryption(std::optional<Encryption> e) {
  const std::lock_guard lock(mutex);
  said = std::move(e);
}

}  // namespace rondo

#include "device/engine/program_cache.h"

#include "base/round_up.h"

namespace rondo {

Expected<ProgramCache::Shared> ProgramCache::find_or_upload(std::span<const std::byte> program) {
  const std::string_view contents(reinterpret_cast<const char*>(program.data()), program.size());
  if (const auto known = by_contents_.find(contents); known != by_contents_.end()) {
    entries_.splice(entries_.begin(), entries_, known->second);
    return entries_.front().on_device;
  }
  RONDO_TRY_ASSIGN(Shared made, take(program.size()));
  RONDO_TRY(cuda::upload(transport_.setup_stream(), reinterpret_cast<cuda::DevicePtr>(made.get()), program.data(),
                         program.size()));
  ++num_uploads_;
  if (entries_.size() == kMostPrograms) {
    by_contents_.erase(entries_.back().contents);
    entries_.pop_back();
  }
  entries_.push_front({std::string(contents), made});
  by_contents_.emplace(entries_.front().contents, entries_.begin());
  return made;
}

Expected<ProgramCache::Shared> ProgramCache::take(uint64_t bytes) {
  bytes = round_up(bytes, 4096);  // few sizes, so that memory of one program mostly fits another
  const std::byte* at = nullptr;
  {
    const std::lock_guard lock(unused_->mutex);
    if (const auto it = unused_->by_bytes.find(bytes); it != unused_->by_bytes.end()) {
      at = it->second;
      unused_->by_bytes.erase(it);
    }
  }
  if (at == nullptr) {
    RONDO_TRY_ASSIGN(at, transport_.take_memory(bytes));
  }
  return Shared(reinterpret_cast<const DeviceProgram*>(at), [unused = unused_, at, bytes](const DeviceProgram*) {
    const std::lock_guard lock(unused->mutex);
    unused->by_bytes.emplace(bytes, at);
  });
}

}  // namespace rondo

// libFuzzer: a safetensors file, or the manifest of a checkpoint, of any bytes. An accepted one is the same after it is
// written and read again.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "fsdp/manifest.h"
#include "fsdp/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace rondo::fsdp;
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  auto file = decode_safetensors(text, text.size(), "fuzz");
  if (!file.ok() && file.status().message().empty()) std::abort();
  if (file.ok()) {
    Safetensors copy = *file;
    const auto header = encode_safetensors(&copy);
    if (!header.ok()) std::abort();
    const uint64_t whole = copy.tensors.empty() ? header->size() : copy.tensors.back().end;
    const auto again = decode_safetensors(*header, whole, "again");
    if (!again.ok() || again->metadata != file->metadata) std::abort();
    if (again->tensors != copy.tensors) std::abort();
  }
  const auto manifest = decode_manifest(std::string(text), "fuzz");
  if (!manifest.ok()) {
    if (manifest.status().message().empty()) std::abort();
    return 0;
  }
  const std::string once = encode_manifest(*manifest);
  const auto again = decode_manifest(once, "again");
  if (!again.ok() || encode_manifest(*again) != once) std::abort();
  return 0;
}

// libFuzzer: a description of a machine's devices, of any bytes, with rondo's choices for it.
#include <cstdlib>
#include <string_view>

#include "topology/describe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace rondo;
  const auto scene = parse_scene(std::string_view(reinterpret_cast<const char*>(data), bytes));
  if (!scene.ok()) {
    if (scene.status().message().empty()) std::abort();
    return 0;
  }
  constexpr size_t kMany = 64;  // every pair is checked
  if (scene->machine.devices.size() > kMany || scene->ranks.size() > kMany) return 0;
  const auto again = parse_scene(scene_text(*scene));
  if (!again.ok() || scene_text(*again) != scene_text(*scene)) std::abort();
  if (describe_devices(scene->machine).empty() || describe_links(scene->machine).empty()) std::abort();
  for (const char* level : {"", "nvl", "sys"})
    if (describe_choices(*scene, parse_preferences(level, "")).empty()) std::abort();
  return 0;
}

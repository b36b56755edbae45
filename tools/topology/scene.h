// A text that describes a machine's GPUs, their links, and the ranks on them.
//
// The text has lines "word key=value ...", in this order; '#' begins a comment:
//
//   machine  host=NAME cpu=intel|amd|arm|other driver=12.4 nvml=550.54.15|none iommu=on|off|unknown acs=on|off|unknown
//   device   0 name="NVIDIA H100" uuid=GPU-... pci=0000:1b:00.0 capability=9.0 multiprocessors=132 memory_gib=80
//            memory_gbps=3352 pcie=gen5x16 numa=0 switch_links=18 [mig=yes]          (one line)
//   pair     0 1 access=yes|no atomics=yes|no nvlinks=4 path=pix [refused="why"]
//            both directions; * is every device; a later line adds to earlier lines of a pair
//   rank     host=0 process=1 device=0 [container=1]
//            optional: the communicating ranks
//
// Missing values have the defaults of the structs of topology/machine.h. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.h"
#include "topology/machine.h"

namespace rondo {

struct GpuScene {
  GpuMachine machine;
  std::vector<RankPlace> ranks;  // empty: one process per device
};

/// Errors: kInvalidArgument naming line and word.
Expected<GpuScene> parse_scene(std::string_view text);
/// parse_scene(scene_text(s)) is s.
std::string scene_text(const GpuScene& scene);

}  // namespace rondo

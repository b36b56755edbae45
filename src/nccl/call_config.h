// A caller's ncclCollConfig_t for one collective: an algorithm, thread blocks, rondo's promises, a tag.
// Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/communicator_impl.h"
#include "nccl/abi.h"
#include "rondo/status.h"

namespace rondo::nccl {

struct CallConfig {
  std::string selection;        // algSelection; empty: the planner's choice
  bool force_selection = true;  // an error if no selected algorithm fits
  std::optional<Dtype> accumulator;
  uint32_t promises = 0;  // RONDO_PROMISE_*
  uint64_t tag = 0;
  int min_blocks = 0;  // minCTAs, maxCTAs; 0: the communicator's
  int max_blocks = 0;
  cudaEvent_t launch_event = nullptr;  // launchCompletionEvent; host memory has no launch
};

/// Errors: kInvalidArgument with the field; kUnsupported (an option that host memory cannot serve).
Expected<CallConfig> read_call_config(const ncclCollConfig_t& config);

/// The rondo algorithms of `collective` in a selection: comma-separated names of NCCL ("Ring", "TREE_LL") or rondo; a
/// leading ^ excludes them. NCCL names without an equivalent select none. Errors: kInvalidArgument (unknown name).
Expected<std::vector<std::string>> selected_algorithms(const std::string& selection, Collective collective);

/// The selected algorithm with the least forecast, equal on all ranks. nullptr means a free choice: nothing is
/// selected, or nothing fits and force_selection is off. Errors: kInvalidArgument.
Expected<const Algorithm*> choose_algorithm(CommunicatorImpl& impl, const CallConfig& config, CallShape shape);

}  // namespace rondo::nccl

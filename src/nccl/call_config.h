// What a caller's ncclCollConfig_t asks of one collective: an algorithm, thread blocks, rondo's promises, a tag.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nccl/abi.h"
#include "rondo/communicator.h"
#include "rondo/status.h"

namespace rondo::nccl {

struct CallConfig {
  std::string selection;        // algSelection; empty: the planner's choice
  bool force_selection = true;  // a selection that leaves nothing is an error
  std::optional<Dtype> accumulator;
  uint32_t promises = 0;  // RONDO_PROMISE_*
  uint64_t tag = 0;
  int min_blocks = 0;  // minCTAs, maxCTAs; 0: the communicator's
  int max_blocks = 0;
  cudaEvent_t launch_event = nullptr;  // launchCompletionEvent; host memory has no launch that could be complete
};

/// Errors: kInvalidArgument naming the field; kUnsupported (an option that host memory cannot serve).
Expected<CallConfig> read_call_config(const ncclCollConfig_t& config);

/// The rondo algorithms of `collective` that a selection leaves: names separated by commas, NCCL's ("Ring", "TREE_LL")
/// or rondo's own; with ^ in front, all but these. Names of NCCL's that rondo has no equivalent for leave none. Errors:
/// kInvalidArgument (a name that nobody knows).
Expected<std::vector<std::string>> selected_algorithms(const std::string& selection, Collective collective);

/// Which of them the call shall run with: the one with the least forecast, so equal on all ranks. Empty: a free choice,
/// where nothing is selected, or where nothing fits and force_selection is off. Errors: kInvalidArgument.
Expected<std::string> choose_algorithm(Communicator& comm, const CallConfig& config, Collective collective,
                                       uint64_t count_elems, Dtype dtype, Op op, Rank root, const CallOptions& options);

}  // namespace rondo::nccl

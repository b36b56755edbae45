// Reads a model's shapes from JSON for `rondo fsdp plan`:
//   {"has_root": true,
//    "units": [{"name": "root", "tensors": [{"name": "embedding", "shape": [50257, 768]}]},
//              {"name": "block", "repeat": 12, "tensors": [{"name": "w", "shape": [768, 768], "dtype": "float",
//                                                           "trainable": true, "rows_together": 1, "tied_to": ""}]}]}
//
// dtype and the keys after it are optional. A unit with repeat n becomes n units, name0 to name<n-1>.
#pragma once

#include <string>

#include "rondo/fsdp/plan.h"

namespace rondo::tools {

/// Errors: kInvalidArgument with the place (units[1].tensors[0].shape) and the expected value.
Expected<fsdp::Model> read_model(const std::string& json);

}  // namespace rondo::tools

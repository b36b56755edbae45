// What main.cc does with the parts: each function runs on every rank, compares them with the whole on one process, and
// lets rank 0 print what came out. A difference is an error.
//
// Thread safety: one thread for each rank.
#pragma once

#include <string>

#include "group.h"

namespace parallel {

/// Columns then rows, one all-reduce; and the split that does not work.
rondo::Status check_mlp(Group& group);
/// Heads split.
rondo::Status check_attention(Group& group);
/// Words split: lookup, softmax, loss, with backward.
rondo::Status check_vocabulary(Group& group);
/// The printed softmax of 5 x 8 (printed.h).
rondo::Status check_printed_softmax(Group& group);
/// A layer, tensor parallel and sequence parallel: equal results and bytes, fewer activations. trace: a folder for what
/// both have really sent, each on a communicator of its own; empty: none.
rondo::Status check_layer(Group& group, const std::string& trace);

}  // namespace parallel

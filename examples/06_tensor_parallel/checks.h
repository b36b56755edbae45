// The checks of main.cc. Each function runs on every rank and compares the parts with the whole on one process; rank 0
// prints the result. A difference is an error.
//
// Thread safety: one thread for each rank.
#pragma once

#include <string>

#include "group.h"

namespace parallel {

/// MLP: columns then rows, one all-reduce; and the split that does not work.
rondo::Status check_mlp(Group& group);
/// Attention, split by heads.
rondo::Status check_attention(Group& group);
/// Vocabulary, split by words: lookup, softmax, loss, with backward.
rondo::Status check_vocabulary(Group& group);
/// The printed softmax of 5 x 8 (printed.h).
rondo::Status check_printed_softmax(Group& group);
/// A layer, tensor parallel and sequence parallel: equal results and bytes, fewer activations. Each uses its own
/// communicator. trace: a folder for traces of both; empty: none.
rondo::Status check_layer(Group& group, const std::string& trace);

}  // namespace parallel

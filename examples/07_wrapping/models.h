// The three models of this example, each trained sharded and compared with one process.
//
// Thread safety: one at a time.
#pragma once

#include <torch/nn/module.h>

/// nranks: 1 or more. Print what they find; false where something is not as it should be.
bool run_linears(int nranks);
bool run_shared_embedding(int nranks);
bool run_digits(int nranks);

/// The same values on every rank and in one process, whatever other threads do: uniform, of the usual size for weights,
/// from the number of the parameter. Vectors keep what they have where that is constant (norms).
void fill(torch::nn::Module& module);

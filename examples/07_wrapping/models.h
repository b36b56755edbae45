// The three models of this example, each trained sharded and compared with one process.
//
// Thread safety: one at a time.
#pragma once

#include <torch/nn/module.h>

/// nranks: 1 or more. Print their results. False: a check failed.
bool run_linears(int nranks);
bool run_shared_embedding(int nranks);
bool run_digits(int nranks);

/// Sets equal values on every rank and in one process, whatever other threads do: uniform, with the usual range of
/// weights, seeded by the parameter's number. Constant vectors (norms) keep their values.
void fill(torch::nn::Module& module);

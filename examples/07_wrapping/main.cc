// Units (the parts of a model that are gathered together) of three models: a hundred linear layers, an encoder and a
// decoder that share an embedding, a convolutional network with BatchNorm (README.md). Each is trained sharded and by
// one process. The exit status is 1 if they differ or memory is not as planned.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>

#include "models.h"

void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  uint64_t seed = 0;
  for (auto& p : module.parameters()) {
    ++seed;
    if (p.dim() == 1 && p.min().item<float>() == p.max().item<float>()) continue;
    const double size = 1 / std::sqrt(static_cast<double>(p.dim() == 1 ? p.numel() : p.numel() / p.size(0)));
    p.copy_((torch::rand(p.sizes(), at::detail::createCPUGenerator(seed)) * 2 - 1) * size);
  }
}

int main(int argc, char** argv) {
  int nranks = 2;
  std::vector<std::string> names;
  const std::map<std::string, bool (*)(int)> models{
      {"digits", run_digits}, {"embedding", run_shared_embedding}, {"linears", run_linears}};
  CLI::App app{"Trains three models sharded in several ways, and compares each with one process"};
  app.add_option("models", names, "linears, embedding, digits (default: all)")->check(CLI::IsMember(models));
  app.add_option("--ranks", nranks, "ranks, as threads")->check(CLI::Range(1, 8))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (names.empty()) names = {"linears", "embedding", "digits"};
  at::set_num_threads(1);
  bool all_well = true;
  try {
    for (const std::string& name : names) all_well = models.at(name)(nranks) && all_well;
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "%s\n", e.what()), 1;
  }
  std::printf("%s\n", all_well ? "all as one process" : "FAILED");
  return all_well ? 0 : 1;
}

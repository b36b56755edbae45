// `rondo fsdp checkpoint`: prints the contents of a checkpoint, verifies its checksums, and writes the whole model as
// one file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>

#include "commands.h"
#include "rondo/fsdp/checkpoint.h"

namespace rondo::tools {
namespace {

struct CheckpointOptions {
  std::string path, full;
  bool verify = false, rows = false;
};

[[noreturn]] void fail_fsdp_checkpoint(const Status& why) {
  fmt::print(stderr, "rondo fsdp checkpoint: {}\n", why.message());
  throw CLI::RuntimeError(1);
}

uint64_t bytes_of(const std::map<std::string, fsdp::StoredTensor>& tensors) {
  uint64_t bytes = 0;
  for (const auto& [name, t] : tensors) {
    uint64_t n = dtype_bytes(t.dtype);
    for (const uint64_t d : t.shape) n *= d;
    bytes += n;
  }
  return bytes;
}

void print_tensors(const char* title, const fsdp::Contents& c, const std::map<std::string, fsdp::StoredTensor>& tensors,
                   bool rows) {
  if (tensors.empty()) return;
  fmt::print("\n{}\n", title);
  size_t width = 6;
  for (const auto& [name, t] : tensors) width = std::max(width, name.size());
  for (const auto& [name, t] : tensors) {
    fmt::print("  {:<{}}  {:<9} {:<18}", name, width, dtype_name(t.dtype),
               fmt::format("[{}]", fmt::join(t.shape, ", ")));
    if (!rows) {
      fmt::print(" in {} {}\n", t.parts.size(), t.parts.size() == 1 ? "file" : "files");
      continue;
    }
    fmt::print("\n");
    for (const fsdp::StoredRows& p : t.parts)
      fmt::print("  {:<{}}    rows {} .. {} in {}\n", "", width, p.first_row, p.first_row + p.num_rows,
                 c.files[p.file].path);
  }
}

void print(const fsdp::Contents& c, const CheckpointOptions& o) {
  if (c.nranks > 0) fmt::print("{}: saved by {} {}\n", o.path, c.nranks, c.nranks == 1 ? "rank" : "ranks");
  else fmt::print("{}: parameters, not saved by rondo\n", o.path);
  fmt::print("  {} parameters, {} bytes; ", c.parameters.size(), bytes_of(c.parameters));
  if (c.state_names.empty() && c.optimizer_steps == 0) fmt::print("no optimizer state\n");
  else
    fmt::print("optimizer: {} steps, {} ({} bytes)\n", c.optimizer_steps, fmt::join(c.state_names, ", "),
               bytes_of(c.states));
  fmt::print("  items: {}\n\nfiles\n", c.items);
  for (const fsdp::StoredFile& f : c.files)
    fmt::print("  {}  {} bytes{}\n", f.path, f.size_bytes,
               f.sha256.empty() ? "" : "  sha256 " + f.sha256.substr(0, 16));
  print_tensors("parameters", c, c.parameters, o.rows);
  for (const auto& [name, partner] : c.ties) fmt::print("  {} is {}\n", name, partner);
  if (o.rows) print_tensors("optimizer", c, c.states, o.rows);
}

void run(const CheckpointOptions& o) {
  const auto contents = fsdp::inspect(o.path);
  if (!contents.ok()) fail_fsdp_checkpoint(contents.status());
  print(*contents, o);
  if (o.verify) {
    if (const Status s = fsdp::verify(*contents); !s.ok()) fail_fsdp_checkpoint(s);
    fmt::print("\nall {} files have the bytes that were written\n", contents->files.size());
  }
  if (!o.full.empty()) {
    if (const Status s = fsdp::consolidate(*contents, o.full); !s.ok()) fail_fsdp_checkpoint(s);
    fmt::print("\n{}: {} parameters\n", o.full, contents->parameters.size());
  }
}

}  // namespace

void add_fsdp_checkpoint_command(CLI::App& fsdp) {
  CLI::App* command =
      fsdp.add_subcommand("checkpoint", "Prints the contents of a checkpoint, checks it, and writes it as one file");
  command->footer(
      "Reads checkpoints of rondo, and parameters only: a .safetensors file, a Hugging Face folder, row shards "
      "of\n"
      "PyTorch's.\n\n"
      "Examples:\n"
      "  rondo fsdp checkpoint run/step100 --verify\n"
      "  rondo fsdp checkpoint run/step100 --full model.safetensors\n");
  auto o = std::make_shared<CheckpointOptions>();
  command->add_option("path", o->path, "Names the checkpoint's folder, or a file")->required();
  command->add_flag("--rows", o->rows, "Prints the rows of every tensor in each file");
  command->add_flag("--verify", o->verify, "Compares sizes and SHA-256 with the recorded ones");
  command->add_option("--full", o->full, "Writes all parameters to this one file");
  command->callback([o] { run(*o); });
}

}  // namespace rondo::tools

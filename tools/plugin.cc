#include "plugin.h"

#include <dlfcn.h>

#include <cstdio>

#include "rondo/algorithm.h"
#include "schedule/own_algorithms.h"

namespace rondo::tools {
namespace {

using Register = void (*)(Status*);

/// Returns the error, or an empty string. The file stays open because its functions are called later.
std::string load_one(const std::string& file) {
  // dlopen searches the system's libraries for a name without a slash.
  const std::string path = file.find('/') == std::string::npos ? "./" + file : file;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return std::string("cannot be loaded: ") + dlerror();
  const auto entry = reinterpret_cast<Register>(dlsym(handle, "rondo_register_algorithms"));
  if (entry == nullptr) return "exports no function rondo_register_algorithms (rondo/algorithm.h)";
  const size_t before = all_algorithms().size();
  Status status;
  entry(&status);
  if (!status.ok()) return status.to_string() + "\n(rondo explain --unproven draws an algorithm up to its first error)";
  return all_algorithms().size() > before ? "" : "registers no algorithm";
}

}  // namespace

void Plugins::add_to(CLI::App& command) {
  command.add_option("--plugin", files_,
                     "Registers the algorithms of this shared object (examples/05_own_algorithm)")
      ->type_name("FILE")
      ->allow_extra_args(false)  // one file per option; further arguments belong to the command
      ->take_all();
}

void Plugins::load(std::string_view command, bool unproven) const {
  if (unproven) register_without_proof();
  for (const std::string& file : files_) {
    const std::string wrong = load_one(file);
    if (wrong.empty()) continue;
    std::fprintf(stderr, "rondo %s: --plugin %s: %s\n", std::string(command).c_str(), file.c_str(), wrong.c_str());
    throw CLI::RuntimeError(2);
  }
}

}  // namespace rondo::tools

// libFuzzer: a trace file of any bytes. An accepted file can be exported, once and twice, and the exports are JSON.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "trace/export.h"
#include "trace/read_trace.h"
#include "trace/timeline.h"

namespace {

using Export = rondo::Expected<rondo::ExportReport> (*)(const std::vector<rondo::TraceFile>&, std::FILE*,
                                                        const rondo::TraceSelection&);

std::string text_of(Export exporter, const std::vector<rondo::TraceFile>& files) {
  char* text = nullptr;
  size_t bytes = 0;
  std::FILE* out = open_memstream(&text, &bytes);
  if (out == nullptr || !exporter(files, out, {}).ok()) std::abort();
  std::fclose(out);
  std::string result(text, bytes);
  std::free(text);
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace rondo;
  auto read = decode_trace({reinterpret_cast<const char*>(data), bytes});
  if (!read.ok()) {
    if (read.status().message().empty()) std::abort();
    return 0;
  }
  std::vector<TraceFile> files = {*read};
  for (int round = 0; round < 2; ++round) {
    if (!nlohmann::json::accept(text_of(export_chrome, files))) std::abort();
    std::istringstream lines(text_of(export_json_lines, files));
    for (std::string line; std::getline(lines, line);)
      if (!nlohmann::json::accept(line)) std::abort();
    files.push_back(*read);
    files.back().identity.communicator += 1;
    files.back().host += "2";
  }
  return 0;
}

#include "trace/trace_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/codec.h"
#include "base/error.h"
#include "base/new_file.h"
#include "base/read_file.h"

namespace rondo {

std::string this_host() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return fmt::format("{} {}", name, first_line_of("/proc/sys/kernel/random/boot_id"));
}

std::string encode_trace_head(const TraceFile& head, uint64_t num_records) {
  TraceLayout layout{{}, sizeof(StepRecord), 0, num_records};
  std::memcpy(layout.magic, kTraceMagic.data(), sizeof layout.magic);
  Encoder e;
  header_fields(e, head, layout);
  e(head.host, head.why, head.plans, head.spans, head.spans_lost);
  return e.take();
}

Status write_file(const std::string& path, std::span<const std::string_view> pieces) {
  std::error_code error;
  if (const auto directory = std::filesystem::path(path).parent_path(); !directory.empty()) {
    std::filesystem::create_directories(directory, error);
    if (error) return make_error(StatusCode::kSystem, "{}: cannot be created: {}", directory.string(), error.message());
  }
  return write_whole_file(path, pieces);
}

}  // namespace rondo

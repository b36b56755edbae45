// libFuzzer: a calibration file of any bytes. An accepted file can be written and read again.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "plan/calibration.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace rondo;
  const auto read = parse_calibration({reinterpret_cast<const char*>(data), bytes});
  if (!read.ok()) {
    if (read.status().message().empty()) std::abort();
    return 0;
  }
  if (read->version != kCalibrationVersion) return 0;
  const std::string text = format_calibration(*read);
  const auto again = parse_calibration(text);
  // The date is informative and may be missing; format_calibration does not write that.
  if (!again.ok() ? !read->date.empty() : format_calibration(*again) != text) std::abort();
  return 0;
}

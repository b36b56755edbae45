#include "topology/caches.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

namespace rondo {
namespace {

namespace fs = std::filesystem;

std::string word_in(const fs::path& file) {
  std::ifstream in(file);
  std::string word;
  in >> word;
  return word;
}

/// The kernel's "32768K"; 0 if it is not a size.
uint64_t parse_size(const std::string& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return 0;
  const std::string unit(end, text.data() + text.size());
  if (unit.empty()) return number;
  return unit == "K" ? number << 10 : unit == "M" ? number << 20 : 0;
}

/// The largest data or unified cache of each level.
std::map<int, uint64_t> largest_by_level(const std::string& cpus) {
  std::map<int, uint64_t> largest;
  std::error_code error;
  for (fs::directory_iterator cpu(cpus, error), end; !error && cpu != end; cpu.increment(error)) {
    const std::string name = cpu->path().filename();
    if (!name.starts_with("cpu") || name.find_first_not_of("0123456789", 3) != std::string::npos) continue;
    for (int index = 0;; ++index) {
      const fs::path cache = cpu->path() / "cache" / ("index" + std::to_string(index));
      const std::string type = word_in(cache / "type");
      if (type.empty()) break;
      const uint64_t bytes = parse_size(word_in(cache / "size"));
      if (type == "Instruction" || bytes == 0) continue;
      uint64_t& most = largest[static_cast<int>(parse_size(word_in(cache / "level")))];
      most = std::max(most, bytes);
    }
  }
  return largest;
}

}  // namespace

uint64_t data_cache_bytes(int level, const std::string& cpus) {
  const auto largest = largest_by_level(cpus);
  const auto found = largest.find(level);
  return found == largest.end() ? 0 : found->second;
}

uint64_t last_level_cache_bytes(const std::string& cpus) {
  const auto largest = largest_by_level(cpus);
  return largest.empty() ? 0 : largest.rbegin()->second;
}

}  // namespace rondo

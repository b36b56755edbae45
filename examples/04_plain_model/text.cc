#include "text.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

namespace plain {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path, error))
    if (entry.is_regular_file(error) && !entry.is_symlink(error)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

rondo::Expected<Text> Text::load(const std::string& path, size_t least) {
  std::string bytes;
  bool any = false;
  for (const fs::path& name : files_of(path)) {
    std::ifstream file(name, std::ios::binary);
    any = any || file.is_open();
    bytes.append(std::istreambuf_iterator<char>(file), {});
  }
  if (!any)
    return rondo::Status(rondo::StatusCode::kSystem, "'" + path +
                                                         "' has no readable text: name a file or a "
                                                         "folder of text with --text");
  if (bytes.size() < least)
    return rondo::Status(rondo::StatusCode::kInvalidArgument, "'" + path + "' has " + std::to_string(bytes.size()) +
                                                                  " characters; --length and one more " + "need " +
                                                                  std::to_string(least));
  Text text;
  std::array<int, 256> id{};
  for (const char c : bytes) id[static_cast<uint8_t>(c)] = 1;
  for (size_t c = 0; c < id.size(); ++c)
    if (id[c] != 0) id[c] = static_cast<int>(text.alphabet.size()), text.alphabet += static_cast<char>(c);
  text.ids.reserve(bytes.size());
  for (const char c : bytes) text.ids.push_back(id[static_cast<uint8_t>(c)]);
  return text;
}

MicroBatch cut(const Text& text, uint64_t number, size_t batch, size_t length) {
  std::mt19937_64 random(number);
  MicroBatch m;
  for (size_t b = 0; b < batch; ++b) {
    const size_t first = random() % (text.ids.size() - length);
    const auto from = text.ids.begin() + static_cast<std::ptrdiff_t>(first),
               to = from + static_cast<std::ptrdiff_t>(length);
    m.tokens.insert(m.tokens.end(), from, to);
    m.targets.insert(m.targets.end(), from + 1, to + 1);
  }
  return m;
}

}  // namespace plain

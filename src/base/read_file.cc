#include "base/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/fd.h"

namespace rondo {

std::optional<std::string> read_file(const std::string& path, size_t most_bytes) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  constexpr size_t kStep = 4096;
  std::string text;
  while (text.size() < most_bytes) {
    const size_t had = text.size();
    text.resize(std::min(most_bytes, had + kStep));
    const ssize_t n = ::read(fd.get(), text.data() + had, text.size() - had);
    text.resize(had + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n < 0 && errno != EINTR) return std::nullopt;
    if (n == 0) break;
  }
  return text;
}

std::string first_line_of(const std::string& path) {
  const std::string text = read_file(path).value_or("");
  return text.substr(0, text.find('\n'));
}

}  // namespace rondo

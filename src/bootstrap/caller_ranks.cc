#include "bootstrap/caller_ranks.h"

#include <cctype>
#include <charconv>

namespace rondo {

std::string in_callers_ranks(std::string_view text, const std::vector<Rank>& callers) {
  std::string result;
  size_t done = 0;
  // Appends the caller's number of the rank at `at`. Returns false if there is no number.
  auto take_number = [&](size_t at) {
    size_t rank = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), rank);
    if (error != std::errc() || rank >= callers.size()) return false;
    result.append(text.substr(done, at - done)).append(std::to_string(callers[rank]));
    done = static_cast<size_t>(end - text.data());
    return true;
  };
  for (size_t at = text.find("rank"); at != std::string_view::npos; at = text.find("rank", at + 1)) {
    if (at != 0 && std::isalnum(static_cast<unsigned char>(text[at - 1]))) continue;
    const std::string_view after = text.substr(at + 4);
    const bool one = after.starts_with(" "), many = after.starts_with("s ");
    if ((!one && !many) || !take_number(at + (one ? 5 : 6))) continue;
    while (many && text.substr(done).starts_with(", ") && take_number(done + 2)) {
    }
  }
  return result.append(text.substr(done));
}

Status in_callers_ranks(const Status& status, const std::vector<Rank>& callers) {
  return status.ok() ? status : Status(status.code(), in_callers_ranks(status.message(), callers));
}

}  // namespace rondo

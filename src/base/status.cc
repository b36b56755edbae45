#include "rondo/status.h"

#include <cstdio>
#include <cstdlib>

namespace rondo {

std::string_view status_text(StatusCode code) {
  switch (code) {
#define RONDO_X(name, value, text, remedy) \
  case StatusCode::name:                   \
    return text;
    RONDO_STATUS_CODES(RONDO_X)
#undef RONDO_X
  }
  return "unknown status";
}

std::string_view status_remedy(StatusCode code) {
  switch (code) {
#define RONDO_X(name, value, text, remedy) \
  case StatusCode::name:                   \
    return remedy;
    RONDO_STATUS_CODES(RONDO_X)
#undef RONDO_X
  }
  return "";
}

std::string Status::to_string() const {
  std::string s(status_text(code()));
  if (ok()) return s;
  s.append(": ").append(message());
  if (const std::string_view remedy = status_remedy(code()); !remedy.empty()) s.append(" [").append(remedy).append("]");
  return s;
}

void internal::no_value(const Status& status) {
  std::fprintf(stderr, "rondo: the caller used the value of a failed call without checking ok(): %s\n",
               status.to_string().c_str());
  std::abort();
}

}  // namespace rondo

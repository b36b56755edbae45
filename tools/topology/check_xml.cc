// Checks the structure of an XML text line by line, because hwloc refuses a file without the position of the error.
// Declared in host_source.h.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "topology/host_source.h"

namespace rondo {
namespace {

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  Status run() {
    skip_blanks();
    if (at_ == text_.size()) return wrong("it is empty");
    while (at_ < text_.size()) {
      if (text_[at_] != '<') {
        if (open_.empty() && !is_blank(text_[at_])) return wrong("text is outside of the elements: this is not XML");
        step();
        continue;
      }
      RONDO_TRY(tag());
    }
    if (!open_.empty())
      return wrong(fmt::format("the text ends inside <{}>, which line {} opens", open_.back().name, open_.back().line));
    return root_seen_ ? Status() : wrong("there is no element");
  }

 private:
  struct Open {
    std::string name;
    int line;
  };
  static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
  Status wrong(std::string_view what) const {
    return Status(StatusCode::kInvalidArgument, fmt::format("line {}: {}", line_, what));
  }
  void step() { line_ += text_[at_++] == '\n'; }
  void skip_blanks() {
    while (at_ < text_.size() && is_blank(text_[at_])) step();
  }
  bool skip_past(std::string_view end) {
    const size_t found = text_.find(end, at_);
    if (found == std::string_view::npos) return false;
    while (at_ < found + end.size()) step();
    return true;
  }
  std::string name() {
    const size_t begin = at_;
    while (at_ < text_.size() && !is_blank(text_[at_]) &&
           std::string_view("<>/=\"'").find(text_[at_]) == std::string_view::npos)
      ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  Status tag() {
    if (text_.substr(at_).starts_with("<!--")) return skip_past("-->") ? Status() : wrong("a comment is not closed");
    if (text_.substr(at_).starts_with("<?")) return skip_past("?>") ? Status() : wrong("<? is not closed");
    if (text_.substr(at_).starts_with("<!")) return skip_past(">") ? Status() : wrong("<! is not closed");
    ++at_;
    const bool closes = at_ < text_.size() && text_[at_] == '/';
    if (closes) ++at_;
    const std::string element = name();
    if (element.empty()) return wrong("< without the name of an element");
    if (closes) return close(element);
    if (open_.empty()) {
      if (root_seen_) return wrong(fmt::format("<{}> follows the outermost element", element));
      if (element != "topology")
        return wrong(fmt::format("the outermost element is <{}>; hwloc's is <topology>", element));
      root_seen_ = true;
    }
    const int opened = line_;
    for (;;) {
      skip_blanks();
      if (at_ == text_.size()) return wrong(fmt::format("the text ends inside the tag <{}>", element));
      if (text_[at_] == '>') break;
      if (text_.substr(at_).starts_with("/>")) {
        at_ += 2;
        return {};
      }
      RONDO_TRY(attribute(element));
    }
    ++at_;
    open_.push_back({element, opened});
    return {};
  }

  Status close(const std::string& element) {
    skip_blanks();
    if (at_ == text_.size() || text_[at_] != '>') return wrong(fmt::format("</{} is not closed", element));
    ++at_;
    if (open_.empty()) return wrong(fmt::format("</{}> closes an element that is not open", element));
    if (open_.back().name != element)
      return wrong(
          fmt::format("</{}> closes <{}>, which line {} opens", element, open_.back().name, open_.back().line));
    open_.pop_back();
    return {};
  }

  Status attribute(const std::string& element) {
    const std::string key = name();
    if (key.empty()) return wrong(fmt::format("<{}> has a stray '{}'", element, text_[at_]));
    skip_blanks();
    if (at_ == text_.size() || text_[at_] != '=') return wrong(fmt::format("{} of <{}> has no value", key, element));
    ++at_;
    skip_blanks();
    if (at_ == text_.size() || (text_[at_] != '"' && text_[at_] != '\''))
      return wrong(fmt::format("the value of {} of <{}> has no quotes", key, element));
    const char quote = text_[at_++];
    const Status unclosed = wrong(fmt::format("the value of {} of <{}> is not closed", key, element));
    const size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos || text_.substr(at_, end - at_).find('<') != std::string_view::npos)
      return unclosed;
    return skip_past(std::string_view(&quote, 1)) ? Status() : unclosed;
  }

  const std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  bool root_seen_ = false;
  std::vector<Open> open_;
};

}  // namespace

Status check_xml(std::string_view text) { return Scanner(text).run(); }

}  // namespace rondo

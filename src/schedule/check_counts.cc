#include "schedule/check_counts.h"

#include <fmt/format.h>

#include "schedule/check_value.h"

namespace rondo::check {
namespace {

/// For all_to_all: the data from rank `from` to rank `to`. Otherwise both are the part.
struct Cell {
  size_t from, to;
};

class Patterns {
 public:
  Patterns(Collective collective, int nranks)
      : nranks_(static_cast<size_t>(nranks)),
        matrix_(collective_traits(collective).in_parts == Parts::kEach &&
                collective_traits(collective).out_parts == Parts::kEach),
        cells_(matrix_ ? nranks_ * nranks_ : nranks_) {}

  std::vector<Counts> all() {
    if (cells_ <= 4) return every_combination();
    const size_t some = nranks_ / 2, last = nranks_ - 1;
    add("rank {} has nothing", some, [=](Cell c) { return c.from == some || c.to == some ? 0 : 2; });
    add("part {} is a giant among ones", last,
        [=](Cell c) { return c.to == last && c.from == last ? kLongestPartElems : 1; });
    ragged(1);
    if (matrix_) {
      add("rank {} gives nothing", some, [=](Cell c) { return c.from == some ? 0 : 1; });
      add("rank {} gets nothing", some, [=](Cell c) { return c.to == some ? 0 : 1; });
      add("only rank 0 has something, for rank {}", last,
          [=](Cell c) { return c.from == 0 && c.to == last ? kLongestPartElems : 0; });
    } else {
      add("only part {} is not empty", last, [=](Cell c) { return c.to == last ? kLongestPartElems : 0; });
    }
    if (nranks_ > 16) return std::move(patterns_);
    add("only part {} is not empty", size_t{0}, [=](Cell c) { return c.to == 0 ? 3 : 0; });
    add("sparse", size_t{0}, [](Cell c) { return (c.from + c.to) % 4 == 2 ? 3 : 0; });
    for (uint64_t seed = 2; seed <= 6; ++seed) ragged(seed);
    return std::move(patterns_);
  }

 private:
  template <class F>
  void add(std::string_view name, uint64_t number, F count) {
    Counts p{fmt::format(fmt::runtime(name), number), {}};
    for (size_t k = 0; k < cells_; ++k)
      p.part_elems.push_back(static_cast<uint64_t>(count(matrix_ ? Cell{k / nranks_, k % nranks_} : Cell{k, k})));
    patterns_.push_back(std::move(p));
  }

  void ragged(uint64_t seed) {
    add("ragged, seed {}", seed, [=, this](Cell c) { return mix(seed << 32 | (c.from * nranks_ + c.to + 1)) % 4; });
  }

  std::vector<Counts> every_combination() {
    constexpr uint64_t kChoices[] = {0, 1, 3};
    uint64_t combinations = 1;
    for (size_t k = 0; k < cells_; ++k) combinations *= 3;
    for (uint64_t number = 0; number < combinations; ++number) {
      uint64_t rest = number;
      Counts p{"", {}};
      for (size_t k = 0; k < cells_; ++k, rest /= 3) {
        p.part_elems.push_back(kChoices[rest % 3]);
        p.name += fmt::format("{}{}", k == 0 ? "" : " ", p.part_elems.back());
      }
      patterns_.push_back(std::move(p));
    }
    return std::move(patterns_);
  }

  const size_t nranks_;
  const bool matrix_;
  const size_t cells_;
  std::vector<Counts> patterns_;
};

}  // namespace

std::vector<Counts> count_patterns(Collective collective, int nranks) { return Patterns(collective, nranks).all(); }

}  // namespace rondo::check

#include "rondo/host_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

namespace rondo {
namespace {

constexpr int kMostRanks = 65535;

template <class Key>
std::vector<int32_t> numbered(const std::vector<Key>& keys) {
  std::map<Key, int32_t> known;
  std::vector<int32_t> hosts;
  for (const Key& key : keys) hosts.push_back(known.try_emplace(key, static_cast<int32_t>(known.size())).first->second);
  if (known.size() == 1) hosts.clear();
  return hosts;
}

std::optional<std::vector<int>> numbers(std::string_view text, char separator) {
  std::vector<int> all;
  for (;;) {
    const size_t end = std::min(text.find(separator), text.size());
    int value = 0;
    const auto [at, error] = std::from_chars(text.data(), text.data() + end, value);
    if (error != std::errc() || at != text.data() + end || value < 0 || value > kMostRanks) return std::nullopt;
    all.push_back(value);
    if (end == text.size()) return all;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

void HostLayout::number() {
  if (one_host()) return;
  const int32_t hosts = *std::max_element(host_.begin(), host_.end()) + 1;
  first_.assign(static_cast<size_t>(hosts) + 1, 0);
  for (const int32_t h : host_) ++first_[static_cast<size_t>(h) + 1];
  for (size_t h = 1; h < first_.size(); ++h) first_[h] += first_[h - 1];
  std::vector<int32_t> next(first_.begin(), first_.end() - 1);
  ranks_.resize(host_.size());
  for (Rank r = 0; r < nranks_; ++r) {
    position_.push_back(next[static_cast<size_t>(host(r))]++);
    ranks_[static_cast<size_t>(position_.back())] = r;
  }
}

HostLayout HostLayout::of(const std::vector<std::string>& keys) {
  HostLayout layout(static_cast<int>(keys.size()));
  layout.host_ = numbered(keys);
  layout.number();
  return layout;
}

HostLayout HostLayout::of(const std::vector<int>& keys) {
  HostLayout layout(static_cast<int>(keys.size()));
  layout.host_ = numbered(keys);
  layout.number();
  return layout;
}

HostLayout HostLayout::uniform(int num_hosts, int ranks_each) {
  std::vector<int> keys;
  for (int r = 0; r < num_hosts * ranks_each; ++r) keys.push_back(r / ranks_each);
  return of(keys);
}

Expected<HostLayout> HostLayout::parse(std::string_view text) {
  const Status wrong(StatusCode::kInvalidArgument,
                     fmt::format("\"{}\" is not a host layout: 2x4 is two hosts of four ranks, 3+2 hosts of three and "
                                 "two, 0,1,0,1 the host of each rank",
                                 text));
  if (text.find(',') != text.npos) {
    const auto hosts = numbers(text, ',');
    return hosts && hosts->size() <= kMostRanks ? Expected<HostLayout>(of(*hosts)) : wrong;
  }
  if (const size_t times = text.find('x'); times != text.npos) {
    const auto both = numbers(text, 'x');
    if (!both || both->size() != 2 || (*both)[0] < 1 || (*both)[1] < 1 || (*both)[0] > kMostRanks / (*both)[1])
      return wrong;
    return uniform((*both)[0], (*both)[1]);
  }
  const auto sizes = numbers(text, '+');
  if (!sizes) return wrong;
  std::vector<int> keys;
  for (size_t h = 0; h < sizes->size(); ++h) {
    if ((*sizes)[h] < 1 || keys.size() + static_cast<size_t>((*sizes)[h]) > kMostRanks) return wrong;
    keys.insert(keys.end(), static_cast<size_t>((*sizes)[h]), static_cast<int>(h));
  }
  return of(keys);
}

std::string HostLayout::text() const {
  if (one_host()) return std::to_string(nranks_);
  if (const HostLayout plain = by_rank(); plain.host_ != host_) return plain.text();
  std::string text;
  if (!std::is_sorted(host_.begin(), host_.end())) {
    for (const int32_t h : host_) text += fmt::format("{}{}", text.empty() ? "" : ",", h);
    return text;
  }
  bool alike = true;
  for (int h = 1; h < num_hosts(); ++h) alike &= num_ranks(h) == num_ranks(0);
  if (alike) return fmt::format("{}x{}", num_hosts(), num_ranks(0));
  for (int h = 0; h < num_hosts(); ++h) text += fmt::format("{}{}", text.empty() ? "" : "+", num_ranks(h));
  return text;
}

Expected<HostLayout> HostLayout::in_order(const std::vector<Rank>& order) const {
  std::vector<bool> seen(static_cast<size_t>(nranks_));
  std::vector<int> number(static_cast<size_t>(num_hosts()), -1);
  HostLayout ordered = *this;
  int last = -1, next = 0;
  bool fits = order.size() == seen.size();
  for (size_t i = 0; fits && i < order.size(); ++i) {
    const Rank r = order[i];
    fits = r >= 0 && r < nranks_ && !seen[static_cast<size_t>(r)];
    if (!fits) break;
    seen[static_cast<size_t>(r)] = true;
    int& host_number = number[static_cast<size_t>(host(r))];
    if (host_number < 0) host_number = next++;
    else fits = host_number == last;
    last = host_number;
  }
  if (!fits)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("an order of ranks on hosts {} must name each rank once and keep the ranks of a host "
                              "together",
                              text()));
  if (one_host()) return ordered;
  for (int32_t& h : ordered.host_) h = number[static_cast<size_t>(h)];
  ordered.ranks_.assign(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) ordered.position_[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  ordered.first_.assign(number.size() + 1, 0);
  for (const int32_t h : ordered.host_) ++ordered.first_[static_cast<size_t>(h) + 1];
  for (size_t h = 1; h < ordered.first_.size(); ++h) ordered.first_[h] += ordered.first_[h - 1];
  return ordered;
}

HostLayout HostLayout::with_places(HostLayout places) const {
  HostLayout l = *this;
  l.places_ = std::make_shared<const HostLayout>(std::move(places));
  return l;
}

HostLayout HostLayout::by_rank() const {
  return one_host() ? HostLayout(nranks_) : of(std::vector<int>(host_.begin(), host_.end()));
}

int HostLayout::most_ranks() const {
  int most = 0;
  for (int h = 0; h < num_hosts(); ++h) most = std::max(most, num_ranks(h));
  return most;
}

}  // namespace rondo

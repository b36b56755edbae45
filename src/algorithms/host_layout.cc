#include "rondo/host_layout.h"

#include <fmt/ranges.h>

#include "base/error.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

namespace rondo {
namespace {

constexpr int kMostRanks = 65535;

// Numbers equal keys alike, from 0 in the order of their first appearance.
template <class Key>
std::vector<int> numbered(const std::vector<Key>& keys) {
  std::map<Key, int> known;
  std::vector<int> hosts;
  for (const Key& key : keys) hosts.push_back(known.try_emplace(key, static_cast<int>(known.size())).first->second);
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

// `order`: all ranks, those of a host contiguous. host_ numbers the hosts in this order.
void HostLayout::number(const std::vector<Rank>& order) {
  ranks_.assign(order.begin(), order.end());
  position_.resize(ranks_.size());
  first_.clear();
  for (int32_t i = 0; i < nranks_; ++i) {
    const int32_t rank = ranks_[i];
    position_[rank] = i;
    if (host(rank) == std::ssize(first_)) first_.push_back(i);
  }
  first_.push_back(nranks_);
}

HostLayout HostLayout::of(const std::vector<std::string>& keys) { return of(numbered(keys)); }

HostLayout HostLayout::of(const std::vector<int>& keys) {
  HostLayout layout(static_cast<int>(keys.size()));
  const std::vector<int> hosts = numbered(keys);
  if (std::ranges::count(hosts, 0) == std::ssize(hosts)) return layout;  // one host
  layout.host_.assign(hosts.begin(), hosts.end());
  std::vector<Rank> order(hosts.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](Rank r) { return layout.host(r); });
  layout.number(order);
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
  if (!std::ranges::is_sorted(host_)) return fmt::format("{}", fmt::join(host_, ","));
  std::vector<int> sizes;
  for (int h = 0; h < num_hosts(); ++h) sizes.push_back(num_ranks(h));
  if (std::ranges::count(sizes, sizes[0]) == num_hosts()) return fmt::format("{}x{}", num_hosts(), sizes[0]);
  return fmt::format("{}", fmt::join(sizes, "+"));
}

Expected<HostLayout> HostLayout::in_order(const std::vector<Rank>& order) const {
  std::vector<bool> seen(static_cast<size_t>(nranks_));
  std::vector<int> number(static_cast<size_t>(num_hosts()), -1);
  HostLayout ordered = *this;
  int last = -1, next = 0;
  bool fits = order.size() == seen.size();
  for (size_t i = 0; fits && i < order.size(); ++i) {
    const Rank r = order[i];
    fits = r >= 0 && r < nranks_ && !seen[r];
    if (!fits) break;
    seen[r] = true;
    int& host_number = number[host(r)];
    if (host_number < 0) host_number = next++;
    else fits = host_number == last;
    last = host_number;
  }
  if (!fits)
    return invalid_argument(
        "an order of ranks on hosts {} must name each rank once and keep the ranks of a host together", text());
  if (one_host()) return ordered;
  for (int32_t& h : ordered.host_) h = number[h];
  ordered.number(order);
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

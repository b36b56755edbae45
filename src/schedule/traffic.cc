#include "schedule/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "schedule/check_collective.h"
#include "schedule/table.h"

namespace rondo {
namespace {

/// Ascending ranks as "1-3,6"; all ranks as "every rank".
std::string ranks_in_words(const std::vector<Rank>& ranks, int nranks) {
  if (std::ssize(ranks) == nranks) return "every rank";
  std::string text;
  for (size_t first = 0, next; first < ranks.size(); first = next) {
    next = first + 1;
    while (next < ranks.size() && ranks[next] == ranks[next - 1] + 1) ++next;
    text += fmt::format("{}{}", text.empty() ? "" : ",", ranks[first]);
    if (next - first > 1) text += fmt::format("{}{}", next - first == 2 ? "," : "-", ranks[next - 1]);
  }
  constexpr size_t kMaxWidth = 40;
  return text.size() <= kMaxWidth ? text : fmt::format("{} ranks, e.g. {}", ranks.size(), ranks.front());
}

}  // namespace

std::vector<Traffic> traffic_of(const Schedule& schedule) {
  const check::Conditions conditions(schedule);
  std::vector<Traffic> all(schedule.ranks.size());
  for (const RankSchedule& r : schedule.ranks) {
    Traffic& mine = all[static_cast<size_t>(r.rank)];
    if (schedule.collective != Collective::kBarrier && conditions.holds(r.rank, Buffer::kOut))
      mine.delivered_chunks = r.out_chunks;
    for (const Lane& lane : r.lanes)
      for (const Instruction& i : lane) {
        if (i.verb == Verb::kWait || i.is(kFlagCredit)) continue;
        for (const Port& p : r.send_ports(i)) {
          mine.sent_chunks += i.num_chunks;
          if (i.is(kFlagDirect)) all[static_cast<size_t>(p.peer)].received_chunks += i.num_chunks;
        }
        for (const Port& p : r.recv_ports(i)) {
          mine.received_chunks += i.num_chunks;
          if (i.is(kFlagDirect)) all[static_cast<size_t>(p.peer)].sent_chunks += i.num_chunks;
        }
      }
  }
  return all;
}

std::string part_text(int64_t chunks, int64_t total_chunks) {
  const int64_t divisor = std::max<int64_t>(1, std::gcd(chunks, total_chunks));
  if (total_chunks == divisor) return std::to_string(chunks / divisor);
  return fmt::format("{}/{}", chunks / divisor, total_chunks / divisor);
}

std::string traffic_legend() {
  return format_rows({{"sent", "bytes that a rank gives to others: a message to three ranks counts three times"},
                      {"received", "bytes that a rank gets from others"},
                      {"delivered", "bytes of the result that a rank's output holds at the end"}});
}

std::string traffic_table(const Schedule& schedule, int fold_at) {
  const std::vector<Traffic> all = traffic_of(schedule);
  std::vector<std::pair<Traffic, std::vector<Rank>>> groups;
  for (Rank r = 0; r < schedule.nranks; ++r) {
    const Traffic& t = all[static_cast<size_t>(r)];
    auto group = std::ranges::find(groups, t, [](const auto& g) { return g.first; });
    if (group == groups.end()) group = groups.insert(group, {t, {}});
    group->second.push_back(r);
  }
  const int64_t total = check::Conditions(schedule).num_classes();
  std::vector<Row> rows{{"rank", "sent", "received", "delivered"}};
  for (int g : fold(static_cast<int>(groups.size()), fold_at)) {
    if (g < 0) {
      rows.push_back({"..."});
      continue;
    }
    const auto& [t, ranks] = groups[static_cast<size_t>(g)];
    rows.push_back({ranks_in_words(ranks, schedule.nranks), part_text(t.sent_chunks, total),
                    part_text(t.received_chunks, total), part_text(t.delivered_chunks, total)});
  }
  return "bytes of a rank, in whole vectors\n" + format_rows(rows);
}

}  // namespace rondo

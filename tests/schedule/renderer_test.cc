// The output of `rondo explain`: all collectives against golden files, and every algorithm's symbolic result.
// labels: unit
// timeout: 120
#include "schedule/renderer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "schedule/linear_texts.h"
#include "schedule/steps.h"
#include "schedule/traffic.h"

namespace rondo {
namespace {

std::string golden(const std::string& name) {
  const auto path = std::filesystem::path(RONDO_SOURCE_DIR) / "tests/schedule/golden" / name;
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string explain_text(Collective collective, std::string_view name, ExplainOptions options) {
  const Algorithm* algorithm = find_algorithm(collective, name);
  EXPECT_NE(algorithm, nullptr);
  return explain(*algorithm, options);
}

std::string label(const Algorithm& a) { return std::string(a.name) + "_" + std::string(collective_name(a.collective)); }

ExplainOptions six_elements() {
  ExplainOptions options;
  options.hosts = 3;
  options.has_elements = true;
  options.num_elems = 6;
  return options;
}

TEST(Renderer, RingAllReduceOfThreeRanksIsTheTextbooksTable) {
  EXPECT_EQ(explain_text(Collective::kAllReduce, "ring", six_elements()),
            golden("ring_all_reduce_3_ranks_6_elems.txt"));
}
TEST(Renderer, RingReduceScatterOfThreeRanks) {
  EXPECT_EQ(explain_text(Collective::kReduceScatter, "ring", six_elements()),
            golden("ring_reduce_scatter_3_ranks_6_elems.txt"));
}
TEST(Renderer, RingAllGatherOfThreeRanks) {
  EXPECT_EQ(explain_text(Collective::kAllGather, "ring", six_elements()),
            golden("ring_all_gather_3_ranks_6_elems.txt"));
}

class EveryCollective : public ::testing::TestWithParam<Algorithm> {};

TEST_P(EveryCollective, OfFourRanks) {
  const Algorithm& a = GetParam();
  ExplainOptions options;
  options.has_elements = true;
  options.num_elems = 8;
  if (collective_is_rooted(a.collective)) options.root = 2;
  EXPECT_EQ(explain(a, options), golden(label(a) + "_4_ranks.txt"));
}
INSTANTIATE_TEST_SUITE_P(Linear, EveryCollective, ::testing::ValuesIn(linear::kRows),
                         [](const auto& info) { return label(info.param); });

/// "from->to value" of one step, one row for each message.
std::vector<std::string> message_rows(const std::string& text) {
  std::vector<std::string> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string ends, value;
    if (words >> ends >> value && ends.find("->") != std::string::npos && std::isdigit(ends[0]) != 0)
      rows.push_back(ends + " " + value);
  }
  return rows;
}

TEST(Renderer, OneStepShowsItsMessagesOnly) {
  using Rows = std::vector<std::string>;
  const Rows expected[] = {{"0->1 A2", "1->2 B0", "2->0 C1"},
                           {"0->1 (C1+A1)", "1->2 (A2+B2)", "2->0 (B0+C0)"},
                           {"0->1 S0", "1->2 S1", "2->0 S2"},
                           {"0->1 S2", "1->2 S0", "2->0 S1"}};
  ExplainOptions options = six_elements();
  for (options.step = 1; options.step <= 4; ++options.step)
    EXPECT_EQ(message_rows(explain_text(Collective::kAllReduce, "ring", options)), expected[options.step - 1]);
  const std::string beyond = explain_text(Collective::kAllReduce, "ring", options);
  EXPECT_NE(beyond.find("there is no step 5: the algorithm has 4"), std::string::npos) << beyond;
}

/// The text after "in all".
std::string end_of(Collective collective, std::string_view name, int nranks) {
  ExplainOptions options;
  options.hosts = nranks;
  const std::string text = explain_text(collective, name, options);
  return text.substr(text.find("in all"));
}

TEST(Renderer, BytesCountForEachRankThatGetsThem) {
  EXPECT_EQ(end_of(Collective::kAllReduce, "one_shot", 8),
            "in all: 1 step, 56 messages; the busiest rank sends 7 x the bytes of the whole vector\n"
            "a message to several ranks is written once: the busiest rank writes 1 x (bytes/rank of `rondo check`)\n"
            "bytes of a rank, in whole vectors\n"
            "  rank        sent  received  delivered\n"
            "  every rank  7     7         1\n");
  EXPECT_EQ(end_of(Collective::kAllReduce, "ring", 8),
            "in all: 14 steps, 112 messages; the busiest rank sends 7/4 x the bytes of the whole vector\n"
            "bytes of a rank, in whole vectors\n"
            "  rank        sent  received  delivered\n"
            "  every rank  7/4   7/4       1\n");
  EXPECT_EQ(
      end_of(Collective::kBroadcast, "one_shot", 4),
      "in all: 1 step, 3 messages; with any root, the busiest rank sends at most 3 x the bytes of the whole vector\n"
      "a message to several ranks is written once: the busiest rank writes at most 1 x (bytes/rank of "
      "`rondo check`)\n"
      "bytes of a rank, in whole vectors\n"
      "  rank  sent  received  delivered\n"
      "  0     3     0         1\n"
      "  1-3   0     1         1\n");
  EXPECT_EQ(end_of(Collective::kAllGather, "direct", 4),
            "in all: 3 steps, 24 messages that only say \"ready\"; data goes from buffer to buffer\n"
            "bytes of a rank, in whole vectors\n"
            "  rank        sent  received  delivered\n"
            "  every rank  3/4   3/4       1\n");
}

TEST(Renderer, ManyRanksAreFoldedAndNamed) {
  ExplainOptions options;
  options.hosts = 64;
  const std::string folded = explain_text(Collective::kAllReduce, "ring", options);
  EXPECT_LT(folded.size(), 40000u);
  EXPECT_NE(folded.find("... 49 more"), std::string::npos);
  EXPECT_NE(folded.find("63->0"), std::string::npos);
  EXPECT_NE(folded.find("r63.62"), std::string::npos);
  EXPECT_NE(folded.find("step 126 of 126: all-gather"), std::string::npos);
  options.fold_at = 0;
  const std::string full = explain_text(Collective::kAllReduce, "ring", options);
  EXPECT_EQ(message_rows(full).size(), 64u * 126u);
  EXPECT_EQ(rank_letter(25), "Z");
  EXPECT_EQ(rank_letter(27), "r27");
}

TEST(Renderer, ChunksWithoutElementsAreSaidNotToBeSent) {
  ExplainOptions options = six_elements();
  options.num_elems = 2;
  const std::string text = explain_text(Collective::kAllReduce, "ring", options);
  EXPECT_NE(text.find("0->1  A2  no element: not sent"), std::string::npos) << text;
}

void ranks_in(const Expr& e, std::multiset<Rank>& ranks) {
  if (!e.is_sum()) ranks.insert(e.rank);
  for (const ExprPtr& operand : e.operands) ranks_in(*operand, ranks);
}

/// The expected inputs and chunk in out[chunk] of `rank`, with one chunk per part; nullopt: no output.
struct Wanted {
  std::multiset<Rank> ranks;
  int chunk;
};
std::optional<Wanted> wanted(const Schedule& s, Rank rank, int chunk) {
  std::multiset<Rank> all;
  for (Rank r = 0; r < s.nranks; ++r) all.insert(r);
  switch (s.collective) {
    case Collective::kAllReduce: return Wanted{all, chunk};
    case Collective::kReduceScatter: return Wanted{all, rank};
    case Collective::kAllGather: return Wanted{{chunk}, 0};
    case Collective::kBroadcast: return Wanted{{s.root}, chunk};
    case Collective::kReduce: return rank == s.root ? std::optional(Wanted{all, chunk}) : std::nullopt;
    case Collective::kAllToAll: return Wanted{{chunk}, rank};
    case Collective::kGather: return rank == s.root ? std::optional(Wanted{{chunk}, 0}) : std::nullopt;
    case Collective::kScatter: return Wanted{{s.root}, rank};
    default: return std::nullopt;
  }
}

/// Calls `run` for all rows.
template <class F>
void for_every_row(int nranks, F run) {
  std::vector<Algorithm> rows(all_algorithms().begin(), all_algorithms().end());
  rows.insert(rows.end(), std::begin(linear::kRows), std::end(linear::kRows));
  for (const Algorithm& a : rows)
    for (Rank root : std::set<Rank>{0, collective_is_rooted(a.collective) ? nranks - 1 : 0}) {
      SCOPED_TRACE(label(a) + ", root " + std::to_string(root));
      run(a, root);
    }
}

class EveryAlgorithm : public ::testing::TestWithParam<int> {};

TEST_P(EveryAlgorithm, EndsWithItsPostcondition) {
  const int nranks = GetParam();
  for_every_row(nranks, [nranks](const Algorithm& a, Rank root) {
    const Schedule schedule = record_all(a, nranks, root);
    const SymbolicRun run = run_symbolically(schedule);
    ASSERT_EQ(run.stuck, "");
    if (!a.direct) {
      EXPECT_LE(run.num_steps, cost_of(a, nranks).steps);
    }
    std::vector<std::vector<ExprPtr>> out(static_cast<size_t>(nranks));
    for (auto& chunks : out) chunks.resize(schedule.ranks[0].out_chunks);
    for (const StepWrite& w : run.writes)
      if (w.buffer == Buffer::kOut) out[static_cast<size_t>(w.rank)][static_cast<size_t>(w.chunk)] = w.value;
    for (Rank r = 0; r < nranks; ++r)
      for (size_t c = 0; c < out[static_cast<size_t>(r)].size(); ++c) {
        const std::optional<Wanted> want = wanted(schedule, r, static_cast<int>(c));
        if (!want) continue;
        const ExprPtr& value = out[static_cast<size_t>(r)][c];
        ASSERT_NE(value, nullptr) << "rank " << r << " chunk " << c;
        std::multiset<Rank> ranks;
        ranks_in(*value, ranks);
        EXPECT_EQ(ranks, want->ranks);
        EXPECT_EQ(value->chunk, want->chunk);
      }
    if (a.collective != Collective::kBarrier || nranks == 1) return;
    std::vector<std::set<Rank>> heard(static_cast<size_t>(nranks));
    for (const StepHeard& h : run.heard)
      for (Rank k = 0; k < nranks; ++k)
        if (h.of[static_cast<size_t>(k)]) heard[static_cast<size_t>(h.rank)].insert(k);
    for (const std::set<Rank>& of : heard) EXPECT_EQ(of.size(), static_cast<size_t>(nranks));
  });
}

TEST_P(EveryAlgorithm, RendersEveryMessage) {
  for_every_row(GetParam(), [](const Algorithm& a, Rank root) {
    ExplainOptions options;
    options.hosts = GetParam();
    options.root = root;
    options.has_elements = true;
    options.num_elems = 1000;
    options.fold_at = 0;
    const SymbolicRun run = run_symbolically(record_all(a, options.hosts, root));
    const std::string text = explain(a, options);
    EXPECT_EQ(message_rows(text).size(), run.messages.size());
    EXPECT_EQ(text.find('?'), std::string::npos) << text;
    EXPECT_EQ(text.find("cannot complete"), std::string::npos);
    EXPECT_EQ(text.find("the root is rank") != std::string::npos, collective_is_rooted(a.collective)) << text;
  });
}
TEST_P(EveryAlgorithm, SendsWhatOthersReceive) {
  const int nranks = GetParam();
  for_every_row(nranks, [nranks](const Algorithm& a, Rank root) {
    const Schedule s = record_all(a, nranks, root);
    Traffic all;
    int64_t busiest = 0;
    for (const Traffic& t : traffic_of(s)) {
      all.sent_chunks += t.sent_chunks;
      all.received_chunks += t.received_chunks;
      all.delivered_chunks += t.delivered_chunks;
      busiest = std::max(busiest, t.sent_chunks);
    }
    EXPECT_EQ(all.sent_chunks, all.received_chunks);
    const int64_t owners = collective_traits(a.collective).out_holders == Holders::kRoot ? 1 : nranks;
    EXPECT_EQ(all.delivered_chunks, a.collective == Collective::kBarrier ? 0 : owners * s.ranks[0].out_chunks);
    // A multicast is written once but sent several times.
    bool multicast = false;
    for (const RankSchedule& r : s.ranks)
      for (const PortSet& set : r.port_sets)
        for (const Port& p : set) multicast |= p.group != kUnicast;
    const Cost cost = cost_of(a, nranks);
    const int64_t whole = std::max(s.ranks[0].in_chunks, s.ranks[0].out_chunks);
    if (!multicast && !a.direct && !collective_is_rooted(a.collective)) {
      EXPECT_EQ(busiest * cost.sent_den, cost.sent_num * whole);
    }
  });
}

TEST_P(EveryAlgorithm, WritesSumsInTheOrderInWhichTheyAreAdded) {
  for_every_row(GetParam(), [](const Algorithm& a, Rank root) {
    ExplainOptions options;
    options.hosts = GetParam();
    options.root = root;
    options.fold_at = 0;
    const std::string text = explain(a, options);
    std::string order;  // "S0 = ((B0+C0)+A0)" and so on
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      if (line.find(" = (") != std::string::npos) order += line + "\n";
    for (const std::string& row : message_rows(text)) {
      const size_t sum = row.find('(');
      if (sum == std::string::npos || GetParam() > 8) continue;  // more terms are not printed
      EXPECT_NE(order.find(row.substr(sum)), std::string::npos) << row << "\n" << order;
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, EveryAlgorithm, ::testing::Range(1, 10));

TEST(Steps, RangesMeetChunkByChunk) {  // sent as one range, received as two
  Schedule s;
  s.nranks = 2;
  s.collective = Collective::kBroadcast;
  for (Rank r = 0; r < 2; ++r) {
    Recorder p(r, 2);
    p.chunks(3, 3);
    p.lane(0);
    if (r == 0) {
      p.send(in(0, 3), {{1, 0}});
      p.copy(in(0, 3), out(0, 3));
    } else {
      p.recv({{0, 0}}, out(0));
      p.recv({{0, 0}}, out(1, 2));
    }
    s.ranks.push_back(p.take());
  }
  const SymbolicRun run = run_symbolically(s);
  EXPECT_EQ(run.stuck, "");
  int right = 0;
  for (const StepWrite& w : run.writes) right += w.rank == 1 && w.value->rank == 0 && w.value->chunk == w.chunk;
  EXPECT_EQ(right, 3);
}

TEST(Steps, AScheduleThatCannotCompleteIsReported) {
  Schedule schedule = record_all(*find_algorithm(Collective::kAllReduce, "ring"), 3);
  schedule.ranks[1].lanes[0].clear();  // rank 1 does not send its own contribution
  const SymbolicRun run = run_symbolically(schedule);
  EXPECT_NE(run.stuck.find("rank 2 lane 1 waits for ever at its instruction 0 (recv_reduce_send)"), std::string::npos)
      << run.stuck;
}

TEST(Explain, SaysWhatGoesToOtherHosts) {
  ExplainOptions options;
  options.hosts = *HostLayout::parse("2x2");
  const std::string text = explain(*find_algorithm(Collective::kAllReduce, "hierarchical"), options);
  for (const char* part : {"4 ranks on hosts 2x2:", "->~", "0->~2  (A2+B2)", "0->~2,1  S0", "S2 = ((A2+B2)+C2+D2)",
                           "between hosts: 2 messages one after the other"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  options.hosts = 4;
  EXPECT_EQ(explain(*find_algorithm(Collective::kAllReduce, "ring"), options).find('~'), std::string::npos);
}

}  // namespace
}  // namespace rondo

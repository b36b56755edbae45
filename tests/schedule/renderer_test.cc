// What `rondo explain` prints: the ring's text against golden files, and every algorithm's symbolic result.
// labels: unit
// timeout: 60
#include "schedule/renderer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "schedule/steps.h"

namespace rondo {
namespace {

std::string golden(const std::string& name) {
  const auto path = std::filesystem::path(__FILE__).parent_path() / "golden" / name;
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

ExplainOptions six_elements() {
  ExplainOptions options;
  options.nranks = 3;
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

/// "from->to value" of one step, one row for each message.
std::vector<std::string> message_rows(const std::string& text) {
  std::vector<std::string> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string ends, value;
    if (words >> ends >> value && ends.find("->") != std::string::npos) rows.push_back(ends + " " + value);
  }
  return rows;
}

TEST(Renderer, OneStepShowsItsMessagesOnly) {
  using Rows = std::vector<std::string>;
  const Rows expected[] = {{"0->1 A2", "1->2 B0", "2->0 C1"},
                           {"0->1 (A1+C1)", "1->2 (B2+A2)", "2->0 (C0+B0)"},
                           {"0->1 S0", "1->2 S1", "2->0 S2"},
                           {"0->1 S2", "1->2 S0", "2->0 S1"}};
  ExplainOptions options = six_elements();
  for (options.step = 1; options.step <= 4; ++options.step)
    EXPECT_EQ(message_rows(explain_text(Collective::kAllReduce, "ring", options)), expected[options.step - 1]);
  const std::string beyond = explain_text(Collective::kAllReduce, "ring", options);
  EXPECT_NE(beyond.find("step 5: there is none, the algorithm has 4"), std::string::npos) << beyond;
}

TEST(Renderer, ManyRanksAreFoldedAndNamed) {
  ExplainOptions options;
  options.nranks = 64;
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

class EveryAlgorithm : public testing::TestWithParam<int> {};

TEST_P(EveryAlgorithm, EndsWithItsPostcondition) {
  const int nranks = GetParam();
  std::multiset<Rank> all;
  for (Rank r = 0; r < nranks; ++r) all.insert(r);
  for (const Algorithm& a : all_algorithms()) {
    SCOPED_TRACE(std::string(a.name) + " " + std::string(collective_name(a.collective)));
    const Schedule schedule = record_all(a, nranks);
    const SymbolicRun run = run_symbolically(schedule);
    ASSERT_EQ(run.stuck, "");
    if (!a.direct) {
      EXPECT_LE(run.num_steps, a.cost(nranks).steps);
    }
    std::vector<std::vector<ExprPtr>> out(static_cast<size_t>(nranks));
    for (auto& chunks : out) chunks.resize(schedule.ranks[0].out_chunks);
    for (const StepWrite& w : run.writes)
      if (w.buffer == Buffer::kOut) out[static_cast<size_t>(w.rank)][static_cast<size_t>(w.chunk)] = w.value;
    for (Rank r = 0; r < nranks; ++r)
      for (size_t c = 0; c < out[static_cast<size_t>(r)].size(); ++c) {
        const ExprPtr& value = out[static_cast<size_t>(r)][c];
        ASSERT_NE(value, nullptr) << "rank " << r << " chunk " << c;
        std::multiset<Rank> ranks;
        ranks_in(*value, ranks);
        if (a.collective == Collective::kAllGather) {
          EXPECT_EQ(ranks, std::multiset<Rank>{static_cast<Rank>(c)});
        } else {
          EXPECT_EQ(ranks, all);
          EXPECT_EQ(value->chunk, a.collective == Collective::kAllReduce ? static_cast<int>(c) : r);
        }
      }
  }
}

TEST_P(EveryAlgorithm, RendersEveryMessage) {
  for (const Algorithm& a : all_algorithms()) {
    SCOPED_TRACE(a.name);
    ExplainOptions options;
    options.nranks = GetParam();
    options.has_elements = true;
    options.num_elems = 1000;
    options.fold_at = 0;
    const SymbolicRun run = run_symbolically(record_all(a, options.nranks));
    const std::string text = explain(a, options);
    EXPECT_EQ(message_rows(text).size(), run.messages.size());
    EXPECT_EQ(text.find('?'), std::string::npos) << text;
    EXPECT_EQ(text.find("cannot complete"), std::string::npos);
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, EveryAlgorithm, testing::Range(1, 10));

TEST(Steps, AScheduleThatCannotCompleteIsReported) {
  Schedule schedule = record_all(*find_algorithm(Collective::kAllReduce, "ring"), 3);
  schedule.ranks[1].lanes[0].clear();  // rank 1 forgets to send its own contribution
  const SymbolicRun run = run_symbolically(schedule);
  EXPECT_NE(run.stuck.find("rank 2 lane 1 waits for ever at its instruction 0 (recv_reduce_send)"), std::string::npos)
      << run.stuck;
}

}  // namespace
}  // namespace rondo

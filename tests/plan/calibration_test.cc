// The calibration file: round trips, and errors with the line number.
// labels: unit
#include "plan/calibration.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "algorithms/registry.h"
#include "api/communicator_impl.h"
#include "plan/environment_variable.h"
#include "rondo/communicator.h"

namespace rondo {
namespace {

using testing::EnvironmentVariable;

class File {  // a file with this text, in a scope
 public:
  explicit File(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / ("rondo_calibration_test_" + std::to_string(getpid()))) {
    std::ofstream(path_) << text;
  }
  ~File() { std::filesystem::remove(path_); }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

Calibration sample() {
  Calibration c;
  c.cpu = processor_name();
  c.date = "2026-01-02 03:04:05";
  c.costs.near_bytes = 12345;
  c.costs.huge_bytes = 9999999999;
  for (size_t t = 0; t < kNumCostTerms; ++t) {
    c.costs.spread[t] = 0.1 + static_cast<double>(t) / 3;
    c.costs.oversubscribed[t] = 1e-7 * static_cast<double>(t);
  }
  return c;
}

/// The row of an algorithm in corrections.
size_t row_of(Collective collective, std::string_view name) {
  return algorithm_index(*find_algorithm(collective, name));
}

Calibration corrected_sample() {
  Calibration c = sample();
  c.corrections.note_known(0, row_of(Collective::kReduce, "ring"), CostForm::kShort);
  c.corrections.note_known(4, row_of(Collective::kAllGather, "pull"), CostForm::kMapped);
  c.corrections.note_known(4, row_of(Collective::kAllGather, "pull"), CostForm::kCopied);
  auto& at = c.corrections.sixteenths;
  for (size_t size = 0; size < CostCorrections::kSizes; ++size) {
    at[0][row_of(Collective::kReduce, "ring")][static_cast<size_t>(CostForm::kShort)][size] =
        static_cast<int8_t>(size) - 5;
    at[4][row_of(Collective::kAllGather, "pull")][static_cast<size_t>(CostForm::kMapped)][size] = 112;
    at[4][row_of(Collective::kAllGather, "pull")][static_cast<size_t>(CostForm::kCopied)][size] = -112;
  }
  return c;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Calibration, RoundTrip) {
  const Calibration c = sample();
  const Expected<Calibration> back = parse_calibration(format_calibration(c));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->costs, c.costs);  // bit-exact
  EXPECT_EQ(back->cpu, c.cpu);
  EXPECT_EQ(back->date, c.date);
}

TEST(Calibration, WhatOneHostCannotMeasureMayBeLeftOut) {
  std::string text;
  std::istringstream lines(format_calibration(sample()));
  for (std::string line; std::getline(lines, line);)
    if (line.find(".host_") == std::string::npos) text += line + '\n';
  const Expected<Calibration> back = parse_calibration(text);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  for (size_t t = 0; t < kNumCostTerms; ++t)
    EXPECT_EQ(back->costs.spread[t],
              t < static_cast<size_t>(kFirstHostTerm) ? sample().costs.spread[t] : built_in_costs().spread[t]);
  const Expected<Calibration> own = parse_calibration(text + "spread.host_hop = 1e6\n");
  ASSERT_TRUE(own.ok()) << own.status().to_string();
  EXPECT_EQ(own->costs.spread[static_cast<size_t>(CostTerm::kHostHop)], 1e6);
}

TEST(Calibration, CorrectionsComeBack) {
  const Calibration c = corrected_sample();
  const std::string text = format_calibration(c);
  EXPECT_NE(text.find("\nspread_2.reduce.ring.short = 0.805 0.841 "), std::string::npos) << text;
  EXPECT_NE(text.find("\ncrowded_4.all_gather.pull.mapped = 128 "), std::string::npos) << text;
  const Expected<Calibration> back = parse_calibration(text);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->corrections, c.corrections);
  const Expected<Calibration> more = parse_calibration(text + "spread_2.reduce.of_a_plugin.short = 1\n");
  ASSERT_TRUE(more.ok()) << more.status().to_string();
  EXPECT_EQ(more->corrections, c.corrections) << "unknown entries must be ignored";
}

TEST(Calibration, SpacesCommentsAndForeignLineEndsDoNotMatter) {
  std::string text = "# mine\r\n\r\n  " + format_calibration(sample()), crlf;
  for (char ch : text) crlf += ch == '\n' ? std::string("  \r\n") : std::string(1, ch);
  const Expected<Calibration> back = parse_calibration(crlf);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->costs, sample().costs);
}

TEST(Calibration, WhatIsWrongIsNamedByLine) {
  const std::string good = format_calibration(sample());
  const struct {
    std::string text, expected;
  } cases[] = {
      {"", "rondo_calibration is missing"},
      {"cpu = x\n", "line 1: a calibration begins with"},
      {"\n# c\nrondo_calibration = one\n", "line 3: a calibration begins with"},
      {replaced(good, "near_bytes = 12345", "near_bytes = 0"), "line 4: near_bytes"},
      {replaced(good, "near_bytes = 12345", "near_bytes = 12345 KiB"), "line 4: near_bytes"},
      {replaced(good, "near_bytes = 12345", "near_bytes 12345"), "line 4: no '='"},
      {replaced(good, "near_bytes = 12345\n", ""), "near_bytes is missing"},
      {replaced(good, "spread.handover", "spread.hangover"), "unknown constant \"spread.hangover\""},
      {replaced(good, "spread.handover", "apart.handover"), "unknown constant \"apart.handover\""},
      {replaced(good, "crowded.call = 0", "crowded.call = -1"), "line 14: crowded.call"},
      {replaced(good, "crowded.call = 0", "crowded.call = nan"), "line 14: crowded.call"},
      {replaced(good, "crowded.call = 0", "crowded.call = 1e300"), "line 14: crowded.call"},
      {replaced(good, "crowded.call = 0\n", ""), "crowded.call is missing"},
      {good + "crowded.call = 1\n", "crowded.call appears twice"},
      {good + "cpu = other\n", "cpu appears twice"},
      {good + "spread_3.reduce.ring.short = 1\n", "unknown constant \"spread_3.reduce.ring.short\""},
      {good + "spread_2.reduce.ring.mapped = 1\n", "unknown candidate \"spread_2.reduce.ring.mapped\""},
      {good + "spread_2.reduce.pull.short = 1\n", "unknown candidate \"spread_2.reduce.pull.short\""},
      {good + "spread_2.reduce.ring.short = 1 1 1\n", "must have 12 factors"},
      {good + "spread_2.reduce.ring.short = 1 1 1 1 1 1 1 1 1 1 1 200\n", "must have 12 factors"},
      {good + "spread_2.reduce.ring.short = 1 1 1 1 1 1 1 1 1 1 1 1 1\n", "has more than 12 factors"},
      {replaced(format_calibration(corrected_sample()), "pull.mapped", "pull.copied"), "appears twice"},
      {good.substr(0, good.size() / 2), "is missing"},
  };
  for (const auto& c : cases) {
    const Expected<Calibration> parsed = parse_calibration(c.text);
    if (c.expected == "is missing" && !parsed.ok()) continue;  // cut within a line: both errors are right
    ASSERT_FALSE(parsed.ok()) << c.expected;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find(c.expected), std::string_view::npos) << parsed.status().to_string();
  }
}

TEST(Calibration, EveryPrefixIsReadOrRefused) {  // no crash, and nothing incomplete is accepted
  const std::string good = format_calibration(sample());
  for (size_t n = 0; n + 2 < good.size(); ++n) {
    const Expected<Calibration> parsed = parse_calibration(std::string_view(good).substr(0, n));
    if (parsed.ok()) {
      EXPECT_GT(n, good.rfind(" = ")) << n;  // only the last number is cut
    }
  }
}

TEST(Calibration, SettingNamesAFileOrTurnsItOff) {
  const File file(format_calibration(sample()));
  std::string from;
  {
    const EnvironmentVariable use("RONDO_CALIBRATION", file.path());
    const auto costs = known_costs(&from);
    ASSERT_TRUE(costs.ok()) << costs.status().to_string();
    EXPECT_EQ((*costs)->costs, sample().costs);
    EXPECT_EQ((*costs)->corrections, sample().corrections);
    EXPECT_EQ(from, file.path());
  }
  const EnvironmentVariable off("RONDO_CALIBRATION", "off");
  EXPECT_EQ((*known_costs(&from))->costs, built_in_costs());
  EXPECT_EQ(from, "built in");
}

TEST(Calibration, OtherVersionsAndMachinesAreNotUsedAndSayWhy) {
  Calibration elsewhere = sample();
  elsewhere.cpu = "Processor of another machine";
  for (const auto& [text, why] :
       {std::pair{std::string("rondo_calibration = 99\nwhatever that version has\n"), "version 99"},
        {format_calibration(elsewhere), "Processor of another machine"}}) {
    const File file(text);
    const EnvironmentVariable use("RONDO_CALIBRATION", file.path());
    std::string from;
    const auto costs = known_costs(&from);
    ASSERT_TRUE(costs.ok()) << costs.status().to_string();
    EXPECT_EQ((*costs)->costs, built_in_costs());
    EXPECT_NE(from.find(why), std::string::npos) << from;
  }
}

// On such a machine the rings of short calls leave the second-level cache before their memory is used again.
TEST(Calibration, TheWholeRingIsUsedIfAnotherCoresRecentWritesAreReadSlowly) {
  Calibration slow;
  slow.cpu = processor_name(), slow.date = "2026-01-02";
  slow.costs.spread[static_cast<size_t>(CostTerm::kDirtyRingByte)] = 0.08;
  const File file(format_calibration(slow));
  const EnvironmentVariable use("RONDO_CALIBRATION", file.path());
  auto comms = Communicator::init_all(2);
  ASSERT_TRUE(comms.ok()) << comms.status().to_string();
  Planner& planner = impl_of(*(*comms)[0]).planner();
  if (planner.settings().ranks_per_core > 1) GTEST_SKIP() << "one CPU";
  CallShape request;
  for (const uint64_t bytes : {4096, 16384, 65536}) {
    request.count_elems = bytes / 4;
    const std::vector<Candidate> all = planner.candidates(request, /*staged_only=*/true).value();
    EXPECT_TRUE(all[0].whole_ring) << bytes;
    const auto lap = std::ranges::find_if(all, [&](const Candidate& c) {
      return !c.whole_ring && c.algorithm == all[0].algorithm && c.message_bytes == all[0].message_bytes;
    });
    ASSERT_NE(lap, all.end());
    for (const Candidate* forced : {&*lap, &all[0]}) {
      for (const auto& comm : *comms) impl_of(*comm).planner().force(forced);
      const std::string plan = (*comms)[0]->explain_plan(Collective::kAllReduce, bytes / 4, Dtype::kFloat32, Op::kSum);
      EXPECT_EQ(plan.find(" B in the whole ring") != plan.npos, forced->whole_ring) << plan;
      std::vector<std::thread> ranks;
      for (const auto& comm : *comms)
        ranks.emplace_back([&comm, bytes] {
          std::vector<float> data(bytes / 4);
          for (int call = 0; call < 300; ++call) {  // more than twice round the ring
            for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i % 1000) + static_cast<float>(call);
            const Status s = comm->all_reduce(data.data(), data.data(), data.size(), Dtype::kFloat32, Op::kSum);
            ASSERT_TRUE(s.ok()) << s.to_string();
            for (size_t i = 0; i < data.size(); ++i)
              ASSERT_EQ(data[i], 2 * (static_cast<float>(i % 1000) + static_cast<float>(call))) << call << " " << i;
          }
        });
      for (std::thread& rank : ranks) rank.join();
    }
  }
}

TEST(Calibration, ANamedFileMustBeThereAndWellFormed) {
  {
    const EnvironmentVariable missing("RONDO_CALIBRATION", "/nowhere/calibration");
    const auto comms = Communicator::init_all(2);
    ASSERT_FALSE(comms.ok());
    EXPECT_NE(comms.status().message().find("RONDO_CALIBRATION=/nowhere/calibration"), std::string_view::npos);
  }
  const File file("rondo_calibration = 5\nnonsense\n");
  const EnvironmentVariable bad("RONDO_CALIBRATION", file.path());
  const auto comms = Communicator::init_all(2);
  ASSERT_FALSE(comms.ok());
  EXPECT_EQ(comms.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(comms.status().message().find(file.path() + ": line 2"), std::string_view::npos)
      << comms.status().to_string();
}

TEST(Calibration, DefaultPlace) {
  {
    const EnvironmentVariable xdg("XDG_CONFIG_HOME", "/somewhere");
    EXPECT_EQ(default_calibration_path(), "/somewhere/rondo/calibration");
  }
  const EnvironmentVariable xdg("XDG_CONFIG_HOME", "");
  {
    const EnvironmentVariable other("HOME", "/home/someone");
    EXPECT_EQ(default_calibration_path(), "/home/someone/.config/rondo/calibration");
  }
  const EnvironmentVariable none("HOME", "");
  EXPECT_EQ(default_calibration_path(), "");
}

// Constants that make every step expensive and bytes free, only on rank 0, change the choice of every rank.
TEST(Calibration, RankZerosConstantsDecideOnAllRanks) {
  Calibration dear = sample();
  dear.costs.spread.fill(1e-6);
  dear.costs.oversubscribed.fill(1e-6);
  for (CostVector* v : {&dear.costs.spread, &dear.costs.oversubscribed})
    (*v)[static_cast<size_t>(CostTerm::kHandover)] = 1e6;
  const File file(format_calibration(dear));
  auto choice = [](const auto& comms, size_t rank) {
    return comms[rank]->explain_plan(Collective::kAllReduce, 1 << 20, Dtype::kFloat32, Op::kSum);
  };
  const EnvironmentVariable use("RONDO_CALIBRATION", file.path());
  auto comms = Communicator::init_all(4);
  ASSERT_TRUE(comms.ok()) << comms.status().to_string();
  EXPECT_TRUE(choice(*comms, 0).starts_with("one_shot") || choice(*comms, 0).starts_with("direct"))
      << choice(*comms, 0);
  for (size_t r = 1; r < 4; ++r) EXPECT_EQ(choice(*comms, r), choice(*comms, 0));
}

// The same with measured corrections of candidates.
TEST(Calibration, RankZerosCorrectionsDecideOnAllRanks) {
  Calibration slow_but_one = sample();
  slow_but_one.costs = built_in_costs();
  CostCorrections& all = slow_but_one.corrections;
  for (size_t world = 0; world < CostCorrections::kWorlds; ++world)
    for (const Algorithm& a : all_algorithms())
      for (size_t form = 0; form < (a.direct ? 2 : CostCorrections::kForms); ++form) {
        all.note_known(world, algorithm_index(a), static_cast<CostForm>(form));
        for (int8_t& size : all.sixteenths[world][algorithm_index(a)][form]) size = a.name == "circulant" ? -100 : 0;
      }
  const File file(format_calibration(slow_but_one));
  const EnvironmentVariable use("RONDO_CALIBRATION", file.path());
  auto comms = Communicator::init_all(4);
  ASSERT_TRUE(comms.ok()) << comms.status().to_string();
  for (const uint64_t count : {2u, 1000u, 1000000u})
    for (size_t r = 0; r < 4; ++r) {
      const std::string plan = (*comms)[r]->explain_plan(Collective::kAllReduce, count, Dtype::kFloat32, Op::kSum);
      EXPECT_TRUE(plan.starts_with("circulant")) << plan;
    }
  comms->clear();
  all.known[3][row_of(Collective::kAllReduce, "tree")] = 0;  // one candidate was not measured: no correction counts
  all.known[4][row_of(Collective::kAllReduce, "tree")] = 0;
  all.known[0][row_of(Collective::kAllReduce, "tree")] = 0;
  all.known[1][row_of(Collective::kAllReduce, "tree")] = 0;
  const File less(format_calibration(slow_but_one));
  const EnvironmentVariable use_less("RONDO_CALIBRATION", less.path());
  comms = Communicator::init_all(4);
  ASSERT_TRUE(comms.ok()) << comms.status().to_string();
  const std::string plan = (*comms)[0]->explain_plan(Collective::kAllReduce, 2, Dtype::kFloat32, Op::kSum);
  EXPECT_FALSE(plan.starts_with("circulant")) << plan;
}

}  // namespace
}  // namespace rondo

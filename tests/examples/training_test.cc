// The programs of examples/01_ring, 04_plain_model and 06_tensor_parallel, run as their READMEs say.
// labels: mp
// timeout: 240
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "support/launchers.h"

namespace rondo::testing {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("rondo-examples-" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The output must contain `all`, in this order.
void expect_says(const Launched& launched, std::initializer_list<std::string> all) {
  EXPECT_EQ(launched.exit_status, 0) << launched.output;
  size_t from = 0;
  for (const std::string& words : all) {
    const size_t at = launched.output.find(words, from);
    ASSERT_NE(at, std::string::npos) << "'" << words << "' is missing in:\n" << launched.output;
    from = at + words.size();
  }
}

// The text between `before` and the next blank.
std::string word_after(const std::string& text, const std::string& before) {
  const size_t at = text.find(before);
  if (at == std::string::npos) return "";
  const size_t begin = at + before.size();
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

double last_loss(const std::string& text) {
  const size_t at = text.rfind("loss ");
  return at == std::string::npos ? INFINITY : std::stod(text.substr(at + 5));
}

Launched run_ring(const std::string& arguments) {
  return run_command("timeout 60 '" RONDO_EXAMPLE_RING "' " + arguments);
}

TEST(RingExample, ThreeRanksAndSixElementsGoThroughTheStatesOfTheTextbook) {
  expect_says(run_ring("3 6"), {"reduce-scatter step 1",                                    //
                                "rank 0     1   1  | 101 101  |   1   1     sent chunk 2",  // A2 to rank 1; has A1 + C1
                                "rank 1    10  10  |  10  10  |  11  11     sent chunk 0",  // B0 to rank 2; has B2 + A2
                                "rank 2   110 110  | 100 100  | 100 100     sent chunk 1",  // C1 to rank 0; has C0 + B0
                                "reduce-scatter step 2",                                    //
                                "rank 0   111 111  | 101 101  |   1   1     sent chunk 1",  //
                                "rank 1    10  10  | 111 111  |  11  11     sent chunk 2",  //
                                "rank 2   110 110  | 100 100  | 111 111     sent chunk 0",  //
                                "all-gather step 1",                                        //
                                "rank 0   111 111  | 101 101  | 111 111     sent chunk 0",  //
                                "rank 1   111 111  | 111 111  |  11  11     sent chunk 1",  //
                                "rank 2   110 110  | 111 111  | 111 111     sent chunk 2",  //
                                "all-gather step 2",                                        //
                                "rank 0   111 111  | 111 111  | 111 111     sent chunk 2",  //
                                "rank 2   111 111  | 111 111  | 111 111     sent chunk 1",  //
                                "4 steps; rank 0 has sent 32 B to rank 1 and received 32 B", "the same bits"});
}

TEST(RingExample, AnyNumberOfRanksAndElements) {
  for (const char* arguments : {"1 6", "2 7", "4 3", "5 11", "7 64", "3 0"})
    expect_says(run_ring(arguments), {"the same bits"});
  EXPECT_NE(run_ring("8").exit_status, 0);
}

TEST(ScatterReduceExample, HasTheSumAndMeanOfTheTextbook) {
  expect_says(run_command("'" RONDO_EXAMPLE_SCATTER_REDUCE "'"), {"sum", " 5 14 8 4\n", "mean", " 1.667 3.5 4 4\n"});
}

TEST(TensorParallelExample, PartsAreAsTheWholeWithOneToFiveRanks) {
  for (const char* ranks : {"1", "2", "3", "4", "5"})
    expect_says(run_command("timeout 60 '" RONDO_EXAMPLE_TENSOR_PARALLEL "' " + std::string(ranks)),
                {"MLP, A by columns", "attention, 4 heads", "exactly", "head, 101 words",
                 "row sums of exp: 17.2970 10.2543 19.1843 14.4078 17.8164\n", "4 all-reduces, 0 all-gathers",
                 "0 all-reduces, 4 all-gathers, 4 reduce-scatters"});
}

TEST(TensorParallelExample, TwoRanksPrintBothHalves) {
  expect_says(
      run_command("timeout 60 '" RONDO_EXAMPLE_TENSOR_PARALLEL "' 2"),
      {"rank 1\n", "      0.0000   0.0000   0.0000   0.0000\n", "exactly", "rank 0\n",
       "      0.3971   0.2558   0.1423   0.0070\n", "rank 1\n", "      0.1139   0.0168   0.0554   0.0116\n",
       "8192 B from each rank; kept 23552 B, of these 5120 B", "8192 B from each rank; kept 20992 B, of these 2560 B"});
}

#ifdef RONDO_CLI
// The bytes really sent, from the engine's records: column 10 of a line for each rank of both communicators.
TEST(TensorParallelExample, TracesHaveTheBytesThatWereCounted) {
  const Folder folder;
  const std::string traces = folder.file("traces");
  expect_says(run_command("timeout 60 '" RONDO_EXAMPLE_TENSOR_PARALLEL "' 4 '" + traces + "'"),
              {"24576 B from each rank", "24576 B from each rank"});
  const Launched summary = run_command("'" RONDO_CLI "' trace summary '" + traces + "'");
  const Launched bytes =
      run_command("'" RONDO_CLI "' trace summary '" + traces +
                  "' | awk '$2 ~ /^[0-9]+$/ {print $1, $10}' | sort | uniq -c | awk '{print $1, $3}'");
  EXPECT_EQ(bytes.output, "4 24576\n4 24576\n") << summary.output;
}
#endif

const char kSmall[] = " --batch 2 --length 16 --width 16 --deterministic ";

Launched train(const std::string& arguments) {
  return run_command("timeout 100 '" RONDO_EXAMPLE_PLAIN_MODEL "'" + std::string(kSmall) + arguments);
}

TEST(PlainModelExample, EveryStrategyDoesWhatItsPlanSaysAndHasTheSameBits) {
  std::set<std::string> hashes;
  for (const char* strategy : {"replicate", "optimizer", "gradients", "all"}) {
    const Launched ran = train("--ranks 3 --steps 2 --log --strategy " + std::string(strategy));
    expect_says(ran, {"3, through shm", "planned,", "done", "hash "});
    EXPECT_EQ(word_after(ran.output, "memory:  planned "), word_after(ran.output, "engine has ")) << ran.output;
    hashes.insert(word_after(ran.output, "hash "));
  }
  EXPECT_EQ(hashes.size(), 1u);
}

TEST(PlainModelExample, MoreRanksThanRowsOrCores) {
  const Launched ran = run_command("timeout 100 '" RONDO_EXAMPLE_PLAIN_MODEL
                                   "' --ranks 7 --steps 2 --log --batch 1 --length 3 --width 4 --heads 1 --layers 1");
  expect_says(ran, {"7, through shm", "log:", "hash "});
}

TEST(PlainModelExample, FourRanksHaveTheBitsOfOneWithTheirMicroBatches) {
  const Launched four = train("--ranks 4 --steps 3"), one = train("--ranks 1 --steps 3 --micro-batches 4");
  const Launched other = train("--ranks 2 --steps 3");
  expect_says(four, {"hash "});
  EXPECT_EQ(word_after(four.output, "hash "), word_after(one.output, "hash ")) << four.output << one.output;
  EXPECT_NE(word_after(four.output, "hash "), word_after(other.output, "hash "));  // other data gives another hash
}

TEST(PlainModelExample, LearnsAlsoWithNarrowParameters) {
  const Folder folder;
  const Launched wide =
      train("--ranks 2 --steps 40 --plot '" + folder.file("loss.svg") + "' --trace '" + folder.file("trace") + "'");
  const Launched narrow = train("--ranks 2 --steps 40 --param-dtype bf16");
  expect_says(wide, {"step     1", "step    40", "trace export"});
  expect_says(narrow, {"step    40"});
  EXPECT_LT(last_loss(wide.output), 3.6) << wide.output;  // log(86) = 4.45 at first
  EXPECT_NEAR(last_loss(narrow.output), last_loss(wide.output), 0.05) << narrow.output << wide.output;
  EXPECT_NE(word_after(narrow.output, "hash "), word_after(wide.output, "hash "));
  const std::string svg = contents(folder.file("loss.svg"));
  EXPECT_EQ(svg.rfind("<svg", 0), 0u);
  const std::string points =
      svg.substr(svg.find("points=\""), svg.find("\" fill", svg.find("points=\"")) - svg.find("points=\""));
  EXPECT_EQ(std::count(points.begin(), points.end(), ','), 40);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.file("trace")), {}), 2);  // a file for each rank
}

TEST(PlainModelExample, UnderMpirun) {
  if (!installed(kOpenMpi.program)) GTEST_SKIP() << kOpenMpi.program << " is not installed";
  const Launched here = train("--ranks 2 --steps 2");
  const Launched there =
      run_command("timeout 100 " + kOpenMpi.ranks(2) + " '" RONDO_EXAMPLE_PLAIN_MODEL "'" + kSmall + "--steps 2");
  expect_says(there, {"ranks:   2", "hash "});
  EXPECT_EQ(word_after(there.output, "hash "), word_after(here.output, "hash "));
}

TEST(PlainModelExample, SaysWhatIsMissing) {
  const Launched no_text = train("--ranks 2 --steps 1 --text /nowhere/at/all");
  EXPECT_NE(no_text.exit_status, 0);
  EXPECT_NE(no_text.output.find("'/nowhere/at/all' has no readable text"), std::string::npos) << no_text.output;
  EXPECT_NE(train("--ranks 1 --heads 3").output.find("no multiple of --heads"), std::string::npos);
}

// Starts two ranks and runs `then` when they train: $p is rank 0, $c its child.
Launched meddle(const Folder& folder, const std::string& then) {
  const std::string out = folder.file("out");
  fs::remove(out);
  std::ofstream script(folder.file("script"));
  script << "'" RONDO_EXAMPLE_PLAIN_MODEL "'" << kSmall << "--ranks 2 --steps 1000000 >'" << out << "' 2>&1 & p=$!\n"
         << "until grep -q step '" << out << "'; do sleep 0.02; done\n"
         << "c=$(tr -d ' ' </proc/$p/task/$p/children)\n"
         << then << "\n";
  script.close();
  return run_command("timeout 60 sh '" + folder.file("script") + "'");
}

TEST(PlainModelExample, ARankThatIsKilledEndsTheOthers) {
  const Folder folder;
  const Launched child = meddle(folder, "kill -9 $c; wait $p; echo ended $?");
  EXPECT_NE(child.output.find("ended 1"), std::string::npos) << child.output << contents(folder.file("out"));
  EXPECT_NE(contents(folder.file("out")).find("a peer was lost"), std::string::npos) << contents(folder.file("out"));
  // Dead means gone or a zombie.
  const Launched parent = meddle(folder,
                                 "kill -9 $p; while [ -d /proc/$c ] && ! grep -q 'State:.Z' /proc/$c/status; do "
                                 "sleep 0.02; done; echo gone");
  EXPECT_NE(parent.output.find("gone"), std::string::npos) << parent.output;
}

}  // namespace
}  // namespace rondo::testing

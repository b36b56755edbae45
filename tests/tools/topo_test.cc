// `rondo topo` as users run it: the golden texts of tests/topology/hosts, written and read files, errors.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "topology/hosts.h"

namespace rondo::testing {
namespace {

struct Ended {
  int status = -1;
  std::string text;  // stdout and stderr
};
Ended topo(const std::string& arguments) {
  Ended e;
  FILE* pipe = popen((std::string(RONDO_CLI) + " topo " + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return e;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) e.text.append(buffer, n);
  const int how = pclose(pipe);
  e.status = WIFEXITED(how) ? WEXITSTATUS(how) : -1;
  return e;
}

class Topo : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!have_hwloc()) GTEST_SKIP() << why_no_hwloc();
    char name[] = "/tmp/rondo-topo-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  const std::string box_ = "--xml " + tests_folder() + "hosts/gpu_box.xml";
  std::string folder_;
};

TEST_F(Topo, PrintsTheGoldenTexts) {
  const std::pair<std::string, const char*> cases[] = {
      {box_, "gpu_box_pcie"},
      {box_ + " --gpus", "gpu_box_pcie"},
      {box_ + " --ranks 16", "gpu_box_ranks_16"},
      {box_ + " --gpu-scene " + tests_folder() + "machines/a100_nvswitch_8.txt", "gpu_box_nvswitch"},
      {"--synthetic 'Package:2 Core:3 PU:2' --ranks 9", "no_numa"},
  };
  for (const auto& [arguments, golden] : cases) {
    const Ended e = topo(arguments);
    EXPECT_EQ(e.status, 0) << arguments;
    EXPECT_EQ(e.text, read_text(tests_folder() + "hosts/" + golden + ".golden")) << arguments;
  }
}

TEST_F(Topo, ThisMachineOutAndIn) {
  const Ended out = topo("--export-xml " + file("here.xml") + " --svg " + file("here.svg"));
  ASSERT_EQ(out.status, 0) << out.text;
  for (const char* words : {"package 0", "NUMA node 0", "rank 0", "\nring", "wrote "})
    EXPECT_NE(out.text.find(words), std::string::npos) << out.text;
  EXPECT_TRUE(check_xml(read_text(file("here.xml"))).ok());
  EXPECT_TRUE(read_text(file("here.svg")).starts_with("<svg "));
  const Ended in = topo("--xml " + file("here.xml"));
  EXPECT_EQ(in.status, 0) << in.text;
  EXPECT_TRUE(out.text.starts_with(in.text.substr(0, in.text.find("rank 0")))) << in.text << out.text;
}

TEST_F(Topo, RanksStayOnTheCpusThatAreAllowed) {
  const Ended e = topo("--synthetic 'Package:2 NUMANode:1 Core:4 PU:1' --ranks 2 --cpus 3,6-7");
  EXPECT_EQ(e.status, 0) << e.text;
  for (const char* words : {"allowed: 3\n", "allowed: 6-7\n", "rank 0   core 3 (CPU 3)", "rank 1   core 6 (CPU 6)"})
    EXPECT_NE(e.text.find(words), std::string::npos) << e.text;
  const Ended each = topo("--synthetic 'Package:2 NUMANode:1 Core:4 PU:1' --cpus 3,6-7");
  EXPECT_NE(each.text.find("rank 2 "), std::string::npos) << each.text;
  EXPECT_EQ(each.text.find("rank 3 "), std::string::npos) << "a rank for each core that is allowed";
}

TEST_F(Topo, MistakesAreNamedAndFail) {
  const std::string broken = file("broken.xml");
  std::ofstream(broken) << "<topology>\n<object>\n</topology>\n";
  const std::pair<std::string, std::string> cases[] = {
      {"--xml /nonexistent", "/nonexistent: cannot be read"},
      {"--xml " + broken, broken + ": line 3: </topology> closes <object>, which line 2 opens"},
      {"--synthetic 'Package:2 Fo:3 PU:1'", "--synthetic: the synthetic description is wrong at level 2, 'Fo:3'"},
      {"--synthetic ''", "description is empty"},
      {"--synthetic 'PU:2' --xml " + broken, "excludes"},
      {"--synthetic 'PU:2' --gpus", "this host has no GPU"},
      {"--synthetic 'PU:2' --cpus 2-1", "--cpus: '2-1': '2-1' is neither"},
      {"--synthetic 'PU:2' --cpus 7", "no CPU is allowed"},
      {"--synthetic 'PU:2' --ranks 0", "--ranks"},
      {"--synthetic 'PU:2' --svg /nonexistent/x.svg", "/nonexistent/x.svg: cannot be written"},
      {box_ + " --gpu-scene " + broken, "line 1"},
  };
  for (const auto& [arguments, words] : cases) {
    const Ended e = topo(arguments);
    EXPECT_NE(e.status, 0) << arguments;
    EXPECT_NE(e.text.find(words), std::string::npos) << e.text;
  }
}

TEST(TopoWithout, SaysWhatIsMissing) {
  if (have_hwloc()) GTEST_SKIP() << "hwloc is there";
  const Ended e = topo("");
  EXPECT_NE(e.status, 0);
  EXPECT_NE(e.text.find(why_no_hwloc()), std::string::npos) << e.text;
}

}  // namespace
}  // namespace rondo::testing

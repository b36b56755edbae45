// rondo's choices on described machines: tests/topology/machines/*.txt, each with its result in *.golden. The
// descriptions come from public documentation; none was recorded on a device. A change shows as a difference of text.
// RONDO_TEST_UPDATE=1 writes the results again, for a person to read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "topology/describe.h"
#include "topology/machine.h"

namespace rondo::testing {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(RONDO_SOURCE_DIR) / "tests/topology/machines";

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> machines() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder))
    if (entry.path().extension() == ".txt") names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}

struct Preference {
  const char *title, *level, *engine;
};
constexpr Preference kPreferences[] = {
    {"RONDO_P2P_LEVEL=loc", "loc", ""},
    {"RONDO_P2P_LEVEL=nvl", "nvl", ""},
    {"RONDO_P2P_LEVEL=pix", "pix", ""},
    {"RONDO_P2P_LEVEL=sys", "sys", ""},
    {"the stream engine wished for", "", "stream"},
};

std::string answer(const GpuScene& scene) {
  const std::string plain = describe_choices(scene, LinkPreferences());
  std::string text = describe_devices(scene.machine) + "\n" + describe_links(scene.machine) + "\n" + plain;
  for (const Preference& preference : kPreferences) {
    const std::string with = describe_choices(scene, parse_preferences(preference.level, preference.engine));
    text += std::string("\nwith ") + preference.title + (with == plain ? ": the same\n" : ":\n" + with);
  }
  return text;
}

class SelectGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(SelectGolden, IsWhatIsWritten) {
  const auto scene = parse_scene(read(kFolder / (GetParam() + ".txt")));
  ASSERT_TRUE(scene.ok()) << scene.status().to_string();
  const auto path = kFolder / (GetParam() + ".golden");
  const std::string now = answer(*scene);
  if (std::getenv("RONDO_TEST_UPDATE") != nullptr) {
    std::ofstream(path) << now;
    GTEST_SKIP() << "wrote " << path;
  }
  EXPECT_EQ(now, read(path)) << "RONDO_TEST_UPDATE=1 writes it anew";
}

// Both ranks of a pair decide separately, so their decisions must agree.
TEST_P(SelectGolden, IsSymmetric) {
  const auto scene = parse_scene(read(kFolder / (GetParam() + ".txt")));
  ASSERT_TRUE(scene.ok());
  const auto n = static_cast<uint32_t>(scene->machine.devices.size());
  for (const Preference& preference : kPreferences)
    for (uint32_t a = 0; a < n; ++a)
      for (uint32_t b = 0; b < n; ++b)
        for (const uint64_t process : {0, 1}) {
          const LinkPreferences preferences = parse_preferences(preference.level, preference.engine);
          const RankPlace x{0, 0, a, 0}, y{0, process, b, 0};
          const LinkChoice there = select_link(scene->machine, x, y, preferences);
          const LinkChoice back = select_link(scene->machine, y, x, preferences);
          EXPECT_EQ(there.kind, back.kind);
          EXPECT_EQ(there.reason, back.reason);
          EXPECT_EQ(there.expected_gbps, back.expected_gbps);
          EXPECT_TRUE(!there.ll128 || there.kind != LinkKind::kPcie);
          EXPECT_TRUE(!there.ll128 || there.kind != LinkKind::kHost);
        }
}

TEST_P(SelectGolden, TextAndDataAreTheSame) {
  const auto scene = parse_scene(read(kFolder / (GetParam() + ".txt")));
  ASSERT_TRUE(scene.ok());
  const std::string text = scene_text(*scene);
  const auto again = parse_scene(text);
  ASSERT_TRUE(again.ok()) << again.status().to_string() << text;
  EXPECT_EQ(scene_text(*again), text);
  EXPECT_EQ(answer(*again), answer(*scene));
}

INSTANTIATE_TEST_SUITE_P(Machines, SelectGolden, ::testing::ValuesIn(machines()),
                         [](const auto& info) { return info.param; });

TEST(SelectGolden, HasItsMachines) { EXPECT_GE(machines().size(), 12u); }

TEST(Select, SpinningKernelsNeverShareADeviceBetweenProcesses) {
  GpuMachine m;
  m.devices.resize(2);
  for (GpuDevice& d : m.devices) d.multiprocessors = 16;
  m.pairs.resize(4);
  const auto engine = [&](std::vector<RankPlace> ranks, uint32_t least = 1) {
    return select_engine(m, ranks, least, 1, LinkPreferences());
  };
  EXPECT_EQ(engine({{0, 0, 0, 0}, {0, 1, 1, 0}}).kind, EngineKind::kInterpreter);
  EXPECT_EQ(engine({{0, 0, 0, 0}, {0, 1, 0, 0}}).kind, EngineKind::kStream);
  EXPECT_EQ(engine({{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 1, 1, 0}, {0, 2, 1, 0}}).kind, EngineKind::kStream);
  EXPECT_EQ(engine({{0, 0, 0, 0}, {1, 1, 0, 0}}).kind, EngineKind::kInterpreter) << "devices of two hosts";
  const EngineChoice three = engine({{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 1, 0}}, 5);
  EXPECT_EQ(three.kind, EngineKind::kInterpreter);
  EXPECT_EQ(three.most_blocks, 5u);
  EXPECT_EQ(engine({{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, 6).kind, EngineKind::kStream);
  EXPECT_EQ(engine({{0, 0, 1, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}).most_blocks, 5u) << "the fullest device";
}

TEST(GpuMachineText, WrongLinesAreNamed) {
  const std::string device = "device 0 name=\"A\" capability=9.0\ndevice 1\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "no device"},
      {"device 1\n", "line 1: expected device 0"},
      {"# fine\n\nboard 0\n", "line 3: unknown word board"},
      {"device 0 name=\"A\n", "a quote is not closed"},
      {"device 0 capability=nine\n", "capability=nine"},
      {"device 0 pcie=5x16\n", "pcie=5x16"},
      {device + "pair 0 2 access=yes\n", "line 3: 2 is not a device"},
      {device + "pair 0\n", "a pair needs two devices"},
      {device + "pair 0 1 access=maybe\n", "access=maybe"},
      {device + "pair 0 1 nvlinks=-1\n", "nvlinks=-1"},
      {device + "rank device=2\n", "device=2"},
      {device + "rank device=0\ndevice 2\n", "devices must come before"},
      {device + "machine host\n", "host is not key=value"},
      {device + "machine driver=12\n", "driver=12"},
  };
  for (const auto& [text, expected] : cases) {
    const auto scene = parse_scene(text);
    ASSERT_FALSE(scene.ok()) << text;
    EXPECT_NE(scene.status().message().find(expected), std::string::npos) << scene.status().message();
  }
}

}  // namespace
}  // namespace rondo::testing

// Hosts read through hwloc, with the order that an expert would choose: golden texts in tests/topology/hosts. After
// RONDO_TEST_UPDATE=1 a person must read them. Wrong texts give errors. Also general properties of this machine.
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "topology/host_svg.h"
#include "topology/host_text.h"
#include "topology/hosts.h"
#include "topology/scene.h"

namespace rondo::testing {
namespace {

struct Case {
  const char* name;
  const char* synthetic;  // nullptr: gpu_box.xml
  const char* scene;      // in tests/topology/machines
  int ranks;              // 0: one for each GPU
};
constexpr Case kCases[] = {
    {"dual_socket",
     "Package:2 NUMANode:1(memory=68719476736) L3Cache:1(size=33554432) L2Cache:8(size=1048576) Core:1 PU:2", nullptr,
     8},
    {"numa_4", "Package:1 NUMANode:4(memory=34359738368) L3Cache:2(size=16777216) Core:4 PU:2", nullptr, 12},
    {"gpu_box_pcie", nullptr, nullptr, 0},
    {"gpu_box_nvswitch", nullptr, "a100_nvswitch_8", 0},
    {"gpu_box_ranks_16", nullptr, nullptr, 16},
    {"no_numa", "Package:2 Core:3 PU:2", nullptr, 9},
};

class HostGolden : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!have_hwloc()) GTEST_SKIP() << why_no_hwloc();
  }
};

Expected<HostWithDevices> read_case(const Case& c) {
  RONDO_TRY_ASSIGN(HostWithDevices host, read_host(c.synthetic != nullptr ? synthetic(c.synthetic) : gpu_box()));
  if (c.scene == nullptr) return host;
  RONDO_TRY_ASSIGN(const GpuScene scene, parse_scene(read_text(tests_folder() + "machines/" + c.scene + ".txt")));
  join_gpus(host, scene.machine);
  return host;
}

std::vector<DevicePlacement> places_of(const Case& c, const HostWithDevices& host) {
  const std::vector<int> gpus = c.ranks == 0 ? usable_gpus(host) : std::vector<int>();
  auto places = place_ranks_and_devices(host, c.ranks == 0 ? static_cast<int>(gpus.size()) : c.ranks, gpus);
  EXPECT_TRUE(places.ok()) << places.status().to_string();
  return places.ok() ? *places : std::vector<DevicePlacement>();
}

TEST_P(HostGolden, IsWhatIsWritten) {
  const auto host = read_case(GetParam());
  ASSERT_TRUE(host.ok()) << host.status().to_string();
  const auto places = places_of(GetParam(), *host);
  const std::string now = describe_host(*host) + "\n" + describe_places(*host, places) + "\n" +
                          describe_ring(*host, places, local_order(*host, places));
  const std::string path = tests_folder() + "hosts/" + GetParam().name + ".golden";
  if (std::getenv("RONDO_TEST_UPDATE") != nullptr) {
    std::ofstream(path) << now;
    GTEST_SKIP() << "wrote " << path;
  }
  EXPECT_EQ(now, read_text(path)) << "RONDO_TEST_UPDATE=1 writes it anew";
}

TEST_P(HostGolden, XmlAndDataAreTheSame) {
  const Case& c = GetParam();
  const auto host = read_case(c);
  const auto xml = host_xml(c.synthetic != nullptr ? synthetic(c.synthetic) : gpu_box());
  ASSERT_TRUE(xml.ok()) << xml.status().to_string();
  auto again = read_host({HostSource::Kind::kXml, *xml});
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  join_gpus(*again, host->gpu_machine);
  EXPECT_EQ(describe_host(*again), describe_host(*host));
  EXPECT_EQ(again->node_distances, host->node_distances);
  EXPECT_FALSE(again->this_machine);
}

TEST_P(HostGolden, TheDrawingIsXmlWithEveryRankAndHop) {
  const auto host = read_case(GetParam());
  const auto places = places_of(GetParam(), *host);
  const std::string svg = host_svg(*host, places, local_order(*host, places));
  const auto occurrences = [&](std::string_view what) {
    size_t found = 0;
    for (size_t at = 0; (at = svg.find(what, at)) != std::string::npos; at += what.size()) ++found;
    return found;
  };
  EXPECT_EQ(occurrences("class=\"number\""), places.size());
  EXPECT_EQ(occurrences("class=\"hop\""), places.size());
  EXPECT_EQ(occurrences("class=\"core\""), host->cores.size());
  EXPECT_EQ(occurrences("class=\"gpu\""), host->gpus.size());
  EXPECT_EQ(occurrences("class=\"nic\""), host->nics.size());
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  if (const std::string path = tests_folder() + "hosts/" + GetParam().name + ".svg"; std::filesystem::exists(path)) {
    if (std::getenv("RONDO_TEST_UPDATE") != nullptr) std::ofstream(path) << svg;
    EXPECT_EQ(svg, read_text(path)) << "RONDO_TEST_UPDATE=1 writes it anew: look at it";
  }
  const Status shape = check_xml(svg);  // well-formed up to the name of its root
  EXPECT_NE(shape.message().find("the outermost element is <svg>"), std::string::npos) << shape.to_string();
}

INSTANTIATE_TEST_SUITE_P(Hosts, HostGolden, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

class HostReader : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!have_hwloc()) GTEST_SKIP() << why_no_hwloc();
  }
};

TEST_F(HostReader, ReadsTheGpuBox) {
  const auto host = read_host(gpu_box());
  ASSERT_TRUE(host.ok()) << host.status().to_string();
  EXPECT_EQ(host->gpus.size(), 8u) << "the management chip's graphics is none";
  EXPECT_EQ(host->nics.size(), 9u);
  EXPECT_EQ(std::count_if(host->nics.begin(), host->nics.end(), [](const HostNic& n) { return n.rdma; }), 8);
  EXPECT_EQ(host->pus[1].os, 32);
  EXPECT_EQ(host->node_distances.size(), 64u);
  EXPECT_EQ(host->node_distances[7], 32u);
  for (const HostGpu& gpu : host->gpus) {
    EXPECT_GE(gpu.numa, 0);
    EXPECT_NEAR(host->pci[static_cast<size_t>(gpu.pci)].link_gbps, 31.5, 0.1);
  }
  const auto way = [&](size_t a, size_t b) { return pci_way(*host, host->gpus[a].pci, host->gpus[b].pci); };
  EXPECT_EQ(way(0, 1).path, PciPath::kOneSwitch);
  EXPECT_EQ(way(0, 1).num_switches, 1);
  EXPECT_EQ(way(0, 2).path, PciPath::kSystem);
  EXPECT_EQ(way(0, 0).path, PciPath::kSameBoard);
}

TEST_F(HostReader, GpusAreFoundByPciAddressHoweverItIsWritten) {
  auto host = read_host(gpu_box());
  ASSERT_TRUE(host.ok());
  GpuMachine machine;
  for (const char* address : {"00000000:B7:00.0", "0000:07:00.0", "0000:55:00.0"}) {
    GpuDevice device;
    device.pci = address;
    device.numa_node = 2;
    machine.devices.push_back(device);
  }
  machine.pairs.resize(9);
  join_gpus(*host, machine);
  ASSERT_EQ(host->gpus.size(), 9u);
  EXPECT_EQ(host->gpus[0].numa, 5);
  EXPECT_EQ(host->gpus[1].numa, 3);
  EXPECT_EQ(host->gpus[2].numa, 2) << "not in the PCI tree: the value of the description";
  EXPECT_LT(host->gpus[2].pci, 0);
  EXPECT_EQ(usable_gpus(*host), (std::vector<int>{0, 1, 2}));
}

TEST_F(HostReader, WrongSyntheticDescriptionsNameTheLevel) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "is empty"},
      {"   ", "is empty"},
      {"Package:2 Fo:3 PU:1", "level 2, 'Fo:3'"},
      {"Package:2 Core:2", "last level has to be PU"},
      {"Package:2 NUMANode:x PU:1", "level 2, 'NUMANode:x'"},
      {"Package:2 L3Cache:1(size=12 zz) PU:1", "level 2, 'L3Cache:1(size=12 zz)'"},
      {"Package:0 PU:1", "level 1, 'Package:0'"},
      {"<topology>", "level 1"},
  };
  for (const auto& [text, words] : cases) {
    const auto host = read_host(synthetic(text));
    ASSERT_FALSE(host.ok()) << text;
    EXPECT_EQ(host.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(host.status().message().find(words), std::string::npos) << host.status().message();
  }
}

TEST_F(HostReader, WrongXmlIsRefused) {
  const std::string good = gpu_box().text;
  for (const std::string& text : {std::string("<topology/>"), std::string("<topology version=\"2.0\"></topology>"),
                                  std::string("<topology version=\"2.0\"><object type=\"Cupboard\"/></topology>")}) {
    const auto host = read_host({HostSource::Kind::kXml, text});
    ASSERT_FALSE(host.ok()) << text;
    EXPECT_NE(host.status().message().find("hwloc refuses it"), std::string::npos) << host.status().message();
  }
  for (size_t length = 0; length < good.size() - 20; length += 997)
    EXPECT_FALSE(read_host({HostSource::Kind::kXml, good.substr(0, length)}).ok()) << length;
}

TEST_F(HostReader, ThisMachine) {
  if (std::getenv("HWLOC_XMLFILE") != nullptr || std::getenv("HWLOC_SYNTHETIC") != nullptr)
    GTEST_SKIP() << "a variable makes hwloc read another topology";
  const auto host = read_host({});
  ASSERT_TRUE(host.ok()) << host.status().to_string();
  EXPECT_TRUE(host->this_machine);
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  int allowed = 0;
  for (const Pu& pu : host->pus) {
    if (!pu.allowed) continue;
    ++allowed;
    EXPECT_TRUE(CPU_ISSET(pu.os, &mask));
  }
  EXPECT_EQ(allowed, CPU_COUNT(&mask));
  EXPECT_GE(host->packages.size(), 1u);
  EXPECT_GE(host->nodes.size(), 1u);
  for (const Core& core : host->cores) {
    EXPECT_GE(core.package, 0);
    EXPECT_GE(core.numa, 0);
    EXPECT_FALSE(core.pus.empty());
    for (const int pu : core.pus)
      EXPECT_EQ(&host->cores[static_cast<size_t>(host->pus[static_cast<size_t>(pu)].core)], &core);
  }
  for (const int n : {1, 2, 5}) {
    const auto places = place_ranks(*host, n);
    ASSERT_TRUE(places.ok());
    EXPECT_EQ(ring_order(Hops(*host, *places)).size(), static_cast<size_t>(n));
  }
  const auto xml = host_xml({});
  ASSERT_TRUE(xml.ok());
  const auto again = read_host({HostSource::Kind::kXml, *xml});
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->cores.size(), host->cores.size());
  EXPECT_FALSE(again->this_machine);
}

TEST(HostReaderWithout, SaysWhatIsMissing) {
  if (have_hwloc()) GTEST_SKIP() << "hwloc is there";
  for (const Status& s : {read_host({}).status(), host_xml({}).status()}) {
    EXPECT_EQ(s.code(), StatusCode::kUnsupported);
    EXPECT_NE(s.message().find(why_no_hwloc()), std::string::npos);
  }
}

TEST(CheckXml, NamesTheLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "line 1: it is empty"},
      {"machine host=a\n", "line 1: text is outside"},
      {"<?xml version=\"1.0\"?>\n<svg/>", "line 2: the outermost element is <svg>"},
      {"<topology>\n<object>\n</topology>", "line 3: </topology> closes <object>, which line 2 opens"},
      {"<topology>\n<object>\n</object>\n", "line 4: the text ends inside <topology>, which line 1 opens"},
      {"<topology a=b/>", "the value of a of <topology> has no quotes"},
      {"<topology a/>", "a of <topology> has no value"},
      {"<topology\n a=\"b/>\n", "line 2: the value of a of <topology> is not closed"},
      {"<topology\n", "ends inside the tag <topology>"},
      {"<!-- \n <topology/>", "a comment is not closed"},
      {"<topology/><topology/>", "follows the outermost"},
      {"</topology>", "closes an element that is not open"},
      {"<topology><></topology>", "< without the name"},
      {"<?xml?>", "there is no element"},
  };
  for (const auto& [text, words] : cases) {
    const Status s = check_xml(text);
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(s.message().find(words), std::string::npos) << text << ": " << s.message();
  }
  EXPECT_TRUE(
      check_xml(
          "<?xml version='1.0'?><!DOCTYPE topology>\n<topology a='1>' b = \"x\">\n<!-- <a> --><o/> t</topology>\n")
          .ok());
  EXPECT_TRUE(check_xml(gpu_box().text).ok());
}

}  // namespace
}  // namespace rondo::testing

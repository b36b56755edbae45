// The probe of this machine, with a fake driver, NVML and /sys of another machine, and without any of them.
// separate
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "device/driver/driver.h"
#include "device/topology/nvml.h"
#include "device/topology/probe.h"
#include "support/fake_cuda/fake_machine.h"
#include "topology/scene.h"

namespace rondo::testing {
namespace {

namespace fs = std::filesystem;

// A temporary folder used instead of "/".
class Root {
 public:
  Root() {
    std::string name = (fs::temp_directory_path() / "rondo-probe-XXXXXX").string();
    RONDO_CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Root() { fs::remove_all(path_); }
  std::string path() const { return path_; }
  void write(const std::string& at, const std::string& text) const {
    fs::create_directories(fs::path(path_ + at).parent_path());
    std::ofstream(path_ + at) << text;
  }
  /// A PCI device below bridges, at the kernel's path.
  void device(const std::string& pci, const std::string& below, int numa, const std::string& iommu) const {
    const std::string place = "/sys/devices/" + below + "/" + pci;
    write(place + "/numa_node", std::to_string(numa) + "\n");
    if (!iommu.empty()) write(place + "/iommu_group/type", iommu + "\n");
    fs::create_directories(path_ + "/sys/bus/pci/devices");
    fs::create_directory_symlink(path_ + place, path_ + "/sys/bus/pci/devices/" + pci);
  }

 private:
  std::string path_;
};

GpuScene recorded(const std::string& name) {
  std::ifstream file(std::string(RONDO_SOURCE_DIR) + "/tests/topology/machines/" + name + ".txt");
  std::stringstream text;
  text << file.rdbuf();
  auto scene = parse_scene(text.str());
  EXPECT_TRUE(scene.ok()) << name << ": " << scene.status().to_string();
  return scene.ok() ? *scene : GpuScene();
}

// Copies values that a probe cannot find, or finds elsewhere, from the other one.
GpuMachine comparable(GpuMachine m, const GpuMachine& other) {
  m.host = other.host;
  m.cpu = other.cpu;
  m.acs = other.acs;
  for (size_t i = 0; i < m.devices.size(); ++i) m.devices[i].uuid = other.devices[i].uuid;
  return m;
}

class ProbeRecorded : public ::testing::TestWithParam<const char*> {};

TEST_P(ProbeRecorded, FindsWhatIsDescribed) {
  const GpuMachine machine = recorded(GetParam()).machine;
  ASSERT_FALSE(machine.devices.empty());
  const Root root;
  for (const GpuDevice& d : machine.devices)
    if (!fs::exists(root.path() + "/sys/bus/pci/devices/" + d.pci))
      root.device(d.pci, "pci0000:00", d.numa_node, machine.iommu == Known::kYes ? "DMA-FQ" : "identity");
  FakeCuda cuda(fake_machine(machine));
  FakeNvml nvml(machine);
  const auto found = probe_machine(root.path());
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(scene_text({comparable(*found, machine), {}}), scene_text({machine, {}}));
  EXPECT_EQ(cuda.leaks(), "");
}

// MIG slices share the PCI id that identifies a handle. They have no links, so the first one's answers serve all.
INSTANTIATE_TEST_SUITE_P(Machines, ProbeRecorded,
                         ::testing::Values("h100_nvswitch_8", "a100_nvswitch_8", "v100_nvlink_4", "l40s_pcie_4",
                                           "l40s_iommu_4", "a100_sockets_4", "a100_amd_2", "h100_mig_3", "geforce_2",
                                           "h200_threads_8"),
                         [](const auto& info) { return std::string(info.param); });

// Two devices are visible; the others belong to other processes. Then everything about links is known as before.
TEST(Probe, HiddenDevicesGetTheirLinks) {
  for (const char* name : {"h100_nvswitch_8", "v100_nvlink_4", "l40s_pcie_4"}) {
    const GpuMachine machine = recorded(name).machine;
    const Root root;
    for (const GpuDevice& d : machine.devices) root.device(d.pci, "pci0000:00", d.numa_node, "identity");
    GpuMachine visible = machine;
    visible.devices.resize(2);
    visible.pairs = {machine.pair(0, 0), machine.pair(0, 1), machine.pair(1, 0), machine.pair(1, 1)};
    FakeCuda cuda(fake_machine(visible));
    FakeNvml nvml(machine);
    auto found = probe_machine(root.path());
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    ASSERT_EQ(found->devices.size(), 2u);
    for (size_t i = 2; i < machine.devices.size(); ++i) {
      const GpuDevice& d = machine.devices[i];
      GpuDevice hidden;
      hidden.pci = d.pci;
      hidden.capability_major = d.capability_major;
      hidden.capability_minor = d.capability_minor;
      add_hidden_device(*found, hidden, root.path());
    }
    for (size_t a = 0; a < machine.devices.size(); ++a) {
      EXPECT_EQ(found->devices[a].switch_links, machine.devices[a].switch_links) << name << a;
      EXPECT_EQ(found->devices[a].pcie_generation, machine.devices[a].pcie_generation) << name << a;
      for (size_t b = 0; b < machine.devices.size(); ++b) {
        if (a == b) continue;
        EXPECT_EQ(found->pair(a, b).access, machine.pair(a, b).access) << name << a << b;
        EXPECT_EQ(found->pair(a, b).nvlinks, machine.pair(a, b).nvlinks) << name << a << b;
        EXPECT_EQ(found->pair(a, b).path, machine.pair(a, b).path) << name << a << b;
      }
    }
  }
}

TEST(Probe, WithoutNvmlTheKernelsTreeSaysThePath) {
  const GpuMachine machine = recorded("l40s_pcie_4").machine;
  const Root root;
  const std::string top = "pci0000:16/0000:16:01.0/0000:17:00.0";
  root.device("0000:1a:00.0", top + "/0000:18:00.0", 0, "");
  root.device("0000:1b:00.0", top + "/0000:18:01.0", 0, "");
  root.device("0000:1c:00.0", top + "/0000:18:02.0/0000:19:00.0/0000:19:10.0", 0, "");
  root.device("0000:1d:00.0", "pci0000:80/0000:80:01.0", 1, "");
  root.write("/proc/cpuinfo", "processor : 0\nvendor_id : AuthenticAMD\n");
  fs::create_directories(root.path() + "/sys/kernel/iommu_groups");
  FakeCuda cuda(fake_machine(machine));
  ASSERT_EQ(nvml(), nullptr) << "this test expects a machine without NVML";
  EXPECT_NE(why_no_nvml(), "");
  const auto found = probe_machine(root.path());
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(found->nvml_version, "");
  EXPECT_EQ(found->cpu, CpuVendor::kAmd);
  EXPECT_EQ(found->iommu, Known::kNo);
  EXPECT_EQ(found->pair(0, 1).path, PciPath::kOneSwitch);
  EXPECT_EQ(found->pair(0, 2).path, PciPath::kSwitches);
  EXPECT_EQ(found->pair(0, 3).path, PciPath::kSystem);
  EXPECT_EQ(found->devices[0].pcie_generation, 0);
  EXPECT_TRUE(found->pair(0, 1).access);
  EXPECT_EQ(numa_node_of_device(2, root.path()), 0);
  EXPECT_EQ(numa_node_of_device(3, root.path()), 1);
  EXPECT_EQ(numa_node_of_device(4, root.path()), -1) << "no such device";
}

TEST(Probe, PathsOfTheKernel) {
  const std::string a = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
  EXPECT_EQ(compare_pci_paths(a, a, 0, 0), PciPath::kSameBoard);
  EXPECT_EQ(compare_pci_paths(a, "/sys/devices/pci0000:00/0000:00:01.1/0000:02:00.0", 0, 0), PciPath::kHostBridge);
  EXPECT_EQ(compare_pci_paths(a, "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0", 0, 0), PciPath::kNumaNode);
  EXPECT_EQ(compare_pci_paths(a, "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0", 0, 1), PciPath::kSystem);
  EXPECT_EQ(compare_pci_paths(a, "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0", -1, -1), PciPath::kSystem);
  EXPECT_EQ(compare_pci_paths(a, "", 0, 0), PciPath::kUnknown);
  const std::string bridge = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/";
  EXPECT_EQ(compare_pci_paths(bridge + "0000:02:00.0/0000:03:00.0", bridge + "0000:02:01.0/0000:04:00.0", 0, 0),
            PciPath::kOneSwitch);
  EXPECT_EQ(
      compare_pci_paths(bridge + "0000:02:00.0/0000:03:00.0", bridge + "0000:02:01.0/0000:04:00.0/0000:05:00.0", 0, 0),
      PciPath::kSwitches);
  EXPECT_EQ(compare_pci_paths(bridge + "0000:02:00.0", bridge + "0000:02:00.1", 0, 0), PciPath::kOneSwitch);
}

TEST(Probe, WithoutADriverItSaysWhy) {
  ASSERT_EQ(cuda::driver(), nullptr) << "this test expects a machine without a driver";
  const auto found = probe_machine();
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(found.status().message(), cuda::why_no_driver());
  EXPECT_NE(cuda::why_no_driver(), "");
}

TEST(Probe, ADriversErrorIsPassedOn) {
  FakeCuda cuda(FakeMachine::uniform(1));
  cuda.fail("cuDeviceGetPCIBusId", cuda::kErrorInvalidDevice);
  const auto found = probe_machine();
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.status().message().find("cuDeviceGetPCIBusId: CUDA_ERROR_INVALID_DEVICE"), std::string::npos)
      << found.status().message();
}

}  // namespace
}  // namespace rondo::testing

int main(int argc, char** argv) {
  setenv("RONDO_CUDA", "0", 1);  // a real driver might exist where none is expected
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

// Checkpoints of engines on fake devices: the same files as from the host, loaded on both by any number of ranks, with
// the ranks' own parts on the device or in host memory.
// labels: unit tsan
// timeout: 120
// links: host_kernels
#include "fsdp/checkpoint_support.h"
#include "fsdp/fake_device.h"

namespace rondo::fsdp::testing {
namespace {

enum class Place { kHost, kDevice, kOffload };

Setting setting(int nranks, Place place) {
  Setting s;
  s.plan.nranks = nranks;
  s.plan.offload = place == Place::kOffload;
  s.optimizer = {.rule = Rule::kAdam};
  s.optimizer.lr = 0.1f;
  if (place == Place::kHost) return s;
  s.memory = rondo::Memory::kCuda;
  s.device = [](Communicator& comm) { return std::make_shared<FakeDevice>(comm, Delays{300, 300}); };
  return s;
}

template <class Fn>
void on(const Setting& s, const Fn& fn) {
  std::unique_ptr<rondo::testing::EmulatedCuda> cuda;
  rondo::testing::SpawnOptions options;
  if (s.device) {
    cuda = std::make_unique<rondo::testing::EmulatedCuda>(rondo::testing::FakeMachine::uniform(s.plan.nranks));
    options.config = rondo::testing::device_config("device_blocks = -3");
  }
  with_engines(World::kThreads, s, fn, options);
  if (cuda != nullptr) {
    EXPECT_EQ(cuda->fake().leaks(), "");
  }
}

constexpr Place kPlaces[] = {Place::kHost, Place::kDevice, Place::kOffload};
std::string name_of(Place p) { return std::to_string(static_cast<int>(p)); }

TEST(FsdpDeviceCheckpoint, FilesAreThoseOfTheHostAndLoadAnywhere) {
  const TempFolder folder;
  for (const Place place : kPlaces) {
    const Setting s = setting(2, place);
    on(s, [&](Engine& engine, Rank rank) {
      fill(engine);
      train_steps(engine, s.net, 1, 2, rank);
      const Status saved = save(engine, folder / name_of(place), {.items = R"({"position": 17})"});
      ASSERT_TRUE(saved.ok()) << saved.to_string();
      const Status whole = save_full(engine, folder / ("whole" + name_of(place)));
      ASSERT_TRUE(whole.ok()) << whole.to_string();
    });
  }
  size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "0")) {
    if (!entry.is_regular_file()) continue;
    ++files;
    const std::string relative = std::filesystem::relative(entry.path(), folder / "0");
    for (const Place place : {Place::kDevice, Place::kOffload})
      EXPECT_TRUE(bytes_of(entry.path()) == bytes_of(folder / (name_of(place) + "/" + relative))) << relative;
  }
  EXPECT_EQ(files, 5u);
  for (const Place place : {Place::kDevice, Place::kOffload})
    EXPECT_TRUE(bytes_of(folder / "whole0") == bytes_of(folder / ("whole" + name_of(place))));

  Alone there(setting(2, Place::kHost).net, setting(2, Place::kHost).optimizer);
  there.train(2, 2);
  Alone end = there;
  end.train(3, 2);
  for (const Place place : kPlaces) {
    const Setting s = setting(3, place);
    on(s, [&](Engine& engine, Rank rank) {
      const auto loaded = load(engine, folder / name_of(Place::kDevice));
      ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
      EXPECT_TRUE(loaded->has_optimizer);
      expect_equal(engine, there);
      train_steps(engine, s.net, 3, 2, rank);
      expect_equal(engine, end);
    });
  }
}

// More than one piece of reads, writes and messages. Ranks that always keep parameters have them after loading.
TEST(FsdpDeviceCheckpoint, LongTensorsGoPieceByPiece) {
  const TempFolder folder;
  constexpr uint64_t kRows = 2'100'001;
  Model model;
  model.units = {{"unit", {{"w", {kRows}}}}};
  auto value = [](uint64_t i) { return static_cast<float>(i % 1'000'003); };
  for (const Place place : {Place::kDevice, Place::kOffload})
    for (const bool loads : {false, true}) {
      Setting s = setting(2, place);
      rondo::testing::EmulatedCuda cuda(rondo::testing::FakeMachine::uniform(2));
      rondo::testing::SpawnOptions options;
      options.config = rondo::testing::device_config("device_blocks = -3");
      spawn(
          World::kThreads, 2,
          [&](Communicator& comm) {
            Options o{.nranks = 2, .strategy = loads ? Strategy::kShardOptimizer : Strategy::kShardAll};
            o.offload = place == Place::kOffload;
            const auto plan = Plan::build(model, o);
            ASSERT_TRUE(plan.ok());
            auto made = Engine::create(*plan, comm, {.device = s.device(comm)});
            ASSERT_TRUE(made.ok()) << made.status().to_string();
            Engine& e = **made;
            if (!loads) {
              ASSERT_TRUE(e.init([&](const Tensor&, uint64_t first, uint64_t n, void* to) {
                             for (uint64_t i = 0; i < n; ++i) static_cast<float*>(to)[i] = value(first + i);
                           }).ok());
              ASSERT_TRUE(save(e, folder / "c").ok());
              uint64_t wrong = 0, seen = 0;
              const Status exported = export_full(
                  e, [&](const std::string&, const Tensor&, const void* data, uint64_t size_bytes) -> Status {
                    seen = size_bytes / sizeof(float);
                    for (uint64_t i = 0; i < seen; ++i) wrong += static_cast<const float*>(data)[i] != value(i);
                    return {};
                  });
              ASSERT_TRUE(exported.ok()) << exported.to_string();
              EXPECT_EQ(seen, comm.rank() == 0 ? kRows : 0);
              EXPECT_EQ(wrong, 0u);
              return;
            }
            const auto loaded = load(e, folder / "c");
            ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
            ASSERT_TRUE(e.device().synchronize(Line::kCompute).ok());
            const auto* here = static_cast<const float*>(e.data(0, 0));
            ASSERT_NE(here, nullptr);
            uint64_t wrong = 0;
            for (uint64_t i = 0; i < kRows; ++i) wrong += here[i] != value(i);
            EXPECT_EQ(wrong, 0u);
          },
          options);
    }
}

}  // namespace
}  // namespace rondo::fsdp::testing

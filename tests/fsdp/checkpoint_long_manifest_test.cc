// A save whose manifest would be unreadable: 256 MiB of text, too slow for the sanitizers.
// labels: mp
// timeout: 120
#include <gtest/gtest.h>

#include "fsdp/checkpoint_support.h"
#include "fsdp/manifest.h"

namespace rondo::fsdp::testing {
namespace {

// The error comes before the old checkpoint is replaced by an unreadable one.
TEST(LongManifest, AManifestThatIsTooLongDoesNotTakeTheOldOnesPlace) {
  const TempFolder folder;
  Setting s;
  s.plan.nranks = 1;
  with_engines(World::kThreads, s, [&](Engine& engine, Rank) {
    fill(engine);
    EXPECT_TRUE(save(engine, folder / "c", {.items = R"({"turn":1})"}).ok());
    const Status refused =
        save(engine, folder / "c", {.items = "{\"a\":\"" + std::string(kMostManifestBytes, 'a') + "\"}"});
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.message().find("could not be loaded"), std::string::npos) << refused.to_string();
  });
  const auto c = inspect(folder / "c");
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_EQ(c->items, R"({"turn":1})");
  EXPECT_FALSE(std::filesystem::exists(folder / "c.saving"));
}

}  // namespace
}  // namespace rondo::fsdp::testing

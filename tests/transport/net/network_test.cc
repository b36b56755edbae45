// The table of networks between hosts: the setting and the look-up follow it.
// labels: unit
#include "transport/net/network.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "config/setting_table.h"
#include "support/simple_calls.h"

namespace rondo::net {
namespace {

TEST(Networks, EachHasTwoValuesOfTheSetting) {
  const SettingRow* row = find_setting("transport");
  ASSERT_NE(row, nullptr);
  std::set<std::string> names;
  for (size_t i = 0; i < networks().size(); ++i) {
    const std::string name(networks()[i]->name);
    EXPECT_TRUE(names.insert(name).second) << name;
    for (const std::string& value : {name, "shm+" + name}) {
      EXPECT_TRUE(testing::is_ok(check_setting(*row, value, "test"))) << value;
      EXPECT_EQ(network_index(value), i) << value;
    }
    EXPECT_EQ(networks()[i]->make_rail != nullptr, networks()[i]->is_built) << name;
    EXPECT_FALSE(networks()[i]->describe().empty()) << name;
  }
  EXPECT_FALSE(check_setting(*row, "shm+none", "test").ok());
  EXPECT_EQ(network_index("shm+none"), networks().size());
}

// Therefore RONDO_TRANSPORT=auto always finds one.
TEST(Networks, TheLastOneIsAlwaysUsable) {
  const Network& last = *networks().back();
  EXPECT_EQ(last.name, "tcp");
  EXPECT_TRUE(last.is_built && last.is_preferred());
}

}  // namespace
}  // namespace rondo::net

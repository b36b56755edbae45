// Sealed messages: a message sealed for a rank opens there, once, unaltered, and nowhere else.
#include "transport/net/sealer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace rondo::net {
namespace {

constexpr Sealer::Key kKey = {1, 2, 3};

struct Opened {
  bool ok;
  std::string data;
};
Opened open(Sealer& s, Rank from, std::string_view header, const std::string& sealed) {
  std::string plain(sealed.size() < Sealer::kExtraBytes ? 0 : sealed.size() - Sealer::kExtraBytes, '\0');
  const bool ok = s.open(from, header, reinterpret_cast<const std::byte*>(sealed.data()), sealed.size(),
                         reinterpret_cast<std::byte*>(plain.data()));
  return {ok, plain};
}

TEST(Sealer, OpensWhatItSealed) {
  auto a = Sealer::create(kKey, 0, 3), b = Sealer::create(kKey, 2, 3);
  for (const size_t bytes : {0, 1, 15, 16, 64, 65537}) {
    const std::string data(bytes, 'd');
    const std::string sealed = a->seal(2, "header", data.data(), data.size());
    EXPECT_EQ(sealed.size(), bytes + Sealer::kExtraBytes);
    if (bytes > 16) EXPECT_EQ(sealed.find("dddddddd"), std::string::npos);
    const Opened opened = open(*b, 0, "header", sealed);
    EXPECT_TRUE(opened.ok);
    EXPECT_EQ(opened.data, data);
  }
}

TEST(Sealer, RefusesWhatWasAlteredOrIsNotMeantForIt) {
  auto a = Sealer::create(kKey, 0, 3), b = Sealer::create(kKey, 2, 3), other = Sealer::create(kKey, 1, 3),
       unauthenticated = Sealer::create(Sealer::Key{9}, 2, 3);
  const std::string sealed = a->seal(2, "header", "data", 4);
  EXPECT_FALSE(open(*unauthenticated, 0, "header", sealed).ok) << "another key";
  EXPECT_FALSE(open(*other, 0, "header", sealed).ok) << "another reader";
  EXPECT_FALSE(open(*b, 1, "header", sealed).ok) << "another writer";
  EXPECT_FALSE(open(*b, 7, "header", sealed).ok) << "no such rank";
  EXPECT_FALSE(open(*b, 0, "headeR", sealed).ok) << "another header";
  auto on_rail_1 = Sealer::create(kKey, 2, 3, 1);
  EXPECT_FALSE(open(*on_rail_1, 0, "header", sealed).ok) << "another rail";
  for (size_t i = 0; i < sealed.size(); ++i) {
    std::string altered = sealed;
    altered[i] = static_cast<char>(altered[i] ^ 4);
    EXPECT_FALSE(open(*b, 0, "header", altered).ok) << "byte " << i;
    EXPECT_FALSE(open(*b, 0, "header", sealed.substr(0, i)).ok) << "cut after " << i;
  }
  EXPECT_TRUE(open(*b, 0, "header", sealed).ok) << "none of these has used it up";
}

TEST(Sealer, OpensEachOnceInAnyOrderWithinTheWindow) {
  auto a = Sealer::create(kKey, 0, 2), b = Sealer::create(kKey, 1, 2);
  std::vector<std::string> sealed;
  for (uint64_t i = 0; i < 2 * Sealer::kWindow; ++i) sealed.push_back(a->seal(1, "h", &i, sizeof i));
  std::vector<size_t> order(sealed.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937 random(1);
  for (size_t at = 0; at + 100 <= order.size(); at += 100)  // overtaking, but not by more than the window
    std::shuffle(order.begin() + static_cast<ptrdiff_t>(at), order.begin() + static_cast<ptrdiff_t>(at) + 100, random);
  for (const size_t i : order) {
    EXPECT_TRUE(open(*b, 0, "h", sealed[i]).ok) << i;
    EXPECT_FALSE(open(*b, 0, "h", sealed[i]).ok) << i << " again";
  }
  EXPECT_FALSE(open(*b, 0, "h", sealed[0]).ok) << "older than the window";
}

}  // namespace
}  // namespace rondo::net

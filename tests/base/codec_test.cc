// The codec: what is encoded comes back, whatever its type; of bytes that were cut, changed or made up nothing is read
// beyond their end and nothing is allocated by a count that they cannot hold.
// labels: unit
#include "base/codec.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "base/outcome.h"

namespace rondo {
namespace {

enum class Colour : uint8_t { kRed = 1, kBlue = 2 };

struct Inner {
  std::string name;
  uint16_t port = 0;
  friend bool operator==(const Inner&, const Inner&) = default;
};
template <class C>
void fields(C& c, Inner& i) {
  c(i.name, i.port);
}

struct Outer {
  int64_t number = 0;
  double seconds = 0;
  bool flag = false;
  Colour colour = Colour::kRed;
  char text[6] = {};
  std::array<uint8_t, 3> bytes{};
  std::vector<Inner> inner;
  std::vector<std::vector<int32_t>> lists;
  std::optional<std::string> maybe, never;
  friend bool operator==(const Outer& a, const Outer& b) {
    return encode(a) == encode(b) && a.inner == b.inner && a.lists == b.lists && a.maybe == b.maybe;
  }
};
template <class C>
void fields(C& c, Outer& o) {
  c(o.number, o.seconds, o.flag, o.colour, o.text, o.bytes, o.inner, o.lists, o.maybe, o.never);
}

Outer example() {
  return {-5,    2.5, true, Colour::kBlue, "hello", {1, 2, 3}, {{"a", 1}, {std::string("\0b", 2), 2}}, {{1, -2}, {}},
          "yes", {}};
}

TEST(Codec, WhatIsEncodedComesBack) {
  const auto back = decode<Outer>(encode(example()));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(*back, example());
  EXPECT_EQ(back->number, -5);
  EXPECT_EQ(back->colour, Colour::kBlue);
  EXPECT_STREQ(back->text, "hello");
  EXPECT_FALSE(back->never.has_value());
}

TEST(Codec, BytesAreLittleEndianWithLengthsBefore) {
  Encoder e;
  e(uint16_t{0x0102}, std::string("ab"), std::vector<uint8_t>{7});
  EXPECT_EQ(e.bytes(), std::string("\x02\x01\x02\0\0\0ab\x01\0\0\0\x07", 13));
}

TEST(Codec, OneByteLessOrMoreIsNoMessage) {
  const std::string bytes = encode(example());
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(decode<Outer>(bytes.substr(0, n)).has_value()) << n;
  EXPECT_FALSE(decode<Outer>(bytes + "x").has_value());
}

TEST(Codec, ACountThatCannotBeAllocatesNothing) {
  const std::string many = encode(uint32_t{0xFFFFFFFF});
  EXPECT_FALSE(decode<std::vector<Inner>>(many).has_value());
  EXPECT_FALSE(decode<std::vector<std::vector<int32_t>>>(many).has_value());
  EXPECT_FALSE(decode<std::string>(many).has_value());
  // Ten of at least six bytes each do not fit into 59.
  EXPECT_FALSE(decode<std::vector<Inner>>(encode(uint32_t{10}) + std::string(59, '\0')).has_value());
  EXPECT_TRUE(decode<std::vector<Inner>>(encode(uint32_t{10}) + std::string(60, '\0')).has_value());
}

TEST(Codec, AfterTheEndEverythingIsZero) {
  Decoder d("\x05");
  EXPECT_EQ(d.get<uint32_t>(), 0u);
  EXPECT_FALSE(d.ok());
  EXPECT_EQ(d.get<uint8_t>(), 0) << "also what would have fitted";
  EXPECT_EQ(d.text(), "");
  EXPECT_FALSE(d.finished());
}

TEST(Codec, TakesAnyBytes) {
  std::mt19937 random(1);
  const std::string seed = encode(example());
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = seed.substr(0, random() % (seed.size() + 1));
    for (size_t changes = random() % 4; changes > 0 && !bytes.empty(); --changes)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto o = decode<Outer>(bytes);
    EXPECT_EQ(o ? encode(*o).size() : bytes.size(), bytes.size());
  }
}

TEST(Outcome, AMessageOrTheRanksError) {
  const auto good = read_outcome<Outer>(encode_outcome(Expected<Outer>(example())), 3);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, example());
  const Status full(StatusCode::kExhausted, "no room");
  const Status heard = read_outcome<Outer>(encode_outcome(Expected<Outer>(full)), 3).status();
  EXPECT_EQ(heard.code(), StatusCode::kExhausted);
  EXPECT_EQ(heard.message(), "rank 3: no room");
  EXPECT_TRUE(read_outcome(encode_outcome(Status()), 0).ok());
  EXPECT_EQ(read_outcome(encode_outcome(full), 1).message(), "rank 1: no room");
  for (const std::string& other :
       {std::string(), std::string("x"), encode_outcome(Status()), encode_outcome(Status()) + "x"})
    EXPECT_EQ(read_outcome<Outer>(other, 2).status().code(), StatusCode::kMismatch);
}

}  // namespace
}  // namespace rondo

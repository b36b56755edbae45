// Copies of status pages of other hosts: whole records, numbers that never go back, and no clock of another host.
// labels: unit
#include "transport/net/status_page_copy.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "protocol/spin.h"

namespace rondo::net {
namespace {

struct Pages : ::testing::Test {
  const std::unique_ptr<StatusPages> pages = std::make_unique<StatusPages>();
  StatusPage& page = pages->operations;
  StatusPageCopy copy;
  std::string encoded() { return encode_pages(page, pages->pairs); }
};

TEST_F(Pages, HaveTheRecordsOfTheirOwner) {
  for (uint64_t sequence = 1; sequence <= 70; ++sequence) {
    page.post(sequence, {.count_elems = sequence}, 7);
    pages->pairs.post(sequence, {.collective = Collective::kSend, .count_elems = sequence, .root = 3}, 7);
  }
  page.finish(69);
  ASSERT_TRUE(copy.store(encoded(), false));
  EXPECT_EQ(copy.page().last_posted(), 70u);
  EXPECT_EQ(copy.page().last_finished(), 69u);
  EXPECT_FALSE(copy.page().read(6)) << "overwritten";
  for (uint64_t sequence = 7; sequence <= 70; ++sequence) {
    ASSERT_TRUE(copy.page().read(sequence)) << sequence;
    EXPECT_EQ(copy.page().read(sequence)->shape.count_elems, sequence);
    EXPECT_EQ(copy.page().read(sequence)->tag, 7u);
    ASSERT_TRUE(copy.pairs().find(Collective::kSend, 3, sequence)) << sequence;
  }
}

TEST_F(Pages, AnEarlierMessageThatComesLaterTakesNothingBack) {
  page.post(1, {}, 0);
  const std::string early = encoded();
  page.finish(1);
  page.post(2, {}, 0);
  ASSERT_TRUE(copy.store(encoded(), false));
  ASSERT_TRUE(copy.store(early, false));
  EXPECT_EQ(copy.page().last_posted(), 2u);
  EXPECT_EQ(copy.page().last_finished(), 1u);
}

TEST_F(Pages, WaitsHaveTheClockOfTheReader) {
  page.owner_pid_namespace = 5;
  const PeerWait wait{1, 2};
  page.note_waits({&wait, 1}, monotonic_ns());
  const uint64_t before = monotonic_ns();
  ASSERT_TRUE(copy.store(encoded(), false));
  EXPECT_EQ(copy.page().owner_pid_namespace, 0u);
  EXPECT_EQ(copy.page().waits_since(before - 1'000'000'000), std::vector<PeerWait>{wait});
  EXPECT_TRUE(copy.page().waits_since(monotonic_ns() + 1).empty());
  page.note_waits({&wait, 1}, StatusPage::kForGood);
  ASSERT_TRUE(copy.store(encoded(), true));
  EXPECT_EQ(copy.page().owner_pid_namespace, 5u);
  EXPECT_EQ(copy.page().waits_since(UINT64_MAX), std::vector<PeerWait>{wait});
}

TEST_F(Pages, ThePartingNoteIsTheLastWord) {
  EXPECT_FALSE(copy.store("short", false));
  PartingNote note;
  note.posted = 9;
  note.finished = 8;
  copy.end(note);
  page.post(1, {}, 0);
  EXPECT_TRUE(copy.store(encoded(), false));
  EXPECT_TRUE(copy.ended());
  EXPECT_EQ(copy.page().last_posted(), 9u);
  EXPECT_EQ(copy.page().last_finished(), 8u);
}

}  // namespace
}  // namespace rondo::net

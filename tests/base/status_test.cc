// Errors: the value of an Expected without one, remedies, and which deadline has passed.
// labels: unit
#include "rondo/status.h"

#include <gtest/gtest.h>

#include <string>

#include "rondo/communicator.h"
#include "support/simple_calls.h"

namespace rondo::testing {
namespace {

TEST(Expected, TheValueOfAnErrorPrintsTheStatusAndAborts) {
  const std::string text = "rank 3 is lost: it has been killed";
  Expected<std::string> none(Status(StatusCode::kPeerLost, text));
  const Expected<std::string> constant = none;
  EXPECT_DEATH((void)*none, "a peer was lost: " + text);
  EXPECT_DEATH((void)*constant, text);
  EXPECT_DEATH((void)none.value(), text);
  EXPECT_DEATH((void)constant.value(), text);
  EXPECT_DEATH((void)none->size(), text);
  EXPECT_DEATH((void)constant->size(), text);
  none = std::string("here");
  EXPECT_EQ(*none, "here");
  EXPECT_EQ(none->size(), 4u);
}

// A code has a remedy only if it helps for all errors of that code.
TEST(Status, SaysNoRemedyThatNeedNotHelp) {
  for (const StatusCode code : {StatusCode::kInvalidArgument, StatusCode::kUnsupported, StatusCode::kSystem,
                                StatusCode::kExhausted, StatusCode::kCuda})
    EXPECT_EQ(Status(code, "why").to_string(), std::string(status_text(code)) + ": why");
  EXPECT_EQ(Status(StatusCode::kInternal, "why").to_string(),
            "internal error: why [please report this with the message]");
  EXPECT_EQ(Status().to_string(), "ok");
}

bool names(const Status& s, const std::string& setting) {
  for (const char before : {' ', '('})
    if (s.to_string().find(before + setting) != std::string::npos) return true;
  return false;
}

void expect_init_deadline(const Status& s) {
  EXPECT_TRUE(fails_with(s, StatusCode::kTimeout, {"raise the deadline", "init_deadline_s"}));
  EXPECT_TRUE(names(s, "RONDO_INIT_TIMEOUT_S") && !names(s, "RONDO_TIMEOUT_S")) << s.to_string();
}

TEST(Deadlines, MakingACommunicatorNamesItsOwn) {
  Config config;
  config.init_deadline_s = 0.2;
  auto id = Communicator::make_unique_id();
  ASSERT_TRUE(is_ok(id.status()));
  expect_init_deadline(Communicator::init_rank(2, *id, 0, config).status());  // rank 1 does not come
  auto threads = Communicator::init_all(2, config);
  ASSERT_TRUE(is_ok(threads.status()));
  expect_init_deadline((*threads)[0]->split(0, 0).status());
}

TEST(Deadlines, AnOperationNamesItsOwn) {
  Config config;
  config.deadline_s = 0.2;
  auto comms = Communicator::init_all(2, config);
  ASSERT_TRUE(is_ok(comms.status()));
  float x = 1;
  const Status s = (*comms)[0]->all_reduce(&x, &x, 1, Dtype::kFloat32, Op::kSum);
  EXPECT_TRUE(fails_with(s, StatusCode::kTimeout, {"raise the deadline", "deadline_s"}));
  EXPECT_TRUE(names(s, "RONDO_TIMEOUT_S") && !names(s, "RONDO_INIT_TIMEOUT_S")) << s.to_string();
}

}  // namespace
}  // namespace rondo::testing

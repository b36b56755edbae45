// The fault matrix of making and ending communicators of processes: a rank dies, freezes, or runs out of descriptors or
// staging memory before, during or at the end of init, split, shrink, grow and finalize.
// labels: mp
// timeout: 300
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ostream>
#include <regex>
#include <thread>

#include "api/parts.h"
#include "support/fault_case.h"
#include "support/process_state.h"
#include "support/spawn_processes.h"

namespace rondo::testing {
namespace {

constexpr double kDeadlineS = 30, kNoticeS = kSanitized ? 5 : 1;
constexpr double kInitDeadlineS = 1.2;  // if the case ends at the deadline
constexpr int kSilent = -1, kOnTransport = -2;

enum class Stage { kInit, kSplit, kShrink, kGrow, kFinalize };
const char* stage_name(Stage s) {
  constexpr const char* kNames[] = {"init", "split", "shrink", "grow", "finalize"};
  return kNames[static_cast<int>(s)];
}

struct MakingCase {
  Stage stage;
  Fault fault;
  // kSilent: instead of the call. kOnTransport: when the rank has made its transport, the last step but one. Else
  // microseconds after its call.
  int when;
  Rank victim;
};
std::string name_of(const MakingCase& c) {
  return std::string(stage_name(c.stage)) + "_" + fault_name(c.fault) + "_" +
         (c.when == kSilent ? "silent" : c.when == kOnTransport ? "on_transport" : std::to_string(c.when) + "_us") +
         "_rank_" + std::to_string(c.victim);
}
void PrintTo(const MakingCase& c, std::ostream* to) { *to << name_of(c); }

struct Record {
  bool called = false, has_made = false;
  int code = 0, work_code = 0;    // of the call; of the first all-reduce on the new communicator
  char text[1500] = {}, work_text[1500] = {}, after[1500] = {};
  double failed_s = 0, work_failed_s = 0, began_s = 0, shrunk_s = 0, summed_s = 0;
  int size_after = 0;
};
struct MakingRun {
  FaultMoment moment;
  SharedCounter ready, failed, ended;
  double deadline_s = 0;
  Record ranks[kFaultRanks];
};

void put(const std::string& text, char* to, size_t room) {
  const size_t used = strnlen(to, room);
  text.copy(to + used, room - 1 - used);
}

bool dies(const MakingCase& c) { return c.fault == Fault::kKill; }
bool leaves(const MakingCase& c) { return c.fault == Fault::kKill || c.fault == Fault::kFreeze; }
// The rank that dies before a shrink.
constexpr Rank kFirstDead = 0;

class Member {
 public:
  Member(const MakingCase& c, MakingRun& run, Rank rank, IdPipes& ids, IdPipes& more_ids)
      : c_(c), run_(run), rank_(rank), record_(run.ranks[rank]), ids_(ids), more_ids_(more_ids),
        control_(std::make_shared<FaultControl>(&run.moment)) {}

  void live() {
    const UniqueId id = *ids_.exchange(rank_);
    const Holdings before;
    {
      Comm comm = c_.stage == Stage::kInit ? nullptr : make_parent(id);
      Comm made;
      if (c_.stage == Stage::kShrink) prepare_shrink(*comm);
      run_.ready.add();
      const uint32_t parties = kFaultRanks - (c_.stage == Stage::kShrink ? 1 : 0);
      if (!run_.ready.wait_at_least(parties, kDeadlineS)) put("the ranks did not meet; ", record_.after, 1500);
      made = meet_the_fault(comm.get(), id);
      if (made != nullptr) work_on(*made);
      lift_limits();
      run_.failed.add();
      if (rank_ != c_.victim && comm != nullptr) go_on(*comm, made.get());
      run_.ended.add();
      const uint32_t left = parties - (leaves(c_) ? 1 : 0);
      if (!run_.ended.wait_at_least(left, kDeadlineS)) put("the ranks did not end together; ", record_.after, 1500);
    }
    if (const std::string left = leftovers(before); !left.empty()) put(left, record_.after, sizeof record_.after);
  }

 private:
  TransportDecorator decorator() {
    return [this](Rank, int, std::unique_ptr<Transport> real) {
      if (rank_ == c_.victim && armed_ && c_.when == kOnTransport) control_->now(c_.fault);
      return real;
    };
  }
  Config config() const {
    Config config;
    config.deadline_s = kDeadlineS;
    config.init_deadline_s = run_.deadline_s;
    return config;
  }

  // The communicator for the stage's call.
  Comm make_parent(const UniqueId& id) {
    const int n = c_.stage == Stage::kGrow ? kFaultRanks - 1 : kFaultRanks;
    if (rank_ >= n) return nullptr;  // a new rank
    auto comm = init_rank_with(decorator(), n, id, rank_, config());
    if (!comm.ok()) put("parent: " + comm.status().to_string(), record_.after, sizeof record_.after);
    if (!comm.ok()) _exit(3);
    if (!works(**comm)) put("warm-up; ", record_.after, sizeof record_.after);
    return std::move(*comm);
  }

  void prepare_shrink(Communicator& comm) {
    run_.failed.add();
    if (!run_.failed.wait_at_least(kFaultRanks, kDeadlineS)) return;
    if (rank_ == kFirstDead) kill(getpid(), SIGKILL);
    Status s;
    for (const Stopwatch watch; s.ok() && watch.seconds() < kDeadlineS;)
      s = SimpleAllReduce(comm, 100).start(comm, nullptr);
  }

  Comm meet_the_fault(Communicator* comm, const UniqueId& id) {
    armed_ = true;
    record_.called = true;
    std::thread later;
    if (rank_ == c_.victim && c_.when == kSilent) {
      control_->now(c_.fault);
      if (leaves(c_)) pause();
    } else if (rank_ == c_.victim && c_.when >= 0) {
      later = std::thread([this] {
        for (const Stopwatch watch; watch.seconds() * 1e6 < c_.when;) {
        }
        control_->now(c_.fault);
      });
    }
    record_.began_s = now_s();
    auto made = call(comm, id);
    record_.failed_s = now_s();
    record_.code = static_cast<int>(made.status().code());
    put(made.status().to_string(), record_.text, sizeof record_.text);
    if (later.joinable()) later.join();
    record_.has_made = made.ok() && *made != nullptr;
    return made.ok() ? std::move(*made) : nullptr;
  }

  Expected<Comm> call(Communicator* comm, const UniqueId& id) {
    switch (c_.stage) {
      case Stage::kInit: return init_rank_with(decorator(), kFaultRanks, id, rank_, config());
      case Stage::kSplit: return comm->split(0, rank_, config());
      case Stage::kShrink: return comm->shrink({}, config());
      case Stage::kGrow: {
        RONDO_TRY_ASSIGN(const UniqueId common, more_ids_.exchange(rank_));
        if (comm == nullptr) return init_rank_with(decorator(), kFaultRanks, common, rank_, config());
        return comm->grow(kFaultRanks, &common, config());
      }
      case Stage::kFinalize: {
        SimpleAllReduce sum(*comm, 100'000);
        Work work;
        CallOptions options;
        options.deadline_s = c_.fault == Fault::kFreeze ? run_.deadline_s : 0;
        RONDO_TRY(sum.start(*comm, &work, &options));
        RONDO_TRY(comm->finalize());
        return Comm();
      }
    }
    return Status(StatusCode::kInternal, "no such stage");
  }

  // The call succeeded here. A death in its last moment shows now.
  void work_on(Communicator& made) {
    Status s;
    const bool has_victim = leaves(c_) && !(c_.stage == Stage::kShrink && made.size() == kFaultRanks - 2);
    CallOptions options;
    options.deadline_s = c_.fault == Fault::kFreeze ? run_.deadline_s : 0;
    const Stopwatch watch;
    for (int round = 0; s.ok() && (has_victim ? watch.seconds() < kDeadlineS : round < 20); ++round) {
      record_.began_s = now_s();
      s = SimpleAllReduce(made, 1000).start(made, nullptr, &options);
    }
    record_.work_failed_s = now_s();
    record_.work_code = static_cast<int>(s.code());
    put(s.to_string(), record_.work_text, sizeof record_.work_text);
  }

  void lift_limits() {
    control_->free_memory();
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }

  // The survivors make a communicator and sum on it.
  void go_on(Communicator& comm, Communicator* made) {
    if (c_.stage == Stage::kGrow) {  // the new ranks have no communicator to shrink; the old members shrink theirs
      if (rank_ == kFaultRanks - 1) return;
    }
    armed_ = false;
    std::vector<Rank> excluded;
    if (!dies(c_) && c_.victim < comm.size()) excluded.push_back(c_.victim);
    Config config = this->config();
    config.init_deadline_s = kDeadlineS;
    const bool made_here = c_.stage == Stage::kShrink && made != nullptr && !dies(c_);
    auto next = made_here ? Expected<Comm>(Comm()) : comm.shrink(excluded, config);
    record_.shrunk_s = now_s();
    Communicator* on = made_here ? made : next.ok() ? next->get() : nullptr;
    if (on == nullptr) return put("shrink: " + next.status().to_string(), record_.after, sizeof record_.after);
    const auto right = works(*on, 1 << 14);
    record_.summed_s = now_s();
    if (!right) put(std::string("sum: ") + right.message(), record_.after, sizeof record_.after);
    record_.size_after = on->size();
  }

  const MakingCase& c_;
  MakingRun& run_;
  const Rank rank_;
  Record& record_;
  IdPipes &ids_, &more_ids_;
  std::shared_ptr<FaultControl> control_;
  bool armed_ = false;
};

void judge(const MakingCase& c, const MakingRun& run) {
  const std::string victim = "rank " + std::to_string(c.victim);
  std::string outcome = "made";
  FaultTimes times;
  double failed = 0, shrunk = 0, summed = 0;
  EXPECT_NE(run.moment.at_s.load(), 0) << "the fault did not happen";
  for (Rank r = 0; r < kFaultRanks; ++r) {
    const Record& record = run.ranks[r];
    if ((r == c.victim && leaves(c)) || (c.stage == Stage::kShrink && r == kFirstDead)) continue;
    SCOPED_TRACE("rank " + std::to_string(r) + ": the call: " + record.text + "; work: " + record.work_text);
    EXPECT_STREQ(record.after, "");
    ASSERT_TRUE(record.called);
    const auto code = static_cast<StatusCode>(record.code);
    const std::string text = code == StatusCode::kOk ? record.work_text : record.text;
    const auto told = code == StatusCode::kOk ? static_cast<StatusCode>(record.work_code) : code;
    const double told_s = code == StatusCode::kOk ? record.work_failed_s : record.failed_s;
    const bool shrinks_on = c.stage == Stage::kShrink && dies(c) && code == StatusCode::kOk && record.size_after == 2;
    if (leaves(c) && !shrinks_on) {
      EXPECT_TRUE(told == StatusCode::kPeerLost || told == StatusCode::kTimeout) << status_text(told);
    }
    if (c.fault == Fault::kDescriptors && told != StatusCode::kOk) {
      const bool missed = c.stage == Stage::kInit || c.stage == Stage::kGrow;  // without links it cannot inform others
      EXPECT_TRUE(told == StatusCode::kSystem || told == StatusCode::kPeerLost ||
                  (told == StatusCode::kTimeout && missed))
          << status_text(told);
    }
    if (c.fault == Fault::kMemory) {
      EXPECT_EQ(told, StatusCode::kExhausted) << status_text(told);
    }
    if (told != StatusCode::kOk) {
      outcome = status_text(told);
      const bool newcomer = c.stage == Stage::kGrow && r == kFaultRanks - 1;
      const char* call = code == StatusCode::kOk || c.stage == Stage::kFinalize       ? "all_reduce"
                         : newcomer                                                        ? "init"
                                                                                         : stage_name(c.stage);
      // A rank that could not take part leaves the meeting at its own deadline at the latest, and then counts as
      // departed.
      const bool leaves_late = c.fault == Fault::kDescriptors && (c.stage == Stage::kGrow || c.stage == Stage::kInit);
      // In a split ranks may not learn why one gave up. Then the first that closed its end is named.
      const bool gives_up = c.fault == Fault::kDescriptors && c.stage == Stage::kSplit && r != c.victim;
      // A shrink's child renumbers ranks: rank 0 is dead, so the victim's number is one less.
      const std::string in_child = (code == StatusCode::kOk ? "rank " : "new communicator: rank ") +
                                   std::to_string(c.victim - 1) + (code == StatusCode::kOk ? " is lost" : "");
      const bool listed = std::regex_search(text, std::regex("ranks [0-9, ]*\\b" + std::to_string(c.victim) +
                                                             "\\b[0-9, ]* have not joined"));
      EXPECT_TRUE(text.find(victim) != std::string::npos || listed ||
                  // The first rank to leave the meeting is named, which may have left because of the victim. Only old
                  // members can tell the difference.
                  ((leaves_late || newcomer || gives_up) && text.find("rank ") != std::string::npos) ||
                  (c.stage == Stage::kShrink && text.find(in_child) != std::string::npos))
          << "the rank: " << text;
      EXPECT_NE(text.find(call), std::string::npos)
          << "the operation: " << text;
      const double from_s = told == StatusCode::kTimeout || leaves_late ? record.began_s + run.deadline_s : run.moment.at_s.load();
      EXPECT_LT(told_s - from_s, kNoticeS) << "the time to the status";
      failed = std::max(failed, told_s);
    }
    if (c.stage == Stage::kInit || r == c.victim || (c.stage == Stage::kGrow && r == kFaultRanks - 1)) continue;
    int survivors = kFaultRanks - 1;
    if (c.stage == Stage::kShrink || (c.stage == Stage::kGrow && c.victim != kFaultRanks - 1)) survivors -= 1;
    EXPECT_TRUE(record.size_after == survivors || (c.stage == Stage::kShrink && !leaves(c) && told == StatusCode::kOk))
        << record.size_after;
    shrunk = std::max(shrunk, record.shrunk_s);
    summed = std::max(summed, record.summed_s);
  }
  if (failed != 0) times.status_s = failed - run.moment.at_s;
  if (failed != 0 && shrunk != 0) times.shrunk_s = std::max(0.0, shrunk - failed);
  if (summed != 0) times.summed_s = summed - shrunk;
  note_for_table(World::kProcesses, c.fault, std::string(stage_name(c.stage)) + ": " + outcome, times);
}

// Returns false, without a judgement, if the machine was too busy for the deadline.
bool run_case(const MakingCase& c, double deadline_s) {
  Shared<MakingRun> run;
  // A rank that has not come is only noticed at the deadline.
  const bool by_deadline = c.fault == Fault::kFreeze || (c.stage == Stage::kInit && c.fault != Fault::kMemory) ||
                           (c.stage == Stage::kGrow && c.fault != Fault::kMemory);
  run->deadline_s = by_deadline ? deadline_s : kDeadlineS;
  SpawnOptions options;
  options.deadline_s = 2 * kDeadlineS;
  options.may_die = {c.victim};
  if (c.stage == Stage::kShrink) options.may_die.push_back(kFirstDead);
  IdPipes ids(kFaultRanks), more_ids(kFaultRanks);
  options.in_parent = [&](const std::vector<pid_t>& pids) {
    if (c.fault != Fault::kFreeze) return;
    const uint32_t others = kFaultRanks - 1 - (c.stage == Stage::kShrink ? 1 : 0);
    EXPECT_TRUE(run->ended.wait_at_least(others, kDeadlineS));
    kill(pids[static_cast<size_t>(c.victim)], SIGKILL);
  };
  const auto results = run_processes_bare(
      kFaultRanks,
      [&](Rank rank) {
        Member(c, *run, rank, ids, more_ids).live();
        return Status();
      },
      options);
  const bool too_slow = std::any_of(std::begin(run->ranks), std::end(run->ranks),
                                    [](const Record& r) { return std::strstr(r.after, "parent: ") != nullptr; });
  if (too_slow && deadline_s < kDeadlineS) return false;
  report(results, options);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  judge(c, *run);
  return true;
}

class FaultsOfMaking : public ::testing::TestWithParam<MakingCase> {
 protected:
  static void TearDownTestSuite() { print_fault_table(); }
};

TEST_P(FaultsOfMaking, EndInAStatusAndTheSurvivorsGoOn) {
  for (double deadline_s = kInitDeadlineS; !run_case(GetParam(), deadline_s); deadline_s *= 3)
    std::printf("the machine is too busy for a deadline of %.1f s: once more with three times as much\n", deadline_s);
}

std::vector<MakingCase> making_cases() {
  std::vector<MakingCase> all;
  for (const Stage stage : {Stage::kInit, Stage::kSplit, Stage::kShrink, Stage::kGrow, Stage::kFinalize}) {
    const bool makes = stage != Stage::kFinalize;
    for (const int when : {kSilent, kOnTransport, 100, 500, 1000, 2000, 4000})
      if (makes || when == kSilent) all.push_back({stage, Fault::kKill, when, 2});
    if (stage != Stage::kInit) all.push_back({stage, Fault::kKill, kSilent, 1});  // rank 0 makes the id
    all.push_back({stage, Fault::kFreeze, kSilent, 2});
    if (makes) {
      all.push_back({stage, Fault::kFreeze, kOnTransport, 1});
      all.push_back({stage, Fault::kDescriptors, kSilent, 2});
      all.push_back({stage, Fault::kMemory, kSilent, 1});
    }
    if (stage == Stage::kGrow) {
      all.push_back({stage, Fault::kKill, kSilent, 3});
      all.push_back({stage, Fault::kFreeze, kSilent, 3});
      all.push_back({stage, Fault::kDescriptors, kSilent, 3});
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Making, FaultsOfMaking, ::testing::ValuesIn(making_cases()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace rondo::testing

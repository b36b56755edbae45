#include "support/fault_case.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ostream>
#include <thread>

#include "api/communicator_impl.h"
#include "api/process_control.h"
#include "api/thread_control.h"
#include "conformance/case_runner.h"
#include "support/process_state.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn_processes.h"

namespace rondo::testing {
namespace {

constexpr double kDeadlineS = 30;
constexpr double kNoticeS = kSanitized ? 5 : 1;  // from the death, or from the deadline, to the status

// Results of a rank. Plain memory, because it is read when all ranks have ended.
struct RankRecord {
  bool called = false;    // it took part
  int code = 0;           // of the failed call
  char text[4000] = {};
  double began_s = 0, failed_s = 0;  // of that call
  int refused_code = 0;              // of the call after that
  int shrink_code = 0;
  char shrink_text[1000] = {};
  double shrunk_s = 0, summed_s = 0;
  std::array<int32_t, kFaultRanks> members{};  // old ranks of the new communicator, -1 at the end
  char wrong[1000] = {};                       // wrong results and leftovers
};

struct CaseRun {
  FaultMoment moment;
  SharedCounter warm, armed, freed, ended;
  double deadline_s = 0;  // of the calls that meet the fault
  RankRecord ranks[kFaultRanks];
};

void put(const std::string& text, char* to, size_t room) {
  const size_t used = strnlen(to, room);
  text.copy(to + used, room - 1 - used);
}

const DataTables& tables() {
  static const DataTables made(kFaultRanks, 1, std::vector{Dtype::kFloat32}, std::vector{Op::kSum});
  return made;
}

bool tolerated(Fault f) { return f == Fault::kDelay || f == Fault::kReordered || f == Fault::kTwice; }
bool ends_process(const FaultCase& c) { return c.fault == Fault::kKill; }

// Repeats the operation of the case.
class Caller {
 public:
  Caller(Communicator& comm, const FaultCase& c) : comm_(comm), case_(c) {}
  ~Caller() {
    for (void* p : allocated_) (void)comm_.free(p);
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  Status open() {
    if (case_.calls == Calls::kMessages) {
      count_ = case_.large ? 300'000 : 100;
      out_.resize(count_);
      in_.resize(count_);
      return {};
    }
    call_.algorithm = case_.algorithm;
    call_.collective = case_.algorithm->collective;
    call_.root = case_.root;
    call_.count_elems = case_.large ? 300'000 : 60;
    const CollectiveTraits& t = collective_traits(call_.collective);
    if (case_.large && (t.in_parts == Parts::kEach || t.out_parts == Parts::kEach)) call_.count_elems /= 2;
    if (call_.collective == Collective::kBarrier) call_.count_elems = 0;
    const uint64_t area = CallBuffers::area_bytes(
        std::max(in_elems(call_, kFaultRanks), out_elems(call_, kFaultRanks)) * sizeof(float));
    const size_t sets = case_.calls == Calls::kBlocking ? 1 : 2;
    const bool shared = case_.algorithm->direct && !case_.algorithm->pulls_only;
    for (size_t i = 0; i < 2 * sets; ++i) {
      void* p = nullptr;
      if (shared) {
        RONDO_TRY_ASSIGN(p, comm_.alloc(area));
        allocated_.push_back(p);
      } else {
        heap_.emplace_back(area);
        p = heap_.back().data();
      }
      areas_.push_back(p);
    }
    for (size_t i = 0; i < sets; ++i)
      buffers_.emplace_back(&tables(), comm_.rank(), areas_[2 * i], areas_[2 * i + 1]);
    return {};
  }

  /// One round. Appends wrong results to *wrong.
  Status call(std::string* wrong, double deadline_s) {
    deadline_s_ = deadline_s;
    if (case_.calls == Calls::kMessages) return exchange(wrong);
    for (CallBuffers& b : buffers_) b.begin(call_);
    RONDO_TRY(issue_all());
    for (CallBuffers& b : buffers_)
      if (const std::string why = b.judge(); !why.empty()) *wrong += why + "; ";
    return {};
  }

 private:
  Status issue_all() {
    if (case_.calls == Calls::kBlocking) return issue(comm_, tables(), call_, buffers_[0], nullptr, deadline_s_);
    if (case_.calls == Calls::kGrouped) {
      group_start();
      Status first;
      for (const CallBuffers& b : buffers_)
        if (Status s = issue(comm_, tables(), call_, b, nullptr, deadline_s_); !s.ok() && first.ok()) first = s;
      Status s = group_end();
      return first.ok() ? s : first;
    }
    std::vector<Work> works(buffers_.size());
    Status first;
    for (size_t i = 0; i < works.size(); ++i) {
      const Status s = issue(comm_, tables(), call_, buffers_[i], &works[i], deadline_s_);
      if (!s.ok() && first.ok()) first = s;
    }
    for (Work& w : works) {
      const Status s = first.ok() ? w.wait() : first;
      if (!s.ok() && first.ok()) first = s;
    }
    return first;
  }
  Status exchange(std::string* wrong) {
    const int n = comm_.size();
    const Rank next = (comm_.rank() + 1) % n, before = (comm_.rank() + n - 1) % n;
    for (uint64_t i = 0; i < count_; ++i) out_[i] = simple_value(comm_.rank(), i);
    CallOptions options;
    options.deadline_s = deadline_s_;
    group_start();
    Status first = comm_.send(out_.data(), count_, Dtype::kFloat32, next, &options);
    if (first.ok()) first = comm_.recv(in_.data(), count_, Dtype::kFloat32, before, &options);
    const Status s = group_end();
    if (!first.ok() || !s.ok()) return first.ok() ? s : first;
    for (uint64_t i = 0; i < count_; ++i)
      if (in_[i] != simple_value(before, i)) {
        *wrong += "element " + std::to_string(i) + " of the message is wrong; ";
        break;
      }
    return {};
  }

  Communicator& comm_;
  const FaultCase& case_;
  Case call_;
  std::vector<std::vector<uint8_t>> heap_;
  std::vector<void*> allocated_, areas_;
  std::vector<CallBuffers> buffers_;
  uint64_t count_ = 0;
  double deadline_s_ = 0;
  std::vector<float> in_, out_;
};

// Arms the fault after the first operation, before the one that meets the fault.
void arm(const FaultCase& c, FaultControl& control) {
  constexpr uint32_t kDelayUs = 30'000;
  const uint64_t n = control.num_messages();  // equal in each operation
  switch (c.moment) {
    case Moment::kOpening: return control.at_opening(c.fault, 1);
    case Moment::kMiddle: return control.at_message(c.fault, n + (n + 1) / 2, kDelayUs);
    case Moment::kLast: return control.at_message(c.fault, 2 * n, kDelayUs);
    default: return control.at_message(c.fault, n + 1, kDelayUs);
  }
}

// Calls until one fails, or for as long as a tolerated fault takes.
void call_until_failure(Communicator& comm, const FaultCase& c, Caller& caller, double deadline_s, RankRecord& record) {
  const Stopwatch watch;
  std::string wrong;
  Status status;
  for (int round = 0; status.ok() && watch.seconds() < kDeadlineS; ++round) {
    if (tolerated(c.fault) && round == 3) return put(wrong, record.wrong, sizeof record.wrong);
    record.began_s = now_s();
    status = caller.call(&wrong, deadline_s);
  }
  record.failed_s = now_s();
  record.code = static_cast<int>(status.code());
  put(status.to_string(), record.text, sizeof record.text);
  put(wrong, record.wrong, sizeof record.wrong);
  record.refused_code = static_cast<int>(caller.call(&wrong, deadline_s).code());
  if (comm.error().ok()) put("error() is ok after the failure; ", record.wrong, sizeof record.wrong);
}

void shrink_and_sum(Communicator& comm, const FaultCase& c, RankRecord& record) {
  const std::vector<Rank> excluded = ends_process(c) ? std::vector<Rank>() : std::vector<Rank>{c.victim};
  auto made = comm.shrink(excluded);
  record.shrunk_s = now_s();
  record.shrink_code = static_cast<int>(made.status().code());
  put(made.status().to_string(), record.shrink_text, sizeof record.shrink_text);
  record.members.fill(-1);
  if (!made.ok()) return;
  SimpleAllReduce sum(**made, 1 << 14);
  Status s = sum.start(**made, nullptr);
  record.summed_s = now_s();
  std::string wrong = s.ok() ? sum.judge() : s.to_string();
  std::vector<int32_t> all(static_cast<size_t>((*made)->size()), -1);
  const Rank mine = comm.rank();
  s = (*made)->all_gather(&mine, all.data(), 1, Dtype::kInt32);
  if (!s.ok()) wrong += s.to_string();
  std::copy(all.begin(), all.end(), record.members.begin());
  if (!wrong.empty()) put("after the shrink: " + wrong, record.wrong, sizeof record.wrong);
}

// One rank of the case. control: for the victim.
void be_a_rank(std::unique_ptr<Communicator> comm, const FaultCase& c, FaultControl* control, CaseRun& run) {
  RankRecord& record = run.ranks[comm->rank()];
  record.called = true;
  const auto meet = [&](SharedCounter& at) {
    at.add();
    if (!at.wait_at_least(kFaultRanks, kDeadlineS)) put("the ranks did not meet; ", record.wrong, sizeof record.wrong);
  };
  // Peers may read this rank's buffers until their calls have ended too, so the buffers live until all have.
  Caller caller(*comm, c);
  {
    if (const Status s = caller.open(); !s.ok()) put("open: " + s.to_string(), record.wrong, sizeof record.wrong);
    std::string wrong;
    if (c.moment != Moment::kBeforeFirst && c.moment != Moment::kOpening)
      if (const Status s = caller.call(&wrong, 0); !s.ok()) wrong += "warm-up: " + s.to_string();
    put(wrong, record.wrong, sizeof record.wrong);
    meet(run.warm);
    const bool silent = control != nullptr && (c.moment == Moment::kBeforeFirst || c.moment == Moment::kBetween);
    if (control != nullptr && !silent) arm(c, *control);
    meet(run.armed);
    if (silent) control->now(c.fault);  // makes no more calls
    else call_until_failure(*comm, c, caller, run.deadline_s, record);
    if (c.fault == Fault::kMemory) {  // ranks of one process share the pool, and a new communicator allocates from it
      if (control != nullptr) control->free_memory(), run.freed.add();
      else if (!run.freed.wait_at_least(1, kDeadlineS)) put("no memory was freed; ", record.wrong, sizeof record.wrong);
    }
    if (control == nullptr && !tolerated(c.fault) && record.code != 0) shrink_and_sum(*comm, c, record);
  }
  run.ended.add();
  // Destroying a communicator counts as leaving, so wait until all ranks have their status.
  const uint32_t left = ends_process(c) || c.fault == Fault::kFreeze ? kFaultRanks - 1 : kFaultRanks;
  if (!run.ended.wait_at_least(left, kDeadlineS))
    put("the ranks did not end together; ", record.wrong, sizeof record.wrong);
}

TransportDecorator decorate_victim(Rank victim, const std::shared_ptr<FaultControl>& control) {
  return [victim, control, made = std::make_shared<std::atomic<int>>(0)](
             Rank rank, int nranks, std::unique_ptr<Transport> real) -> std::unique_ptr<Transport> {
    if (rank != victim || nranks != kFaultRanks || made->fetch_add(1) != 0) return real;
    return std::make_unique<FaultTransport>(rank, nranks, std::move(real), control);
  };
}

Config config_of_case() {
  Config config;
  config.deadline_s = kDeadlineS;
  config.init_deadline_s = kDeadlineS;
  return config;
}

void run_processes(const FaultCase& c, CaseRun& run) {
  (void)tables();  // before the forks
  SpawnOptions options;
  options.deadline_s = 2 * kDeadlineS;
  options.may_die = {c.victim};
  IdPipes id_pipes(kFaultRanks);
  if (c.fault == Fault::kFreeze)
    options.in_parent = [&](const std::vector<pid_t>& pids) {
      EXPECT_TRUE(run.ended.wait_at_least(kFaultRanks - 1, kDeadlineS));
      kill(pids[static_cast<size_t>(c.victim)], SIGKILL);
    };
  const auto results = run_processes_bare(
      kFaultRanks,
      [&](Rank rank) -> Status {
        RONDO_TRY_ASSIGN(const UniqueId id, id_pipes.exchange(rank));
        const Holdings before;
        {
          std::shared_ptr<FaultControl> control = std::make_shared<FaultControl>(&run.moment);
          RONDO_TRY_ASSIGN(auto comm, init_rank_with(decorate_victim(c.victim, control), kFaultRanks, id, rank,
                                                     config_of_case()));
          be_a_rank(std::move(comm), c, rank == c.victim ? control.get() : nullptr, run);
        }
        if (const std::string left = leftovers(before); !left.empty()) ADD_FAILURE() << left;
        return {};
      },
      options);
  report(results, options);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

void run_threads(const FaultCase& c, CaseRun& run) {
  const Holdings before;
  {
    std::shared_ptr<FaultControl> control = std::make_shared<FaultControl>(&run.moment);
    auto comms = init_all_with(decorate_victim(c.victim, control), kFaultRanks, config_of_case());
    ASSERT_TRUE(is_ok(comms.status()));
    std::vector<std::thread> threads;
    for (Rank r = 0; r < kFaultRanks; ++r)
      threads.emplace_back([&, r] {
        be_a_rank(std::move((*comms)[static_cast<size_t>(r)]), c, r == c.victim ? control.get() : nullptr, run);
      });
    for (std::thread& t : threads) t.join();
  }
  EXPECT_EQ(leftovers(before), "");
}

// Expected words in the text of a failed call, and its codes.
struct Expectation {
  std::vector<StatusCode> codes;
  std::vector<std::string> words;
};

Expectation expected_of(const FaultCase& c, const CaseRun& run, bool is_victim) {
  const std::string victim = "rank " + std::to_string(c.victim);
  const std::string writer = "rank " + std::to_string(run.moment.writer.load());
  switch (c.fault) {
    case Fault::kKill: return {{StatusCode::kPeerLost}, {victim + " is lost"}};
    case Fault::kFreeze: return {{StatusCode::kTimeout}, {"waited", victim + "'s process", "is stopped"}};
    case Fault::kStop: return {{StatusCode::kTimeout}, {"waited", is_victim ? "rank " : victim}};
    case Fault::kAbort: return {{StatusCode::kAborted}, {victim + " aborted"}};
    case Fault::kFingerprint: return {{StatusCode::kMismatch, StatusCode::kTimeout}, {writer}};
    case Fault::kOtherStep:
    case Fault::kLost: return {{StatusCode::kTimeout}, {"waited", writer}};
    case Fault::kMemory:
      if (c.world == World::kThreads)  // they share the pool: any of them may fail first
        return {{StatusCode::kExhausted, StatusCode::kAborted}, {"cannot make a connection", "RONDO_POOL_BYTES"}};
      return {{is_victim ? StatusCode::kExhausted : StatusCode::kAborted},
              {victim + " cannot make a connection", "RONDO_POOL_BYTES"}};
    default: return {{StatusCode::kOk}, {}};
  }
}

void judge_call(const FaultCase& c, const CaseRun& run, Rank rank) {
  const RankRecord& r = run.ranks[rank];
  SCOPED_TRACE("rank " + std::to_string(rank) + ": " + std::string(status_text(static_cast<StatusCode>(r.code))) + ": " +
               r.text);
  EXPECT_STREQ(r.wrong, "");
  const Expectation wanted = expected_of(c, run, rank == c.victim);
  const auto code = static_cast<StatusCode>(r.code);
  EXPECT_NE(std::find(wanted.codes.begin(), wanted.codes.end(), code), wanted.codes.end()) << "the code";
  if (code == StatusCode::kOk) return;
  const std::string text = r.text;
  auto says = [&](const std::string& word) {
    EXPECT_NE(text.find(word), std::string::npos) << "the text does not say \"" << word << "\"";
  };
  for (const std::string& word : wanted.words) says(word);
  if (c.calls == Calls::kMessages)
    EXPECT_TRUE(text.find("send") != std::string::npos || text.find("recv") != std::string::npos) << "the operation";
  else says(std::string(collective_name(c.algorithm->collective)));
  const bool not_started = text.find("was not started") != std::string::npos;
  if (!not_started) says("#");  // its number in the order of calls
  EXPECT_TRUE(not_started || text.find(" step ") != std::string::npos ||
              text.find("has not started") != std::string::npos)
      << "the place where it stood";
  EXPECT_NE(r.refused_code, 0) << "the communicator refuses work from there on";
  const double from_s = code == StatusCode::kTimeout ? r.began_s + run.deadline_s : run.moment.at_s.load();
  EXPECT_LT(r.failed_s - from_s, kNoticeS) << "the time to the status";
}

void judge_shrink(const FaultCase& c, const CaseRun& run, Rank rank) {
  const RankRecord& r = run.ranks[rank];
  EXPECT_EQ(r.shrink_code, 0) << "rank " << rank << ": " << r.shrink_text;
  std::array<int32_t, kFaultRanks> survivors{};
  survivors.fill(-1);
  for (Rank i = 0, at = 0; i < kFaultRanks; ++i)
    if (i != c.victim) survivors[static_cast<size_t>(at++)] = i;
  EXPECT_EQ(r.members, survivors) << "rank " << rank;
  EXPECT_LT(r.summed_s - r.shrunk_s, kDeadlineS / 3);  // 0.1 s on an idle machine: printed, not judged
}

FaultTimes times_of(const FaultCase& c, const CaseRun& run) {
  double failed = 0, shrunk = 0, summed = 0;
  for (Rank r = 0; r < kFaultRanks; ++r) {
    if (r == c.victim) continue;
    failed = std::max(failed, run.ranks[r].failed_s);
    shrunk = std::max(shrunk, run.ranks[r].shrunk_s);
    summed = std::max(summed, run.ranks[r].summed_s);
  }
  return {failed - run.moment.at_s, shrunk - failed, summed - shrunk};
}

const char* moment_name(Moment m) {
  constexpr const char* kNames[] = {"before_first", "opening", "first", "middle", "last", "between"};
  return kNames[static_cast<int>(m)];
}

// Faults that are noticed at the deadline use a short one. For the others it is long, to show that it does not matter.
bool meets_deadline(const FaultCase& c) {
  return c.fault == Fault::kStop || c.fault == Fault::kFreeze || c.fault == Fault::kFingerprint ||
         c.fault == Fault::kOtherStep || c.fault == Fault::kLost;
}

// True if calls reached their deadline before the fault, or before a rank could notice it.
bool too_slow(const FaultCase& c, const CaseRun& run) {
  auto ended_with = [&](StatusCode code) {
    return std::any_of(std::begin(run.ranks), std::end(run.ranks),
                       [code](const RankRecord& r) { return r.code == static_cast<int>(code); });
  };
  if (!meets_deadline(c) || !ended_with(StatusCode::kTimeout)) return false;
  return run.moment.at_s == 0 || (c.fault == Fault::kFingerprint && !ended_with(StatusCode::kMismatch));
}

void judge(const FaultCase& c, const CaseRun& run) {
  EXPECT_NE(run.moment.at_s.load(), 0) << "the fault did not happen";
  std::string outcome = "right results";
  int num_mismatches = 0;
  for (Rank r = 0; r < kFaultRanks; ++r) {
    const RankRecord& record = run.ranks[r];
    const bool silent = !record.called || record.began_s == 0 || ends_process(c) || c.fault == Fault::kFreeze;
    if (r == c.victim && silent) continue;
    EXPECT_TRUE(record.called) << "rank " << r;
    // A sender need not notice that its message was damaged.
    if (r == c.victim && c.fault != Fault::kMemory && record.code == 0) continue;
    judge_call(c, run, r);
    num_mismatches += record.code == static_cast<int>(StatusCode::kMismatch) ? 1 : 0;
    if (r == c.victim || tolerated(c.fault)) continue;
    judge_shrink(c, run, r);
    if (record.code != static_cast<int>(StatusCode::kMismatch) || outcome == "right results")
      outcome = status_text(static_cast<StatusCode>(record.code));
  }
  if (c.fault == Fault::kFingerprint) {
    EXPECT_GE(num_mismatches, 1) << "the receiver must report that the message belongs to another operation";
    outcome = status_text(StatusCode::kMismatch);
  }
  note_for_table(c.world, c.fault, outcome, tolerated(c.fault) ? FaultTimes() : times_of(c, run));
}

}  // namespace

std::string name_of(const FaultCase& c) {
  constexpr const char* kCalls[] = {"", "_async", "_grouped", ""};
  std::string name = std::string(fault_name(c.fault)) + "_" + moment_name(c.moment) + "_";
  name += c.calls == Calls::kMessages
              ? "messages"
              : std::string(collective_name(c.algorithm->collective)) + "_" + std::string(c.algorithm->name);
  name += std::string(kCalls[static_cast<int>(c.calls)]) + (c.large ? "_large" : "_small") + "_rank_" +
          std::to_string(c.victim);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

void PrintTo(const FaultCase& c, std::ostream* to) { *to << name_of(c); }

void run_fault_case(const FaultCase& c) {
  const std::set<std::string> names = shared_names();
  for (double deadline_s = kFaultDeadlineS;; deadline_s *= 3) {
    Shared<CaseRun> run;
    run->deadline_s = meets_deadline(c) ? deadline_s : kDeadlineS;
    (c.world == World::kProcesses ? run_processes : run_threads)(c, *run);
    if (::testing::Test::HasFatalFailure()) return;
    if (too_slow(c, *run) && deadline_s < kDeadlineS / 3) {
      std::printf("the machine is too busy for a deadline of %.1f s: once more with three times as much\n", deadline_s);
      continue;
    }
    judge(c, *run);
    break;
  }
  std::set<std::string> left = shared_names();  // other programs' names come and go; leftovers of this run would stay
  std::erase_if(left, [&](const std::string& n) { return names.count(n) != 0; });
  for (const Stopwatch watch; !left.empty() && watch.seconds() < 5; usleep(1000))
    std::erase_if(left, [](const std::string& n) { return access(n.c_str(), F_OK) != 0; });
  for (const std::string& n : left) ADD_FAILURE() << "left behind: " << n;
}

Expected<std::unique_ptr<Communicator>> init_rank_with(const TransportDecorator& decorate, int nranks,
                                                       const UniqueId& id, Rank rank, const Config& config) {
  RONDO_TRY_ASSIGN(auto impl, init_communicator(nranks, id, rank, config, decorate));
  return CommunicatorImpl::handle(std::move(impl));
}

Expected<std::vector<std::unique_ptr<Communicator>>> init_all_with(const TransportDecorator& decorate, int nranks,
                                                                   const Config& config) {
  RONDO_TRY_ASSIGN(const Settings settings, read_settings(config));
  RONDO_TRY_ASSIGN(auto impls, make_thread_communicators(nranks, {settings, config.abort, decorate}));
  std::vector<std::unique_ptr<Communicator>> comms;
  for (auto& impl : impls) comms.push_back(CommunicatorImpl::handle(std::move(impl)));
  return comms;
}

}  // namespace rondo::testing

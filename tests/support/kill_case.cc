#include "support/kill_case.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "rondo/communicator.h"
#include "support/process_state.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

using Comm = std::unique_ptr<Communicator>;
constexpr int kMostRanks = 8;
constexpr double kLimitS = 20;        // of every wait: a longer one is a hang
constexpr double kInitDeadlineS = 2;  // of init and grow, which notice a rank that never came at the deadline
constexpr size_t kText = 1600;

struct Survivor {
  double told_s = 0, gone_on_s = 0;
  double began_s = 0;      // the call that ended in the error
  double destroyed_s = 0;  // the longest destroy after the death
  int code = 0;
  char text[kText] = {}, wrong[kText] = {};
};
struct Run {
  SharedCounter ready, told, id_made, more_made, again_made, ended;
  std::atomic<double> killed_at_s{0};
  UniqueId id, more, again;
  Survivor ranks[kMostRanks];
};

void put(const std::string& text, char* to) {
  const size_t used = strnlen(to, kText);
  text.copy(to + used, kText - 1 - used);
}

// One rank of the case.
class Member {
 public:
  Member(const KillCase& c, Run& run, Rank rank) : c_(c), run_(run), rank_(rank), me_(run.ranks[rank]) {
    config_.settings = c.world == KillWorld::kTcp ? "transport = tcp\n" : "";
    config_.deadline_s = kLimitS;
    config_.init_deadline_s = kLimitS;
  }

  void live() {
    Comm comm = c_.stage == KillStage::kInit ? nullptr : make_first();
    if (me_.wrong[0] != 0) return;
    std::vector<Comm> others = prepare(comm.get());
    run_.ready.add();
    if (!run_.ready.wait_at_least(static_cast<uint32_t>(c_.nranks), kLimitS))
      return put("the ranks did not meet; ", me_.wrong);
    Status s = until_an_error(comm, others);
    me_.told_s = now_s();
    me_.code = static_cast<int>(s.code());
    put(s.to_string(), me_.text);
    run_.told.add();
    go_on(std::move(comm));
    run_.ended.add();
    const auto survivors = static_cast<uint32_t>(c_.nranks - c_.ranks_of_process);
    if (!run_.ended.wait_at_least(survivors, kLimitS)) put("the survivors did not end together; ", me_.wrong);
  }

 private:
  int first_ranks() const { return c_.stage == KillStage::kGrow ? (c_.nranks + 1) / 2 : c_.nranks; }

  Expected<UniqueId> meet(UniqueId& id, SharedCounter& made, bool makes) {
    if (makes) {
      RONDO_TRY_ASSIGN(id, Communicator::make_unique_id());
      made.add();
    }
    return made.wait_at_least(1, kLimitS) ? Expected<UniqueId>(id)
                                          : Status(StatusCode::kTimeout, "no rank made the id");
  }

  Comm make_first() {
    if (rank_ >= first_ranks()) return nullptr;  // a new rank
    const auto id = meet(run_.id, run_.id_made, rank_ == 0);
    auto made = id.ok() ? Communicator::init_rank(first_ranks(), *id, rank_, config_) : Expected<Comm>(id.status());
    if (!made.ok()) return put("the first communicator: " + made.status().to_string(), me_.wrong), nullptr;
    if (const auto right = works(**made); !right) put(std::string("warm-up: ") + right.message(), me_.wrong);
    return std::move(*made);
  }

  // Makes the objects that the stage needs.
  std::vector<Comm> prepare(Communicator* comm) {
    std::vector<Comm> others;
    for (int i = 0; i < 4 && c_.stage == KillStage::kDestroy; ++i) {
      auto part = comm->split(i % 2 == 0 ? 0 : rank_ % 2, 0, config_);
      if (!part.ok()) put("prepare: " + part.status().to_string(), me_.wrong);
      else others.push_back(std::move(*part));
    }
    if (c_.stage == KillStage::kInit || c_.stage == KillStage::kGrow) {
      if (rank_ == 0) (void)meet(run_.more, run_.more_made, true);
    }
    return others;
  }

  // Repeats the stage's calls until the death shows.
  Status until_an_error(Comm& comm, std::vector<Comm>& others) {
    const Stopwatch watch;
    Status s;
    for (int round = 0; s.ok() && watch.seconds() < kLimitS; ++round) {
      me_.began_s = now_s();
      switch (c_.stage) {
        case KillStage::kInit:
        case KillStage::kGrow: {
          auto made = meet_newly(comm.get());
          s = made.status();
          if (s.ok()) s = until_a_call_fails(**made);
          break;
        }
        case KillStage::kSplit: {
          auto part = comm->split(c_.seed % 3 == 0 ? 0 : (rank_ + round) % 2, -rank_, config_);
          s = part.status();
          // Its error names ranks of the part: the next split reports the same rank with our numbers.
          if (s.ok() && round % 3 == 2) (void)SimpleAllReduce(**part, 100).start(**part, nullptr);
          break;
        }
        case KillStage::kShrink: {
          auto made = comm->shrink({}, config_);
          if (!made.ok()) return put("a shrink failed; ", me_.wrong), made.status();
          comm = std::move(*made);
          // If the shrink has noticed the death, there is no error.
          if (comm->size() < c_.nranks) return Status(StatusCode::kPeerLost, shrunken());
          break;
        }
        case KillStage::kDestroy:
          if (others.empty()) {
            s = until_a_call_fails(*comm);
          } else {
            SimpleAllReduce under_way(*others.back(), 20000);
            Work work;
            if (c_.seed % 2 == 0) (void)under_way.start(*others.back(), &work);
            me_.began_s = now_s();
            others.pop_back();
            if (run_.killed_at_s != 0)
              me_.destroyed_s = std::max(me_.destroyed_s, now_s() - std::max(me_.began_s, run_.killed_at_s.load()));
          }
          break;
        case KillStage::kCollective: s = call(*comm); break;
      }
    }
    return s;
  }

  // Init and grow.
  Expected<Comm> meet_newly(Communicator* comm) {
    Config config = config_;
    config.init_deadline_s = kInitDeadlineS;
    RONDO_TRY_ASSIGN(const UniqueId id, meet(run_.more, run_.more_made, false));
    if (comm == nullptr) return Communicator::init_rank(c_.nranks, id, rank_, config);
    return comm->grow(c_.nranks, &id, config);
  }

  std::string shrunken() const {
    std::string text = "shrunk without";
    for (Rank r = 0; r < c_.nranks; ++r)
      if (c_.is_victim(r)) text += fmt::format(" rank {}", r);
    return text;
  }

  Status until_a_call_fails(Communicator& comm) {
    Status s;
    for (const Stopwatch watch; s.ok() && watch.seconds() < kLimitS;) {
      me_.began_s = now_s();
      s = call(comm);
    }
    return s;
  }

  Status call(Communicator& comm) {
    const uint64_t n = c_.count_elems, all = n * static_cast<uint64_t>(comm.size());
    std::vector<float> in(all), out(all);
    const Rank root = static_cast<Rank>(c_.seed % static_cast<uint64_t>(comm.size()));
    Work work;
    Work* const later = c_.call == 1 ? &work : nullptr;
    if (c_.call == 2) group_start();
    Status s = start(comm, in.data(), out.data(), n, root, later);
    if (c_.call == 2) {
      const Status ended = group_end();
      if (s.ok()) s = ended;
    }
    return s.ok() && later != nullptr ? later->wait() : s;
  }

  Status start(Communicator& comm, float* in, float* out, uint64_t n, Rank root, Work* work) {
    constexpr Dtype kType = Dtype::kFloat32;
    switch (c_.collective) {
      case Collective::kAllReduce: return comm.all_reduce(in, out, n, kType, Op::kSum, nullptr, work);
      case Collective::kReduceScatter: return comm.reduce_scatter(in, out, n, kType, Op::kSum, nullptr, work);
      case Collective::kAllGather: return comm.all_gather(in, out, n, kType, nullptr, work);
      case Collective::kBroadcast: return comm.broadcast(in, out, n, kType, root, nullptr, work);
      case Collective::kReduce: return comm.reduce(in, out, n, kType, Op::kSum, root, nullptr, work);
      case Collective::kAllToAll: return comm.all_to_all(in, out, n, kType, nullptr, work);
      case Collective::kGather: return comm.gather(in, out, n, kType, root, nullptr, work);
      case Collective::kScatter: return comm.scatter(in, out, n, kType, root, nullptr, work);
      case Collective::kBarrier: return comm.barrier(nullptr, work);
      case Collective::kSend:
      case Collective::kRecv: break;
    }
    return Status(StatusCode::kInternal, "not a collective of all ranks");
  }

  // The survivors make a communicator and sum on it.
  void go_on(Comm comm) {
    std::vector<Rank> left;
    for (Rank r = 0; r < c_.nranks; ++r)
      if (!c_.is_victim(r)) left.push_back(r);
    Expected<Comm> made = Comm();
    if (c_.stage == KillStage::kInit || c_.stage == KillStage::kGrow) {  // new ranks have nothing to shrink
      comm.reset();
      const auto id = meet(run_.again, run_.again_made, rank_ == left[0]);
      const auto place = static_cast<Rank>(std::find(left.begin(), left.end(), rank_) - left.begin());
      made = id.ok() ? Communicator::init_rank(static_cast<int>(left.size()), *id, place, config_)
                     : Expected<Comm>(id.status());
    } else if (comm->size() == static_cast<int>(left.size())) {  // it has already shrunk
      made = std::move(comm);
    } else {
      made = comm->shrink({}, config_);
    }
    if (!made.ok()) return put("going on: " + made.status().to_string(), me_.wrong);
    if ((*made)->size() != static_cast<int>(left.size()))
      return put(fmt::format("{} ranks go on instead of {}; ", (*made)->size(), left.size()), me_.wrong);
    if (const auto right = works(**made, 5000); !right) put(std::string("going on: ") + right.message(), me_.wrong);
    me_.gone_on_s = now_s();
  }

  const KillCase& c_;
  Run& run_;
  const Rank rank_;
  Survivor& me_;
  Config config_;
};

void judge(const KillCase& c, const Run& run, KillOutcome* outcome) {
  const double killed_s = run.killed_at_s;
  double told_s = 0, last_told_s = 0, summed_s = 0;
  for (Rank r = 0; r < c.nranks; ++r) {
    if (c.is_victim(r)) continue;
    const Survivor& s = run.ranks[r];
    auto fault = [&](const std::string& text) {
      outcome->faults.push_back(fmt::format("rank {}: {}; its status: {}", r, text, s.text));
    };
    if (s.wrong[0] != 0) fault(s.wrong);
    if (s.told_s == 0) continue;  // its process was reported
    if (s.told_s < killed_s) fault("there was an error before the death");
    const auto code = static_cast<StatusCode>(s.code);
    const bool meets = c.stage == KillStage::kInit || c.stage == KillStage::kGrow;
    // A rank that never came can only be missed at the deadline.
    const bool missed = meets && code == StatusCode::kTimeout;
    if (code != StatusCode::kPeerLost && !missed) fault("its error is of another kind");
    bool named = false;
    for (Rank v = 0; v < c.nranks; ++v) {
      const std::string text = s.text, number = std::to_string(v);
      for (const std::string before : {"rank ", "ranks ", ", "})
        for (size_t at = text.find(before + number); at != std::string::npos; at = text.find(before + number, at + 1)) {
          const size_t end = at + before.size() + number.size();
          named =
              named || (c.is_victim(v) && (end == text.size() || !std::isdigit(static_cast<unsigned char>(text[end]))));
        }
    }
    if (!named) fault("it does not name the killed rank");
    last_told_s = std::max(last_told_s, s.told_s);
    summed_s = std::max(summed_s, s.gone_on_s);
    const double since_s = std::max(killed_s, s.began_s + (missed ? kInitDeadlineS : 0));
    const double took_s = std::max(s.destroyed_s, s.told_s - since_s);
    if (took_s > told_s)
      outcome->slowest = fmt::format("rank {}, {:.0f} ms to its end, {:.0f} ms of that in a destroy: {}", r,
                                     (s.told_s - since_s) * 1e3, s.destroyed_s * 1e3, s.text);
    told_s = std::max(told_s, took_s);
  }
  outcome->told_s = told_s;
  outcome->gone_on_s = std::max(0.0, summed_s - last_told_s);
}

Status live_in_process(const KillCase& c, Run& run, int process) {
  const Holdings before;
  std::vector<std::thread> threads;
  const Rank first = process * c.ranks_of_process;
  for (Rank r = first + 1; r < first + c.ranks_of_process; ++r)
    threads.emplace_back([&c, &run, r] { Member(c, run, r).live(); });
  Member(c, run, first).live();
  for (std::thread& t : threads) t.join();
  if (const std::string left = leftovers(before); !left.empty()) put(left, run.ranks[first].wrong);
  return {};
}

std::set<std::string> segments() {
  std::set<std::string> found = names_in("/dev/shm");
  std::erase_if(found, [](const std::string& name) { return name.find("rondo") == std::string::npos; });
  return found;
}

}  // namespace

const char* kill_stage_name(KillStage s) {
  constexpr const char* kNames[kNumKillStages] = {"init", "split", "shrink", "grow", "destroy", "collective"};
  return kNames[static_cast<int>(s)];
}

KillCase kill_case(uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15u + 1);
  auto below = [&](uint64_t n) { return random() % n; };
  KillCase c{};
  c.seed = seed;
  constexpr uint64_t kShares[kNumKillStages] = {1, 4, 3, 1, 1, 4};
  uint64_t share = below(14);
  int stage = 0;
  while (share >= kShares[stage]) share -= kShares[stage++];
  c.stage = static_cast<KillStage>(stage);
  constexpr KillWorld kWorlds[] = {KillWorld::kShm, KillWorld::kShm, KillWorld::kTcp, KillWorld::kThreads};
  c.world = kWorlds[below(std::size(kWorlds))];
  c.ranks_of_process = c.world == KillWorld::kThreads ? 2 : 1;
  c.nranks = c.world == KillWorld::kThreads ? 4 + 2 * static_cast<int>(below(3)) : 2 + static_cast<int>(below(7));
  // The first process makes the ids of init and grow.
  const bool meets = c.stage == KillStage::kInit || c.stage == KillStage::kGrow;
  const auto processes = static_cast<uint64_t>(c.num_processes());
  c.victim = static_cast<int>(meets ? 1 + below(processes - 1) : below(processes));
  constexpr uint32_t kMostUs[kNumKillStages] = {10000, 12000, 12000, 12000, 3000, 8000};
  c.delay_us = static_cast<uint32_t>(below(kMostUs[static_cast<int>(c.stage)]));
  constexpr Collective kAll[] = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                                 Collective::kBroadcast, Collective::kReduce,        Collective::kAllToAll,
                                 Collective::kGather,    Collective::kScatter,       Collective::kBarrier};
  const bool any = c.stage == KillStage::kCollective;
  c.collective = any ? kAll[below(std::size(kAll))] : Collective::kAllReduce;
  constexpr uint64_t kCounts[] = {1, 100, 3000, 40000, 200000};
  c.count_elems = any ? kCounts[below(std::size(kCounts))] : 100;
  c.call = any ? static_cast<uint32_t>(below(3)) : 0;
  return c;
}

std::string describe(const KillCase& c) {
  constexpr const char* kWorldNames[] = {"shm", "tcp", "threads of processes"};
  return fmt::format("kill {}: {} ranks over {}, {}{}; process {} is killed after {} us", c.seed, c.nranks,
                     kWorldNames[static_cast<int>(c.world)], kill_stage_name(c.stage),
                     c.stage == KillStage::kCollective
                         ? fmt::format(", {} of {}, call {}", collective_name(c.collective), c.count_elems, c.call)
                         : "",
                     c.victim, c.delay_us);
}

KillOutcome run_kill_case(const KillCase& c) {
  KillOutcome outcome;
  const std::set<std::string> descriptors = open_descriptors(), names = segments();
  Shared<Run> run;
  SpawnOptions options;
  options.deadline_s = 3 * kLimitS;
  options.may_die = {c.victim};
  options.in_parent = [&](const std::vector<pid_t>& pids) {
    (void)run->ready.wait_at_least(static_cast<uint32_t>(c.nranks), kLimitS);
    for (const Stopwatch watch; watch.seconds() * 1e6 < c.delay_us;) usleep(20);
    run->killed_at_s = now_s();
    kill(pids[static_cast<size_t>(c.victim)], SIGKILL);
  };
  const std::vector<RankResult> results = run_processes_bare(
      c.num_processes(), [&](Rank process) { return live_in_process(c, *run, process); }, options);
  for (const RankResult& r : results) {
    for (const std::string& text : r.failures) outcome.faults.push_back(fmt::format("process {}: {}", r.rank, text));
    if (r.rank == c.victim ? r.end != RankResult::End::kSignalled : r.end != RankResult::End::kReturned)
      outcome.faults.push_back(fmt::format("process {}: ended otherwise than expected: {}, signal {}", r.rank,
                                           static_cast<int>(r.end), r.signal));
  }
  judge(c, *run, &outcome);
  if (waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD) outcome.faults.push_back("a process is left");
  if (open_descriptors() != descriptors) outcome.faults.push_back("a descriptor is left");
  if (segments() != names) outcome.faults.push_back("a segment is left in /dev/shm");
  return outcome;
}

}  // namespace rondo::testing

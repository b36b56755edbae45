// The path of a small all-reduce, from the public function to the store that the reader waits for: the functions on the
// stack at that store are those of the table in docs/architecture.md ("Hop budget"), no more and no fewer.
//
// The page of the next header line is read-only. A store to it raises SIGSEGV: the handler takes the backtrace if the
// store is the flag's, and then lets this one instruction run. Needs x86-64 (the trap flag), addr2line, and the debug
// information that src/CMakeLists.txt adds to the files of the path.
// labels: unit
// timeout: 120
#include <gtest/gtest.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "api/c_handles.h"
#include "api/communicator_impl.h"
#include "rondo/rondo.h"
#include "support/shared.h"

namespace rondo {
namespace {

#if defined(__x86_64__)

struct Hop {
  std::string function, file;
  friend bool operator==(const Hop&, const Hop&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Hop& h) { return out << h.function << " in " << h.file; }
};

// Set before the page is protected, then the handlers'.
constexpr size_t kMostFrames = 64;
std::byte* page = nullptr;
const void* flag = nullptr;
uintptr_t frames[kMostFrames];
std::atomic<size_t> num_frames{0};

void protect(int how) { mprotect(page, static_cast<size_t>(sysconf(_SC_PAGESIZE)), how); }

struct Walk {
  size_t n = 0;
  uintptr_t frame_pointer = 0;
};

_Unwind_Reason_Code add_frame(_Unwind_Context* context, void* to) {
  Walk& walk = *static_cast<Walk*>(to);
  if (walk.n == kMostFrames - 1) return _URC_END_OF_STACK;
  frames[walk.n++] = _Unwind_GetIP(context);
  walk.frame_pointer = _Unwind_GetGR(context, 6);
  return _URC_NO_REASON;
}

// c_api.cc has no unwind tables, so the walk ends there; it has frame pointers, which lead one frame further.
void take_backtrace() {
  Walk walk;
  _Unwind_Backtrace(add_frame, &walk);
  if (walk.frame_pointer != 0) std::memcpy(&frames[walk.n++], reinterpret_cast<void*>(walk.frame_pointer + 8), 8);
  num_frames = walk.n;
}

constexpr greg_t kTrapFlag = 0x100;

void on_fault(int, siginfo_t* info, void* context) {
  auto* at = static_cast<std::byte*>(info->si_addr);
  if (at < page || at >= page + sysconf(_SC_PAGESIZE)) {
    signal(SIGSEGV, SIG_DFL);
    return;
  }
  if (at == flag && num_frames == 0) take_backtrace();
  protect(PROT_READ | PROT_WRITE);
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] |= kTrapFlag;
}

void on_step(int, siginfo_t*, void* context) {
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag;
  if (num_frames == 0) protect(PROT_READ);
}

class Handlers {
 public:
  Handlers() {
    set(SIGSEGV, on_fault, &segv_);
    set(SIGTRAP, on_step, &trap_);
  }
  ~Handlers() {
    sigaction(SIGSEGV, &segv_, nullptr);
    sigaction(SIGTRAP, &trap_, nullptr);
  }

 private:
  static void set(int number, void (*handler)(int, siginfo_t*, void*), struct sigaction* old) {
    struct sigaction now = {};
    now.sa_sigaction = handler;
    now.sa_flags = SA_SIGINFO;
    sigaction(number, &now, old);
  }
  struct sigaction segv_, trap_;
};

// Where rank 0's next message of such a call has its flag.
const uint64_t* next_flag(CommunicatorImpl& impl) {
  impl.lock();
  const auto planned = impl.planner().plan({Collective::kAllReduce, 1, 0, Dtype::kFloat64, Op::kSum});
  EXPECT_TRUE(planned.ok());
  const Program& program = *(**planned.value()).program;
  EXPECT_FALSE(program.once.empty());
  const auto& fifo = program.writes.at(0).first->fifo;
  const HeaderLine& line = fifo.view().lines[fifo.step() & (fifo.num_lines() - 1)];
  impl.unlock();
  return &line.flag;
}

void all_reduce(rondo_comm* comm) {
  double x = 1, sum = 0;
  EXPECT_EQ(rondo_all_reduce(comm, &x, &sum, 1, RONDO_FLOAT64, RONDO_SUM, nullptr, nullptr), RONDO_OK);
  EXPECT_EQ(sum, 2);
}

// `more`: this rank's own code around its call.
template <class More>
void both(rondo_comm* const (&comms)[2], More more) {
  std::thread other([&] { all_reduce(comms[1]); });
  more();
  all_reduce(comms[0]);
  other.join();
}

// addr2line's answer: a line with the function and one with the file, for each function that the address lies in.
std::string lines_of(uintptr_t address) {
  char command[256], text[512];
  std::snprintf(command, sizeof command, "addr2line -ifCe /proc/%d/exe 0x%lx", static_cast<int>(getpid()), address);
  std::string all;
  FILE* const out = popen(command, "r");
  while (out != nullptr && std::fgets(text, sizeof text, out) != nullptr) all += text;
  if (out != nullptr) pclose(out);
  return all;
}

// "rondo::FifoWriter<rondo::HostMem>::post(unsigned int)" becomes "FifoWriter::post".
std::string short_name(std::string name) {
  name = std::regex_replace(name, std::regex(R"(\(anonymous namespace\)::|rondo::|\[clone [^\]]*\]| const$)"), "");
  name = name.substr(0, name.find('('));
  for (std::string before; before != name;) {
    before = name;
    name = std::regex_replace(name, std::regex("<[^<>]*>"), "");
  }
  return name.substr(name.rfind(' ') + 1);
}

// The program's functions on the stack, from the public one to the store.
std::vector<Hop> found_path() {
  uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        *static_cast<uintptr_t*>(to) = info->dlpi_addr;
        return 1;  // the first one is the program
      },
      &base);
  std::vector<Hop> path;
  bool begun = false;  // with the innermost of the program's frames; before are the handler's
  for (size_t i = 0; i < num_frames; ++i) {
    std::istringstream lines(lines_of(frames[i] - base - (begun ? 1 : 0)));
    for (std::string function, file; std::getline(lines, function) && std::getline(lines, file);) {
      const std::string name = short_name(function);
      if (!begun && name.find("store_release") == std::string::npos && name.find("__atomic") == std::string::npos)
        continue;
      begun = true;
      const size_t source = file.find("/src/");
      if (name.starts_with("std::") || name.find("__atomic") != std::string::npos) continue;
      path.insert(path.begin(),
                  {name, source == std::string::npos ? "" : file.substr(source + 1, file.rfind(':') - source - 1)});
      if (name == "rondo_all_reduce") return path;
    }
  }
  return path;
}

std::vector<Hop> documented_path() {
  std::ifstream page_of(RONDO_SOURCE_DIR "/docs/architecture.md");
  std::vector<Hop> path;
  bool inside = false;
  const std::regex row(R"(\| \d+ \| `([^`]+)` \| `([^`]+)` \|)");
  for (std::string line; std::getline(page_of, line);) {
    if (line.starts_with("## ")) inside = line == "## Hop budget";
    if (std::smatch m; inside && std::regex_match(line, m, row)) path.push_back({m[1], m[2]});
  }
  return path;
}

TEST(CallPath, IsTheOneOfTheHopBudget) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer handles SIGSEGV itself";
  if (lines_of(0).empty()) GTEST_SKIP() << "addr2line is needed";
  rondo_comm* comms[2];
  ASSERT_EQ(rondo_comm_init_all(comms, 2, nullptr), RONDO_OK);
  for (int i = 0; i < 3; ++i) both(comms, [] {});
  const Handlers handlers;
  // A store of the other rank's to the same page may let one of ours through: then another call is looked at.
  for (int tries = 0; tries < 100 && num_frames == 0; ++tries) {
    flag = next_flag(impl_of(*comms[0]->comm));
    page = reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(flag) &
                                        ~static_cast<uintptr_t>(sysconf(_SC_PAGESIZE) - 1));
    both(comms, [] { protect(PROT_READ); });
    protect(PROT_READ | PROT_WRITE);
  }
  for (rondo_comm* comm : comms) rondo_comm_destroy(comm);
  ASSERT_GT(num_frames, 0u) << "no store to the flag was seen";

  const std::vector<Hop> documented = documented_path();
  const std::vector<Hop> found = found_path();
  std::set<std::string> files;
  for (const Hop& h : documented) files.insert(h.file);
  EXPECT_LE(documented.size(), 8u);
  EXPECT_LE(files.size(), 7u);
  EXPECT_EQ(found, documented);
}

#else

TEST(CallPath, IsTheOneOfTheHopBudget) { GTEST_SKIP() << "stepping over one store needs x86-64"; }

#endif

}  // namespace
}  // namespace rondo

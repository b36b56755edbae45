// `rondo perf`: the command line of the benchmark (perf_bench.h) with nccl-tests' flags.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "commands.h"
#include "launch/launch.h"
#include "nccl_flags.h"
#include "perf_bench.h"
#include "perf_explain.h"
#include "perf_launch.h"
#include "perf_operations.h"
#include "perf_options.h"
#include "plugin.h"

namespace rondo::tools {
namespace {

/// CLI11's own text for a range makes the help hard to read.
template <class T>
CLI::Validator in_range(T least, T most) {
  CLI::Validator range = CLI::Range(least, most);
  range.description("");
  return range;
}

/// Values that CLI11 fills, before they are checked.
struct PerfArgs {
  std::string operation, min_bytes = "32M", max_bytes, step_bytes = "1M", dtypes = "float", ops = "sum";
  std::string wire, accumulator, output;
  std::string device = "host";
  int gpus = 1;
  int timestamps = 0;
  PerfOptions options;
  NcclFlags nccl_flags;
  Plugins plugins;
};

[[noreturn]] void fail_perf(const std::string& message) {
  std::fprintf(stderr, "rondo perf: %s\n", message.c_str());
  throw CLI::RuntimeError(2);
}
template <class T>
T value_or_fail(Expected<T> value) {
  if (!value.ok()) fail_perf(std::string(value.status().message()));
  return std::move(value.value());
}

std::optional<Dtype> one_type_or_fail(const std::string& flag, const std::string& name) {
  if (name.empty()) return std::nullopt;
  const std::vector<Dtype> types = value_or_fail(parse_dtypes(name));
  if (types.size() != 1) fail_perf(flag + " takes one type; -d takes several");
  return types[0];
}

/// Checks that rondo supports every row of mixed types.
void finish_types(PerfArgs& args) {
  PerfOptions& o = args.options;
  o.wire = one_type_or_fail("--wire", args.wire);
  o.accumulator = one_type_or_fail("--accumulator", args.accumulator);
  o.output = one_type_or_fail("--output", args.output);
  for (Dtype dtype : o.dtypes) {
    const TypeRow t = types_of(o, dtype);
    if (t != uniform_row(dtype) && !o.operation->collective)
      fail_perf(std::string(o.operation->name) + " carries one type: it has no --wire, --accumulator or --output");
    if (!row_supported(t))
      fail_perf(
          fmt::format("input {}, wire {}, accumulator {}, output {}: types that differ are float, bfloat16 or half for "
                      "input (-d) and --output, these or fp8 for --wire, and a float --accumulator",
                      dtype_name(t.input), dtype_name(t.wire), dtype_name(t.accumulator), dtype_name(t.output)));
  }
}

/// Accepts --algo and --proto with the names of rondo or NCCL.
void finish_names(PerfOptions& o) {
  if (!o.protocol.empty()) o.protocol = value_or_fail(named_protocol(o.protocol));
  if (o.algorithm.empty()) return;
  if (!o.operation->collective)
    fail_perf(fmt::format("there is no algorithm '{}' for {}, which has no algorithms: leave out --algo", o.algorithm,
                          o.operation->name));
  o.algorithm = value_or_fail(named_algorithm(*o.operation->collective, o.algorithm))->name;
}

/// Checks the flags that need a plan.
void check_plan_options(const PerfOptions& o) {
  const bool one_type = !o.wire && !o.accumulator && !o.output;
  if ((o.explain || o.show_plan) && (!o.operation->collective || o.operation->variable_counts || !one_type))
    fail_perf("--explain needs a collective with equal counts and one type");
}

/// Finds the ranks. As in nccl-tests, a process has -t threads of -g ranks each, and a launcher starts the processes.
void finish_world(PerfArgs& args) {
  PerfOptions& o = args.options;
  const int in_process = std::max(1, o.threads) * std::max(1, args.gpus);
  const std::string flags = fmt::format("-t {} -g {}", std::max(1, o.threads), args.gpus);
  if (o.ranks > 0 && in_process > 1)
    fail_perf("--ranks (processes) and --threads or -g above 1 exclude one another: choose one of them");
  if (in_process > 4096) fail_perf(flags + " are more than 4096 ranks in one process");
  const Expected<LaunchInfo> by = launch_from_environment();
  if (in_process > 1 && by.ok() && by->nranks > 1 && !is_launched_rank())
    fail_perf(
        fmt::format("{}: a process of {} is one rank here: start {} times as many processes, and leave -t and -g "
                    "out",
                    flags, by->launcher, in_process));
  o.threads = in_process > 1 ? in_process : 0;
  if (is_launched_rank() || (by.ok() && by->rank != 0)) return;  // printed once
  for (const std::string& answer : args.nccl_flags.answers()) std::fprintf(stderr, "rondo perf: %s\n", answer.c_str());
}

void finish_options(PerfArgs& args) {
  PerfOptions& o = args.options;
  o.operation = find_perf_operation(args.operation);
  if (o.operation == nullptr)
    fail_perf("there is no collective '" + args.operation + "': choose one of " + perf_operation_names());
  o.min_bytes = value_or_fail(parse_bytes(args.min_bytes));
  o.max_bytes = args.max_bytes.empty() ? o.min_bytes : value_or_fail(parse_bytes(args.max_bytes));
  o.step_bytes = value_or_fail(parse_bytes(args.step_bytes));
  o.dtypes = value_or_fail(parse_dtypes(args.dtypes));
  o.ops = value_or_fail(parse_ops(args.ops));
  finish_types(args);
  value_or_fail(sweep_bytes(o));
  finish_names(o);
  check_plan_options(o);
  if (const std::string why = args.nccl_flags.refusal(); !why.empty()) fail_perf(why);
  if (args.device != "host" && args.device != "cuda")
    fail_perf(std::string(no_such("device", args.device, {"host", "cuda"}).message()));
  o.on_device = args.device == "cuda";
  o.timestamps = args.timestamps != 0;
  if (o.on_device && o.explain) fail_perf("--explain measures host memory; -v prints the plans of devices");
  if (o.json_stdout && !o.explain) fail_perf("--json belongs to --explain; -J - prints the table's JSON");
  if (o.json_path == "-" && o.explain) o.json_stdout = true, o.json_path.clear();
  if (o.explain && (o.dtypes.size() > 1 || o.ops.size() > 1)) fail_perf("--explain measures one type and one operator");
  if (o.blocking == 0 && o.aggregate > 1)
    fail_perf("-z 0 and -m exclude one another: a group waits for its operations");
  finish_world(args);
}

/// The whole argv, independent of CLI11's callback.
std::vector<std::string> own_arguments() {
  std::ifstream cmdline("/proc/self/cmdline");
  std::vector<std::string> argv;
  for (std::string word; std::getline(cmdline, word, '\0');) argv.push_back(word);
  return argv;
}

int run(const PerfArgs& args, const std::vector<std::string>& argv) {
  const PerfOptions& o = args.options;
  if (!o.algorithm.empty()) setenv("RONDO_ALGO", o.algorithm.c_str(), 1);
  if (!o.protocol.empty()) setenv("RONDO_PROTO", o.protocol.c_str(), 1);
  if (!o.hosts.empty()) setenv("RONDO_HOSTS", o.hosts.c_str(), 1);
  auto bench_env = o.explain ? explain_env : tools::bench_env;
  auto bench_threads = o.explain ? explain_threads : tools::bench_threads;
  if (is_launched_rank()) return bench_env(o, {"processes", argv});
  if (o.ranks > 0) return launch_processes(o.ranks, argv);
  if (o.threads > 0) return bench_threads(o, o.threads, {"threads of one process", argv});
  const LaunchInfo launch = value_or_fail(launch_from_environment());
  const std::string by = launch.launcher == "rondo" ? "RONDO_RANK" : launch.launcher;
  if (launch.meeting != LaunchInfo::Meeting::kAlone) return bench_env(o, {"processes of " + by, argv});
  return bench_threads(o, 1, {"alone: see --ranks and --threads", argv});
}

void add_world_options(CLI::App& c, PerfArgs& a) {
  const std::string group = "Ranks (none of these: those of torchrun, mpirun or srun, else one)";
  c.add_option("--ranks", a.options.ranks, "Starts this many ranks as processes on this host")
      ->check(in_range(1, 4096))
      ->type_name("N")
      ->group(group);
  c.add_option("-t,--threads,--nthreads", a.options.threads, "Runs this many ranks as threads of this process")
      ->check(in_range(1, 4096))
      ->type_name("N")
      ->group(group);
  c.add_option("-g,--ngpus", a.gpus, "Runs this many ranks for each thread of -t, with or without GPUs")
      ->check(in_range(0, 4096))
      ->type_name("N")
      ->group(group);
  c.add_option("-T,--timeout", a.options.timeout_s,
               "Sets the deadline of one operation in seconds (0: RONDO_TIMEOUT_S or 600)")
      ->check(in_range(0.0, 1e9))
      ->type_name("S")
      ->capture_default_str()
      ->group(group);
}

void add_size_options(CLI::App& c, PerfArgs& a) {
  const std::string group = "Sizes in bytes; K, M, G are powers of 1024";
  c.add_option("-b,--minbytes", a.min_bytes,
               "Sets the first size of the whole vector (the longer of a rank's input and output, in the input's type)")
      ->type_name("BYTES")
      ->capture_default_str()
      ->group(group);
  c.add_option("-e,--maxbytes", a.max_bytes, "Sets the last size (default: the first)")
      ->type_name("BYTES")
      ->capture_default_str()
      ->group(group);
  c.add_option("-i,--stepbytes", a.step_bytes, "Adds this to get the next size")
      ->type_name("BYTES")
      ->capture_default_str()
      ->group(group);
  c.add_option("-f,--stepfactor", a.options.step_factor, "Multiplies by this to get the next size, instead of -i")
      ->check(in_range(1, 1 << 20))
      ->type_name("N")
      ->group(group);
  c.add_option("-d,--datatype", a.dtypes,
               "Selects types:"
#define RONDO_X(e, v, name, ...) " " name
               RONDO_DTYPES(RONDO_X)
#undef RONDO_X
                   ", a list, or all")
      ->type_name("NAMES")
      ->capture_default_str()
      ->group(group);
  c.add_option("-o,--op", a.ops,
               "Selects operators: sum prod max min avg mulsum, a list with commas, or all of these; for integers in "
               "host memory also band bor bxor")
      ->type_name("NAMES")
      ->capture_default_str()
      ->group(group);
  c.add_option("-r,--root", a.options.root,
               "Sets the root of broadcast, reduce, gather and scatter; -1 or all uses every rank in turn")
      ->transform([](std::string text) { return text == "all" ? std::string("-1") : text; })
      ->check(in_range(-1, 65535))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  c.add_option("-u,--unalign", a.options.unalign_elems, "Shifts buffers from a page boundary by this many elements")
      ->check(in_range(0, 1 << 20))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
}

void add_type_options(CLI::App& c, PerfArgs& a) {
  const std::string group = "Types that differ from the input type -d (docs/types.md)";
  c.add_option("--wire", a.wire, "Sets the type of messages: float, bfloat16, half, fp8_e4m3 or fp8_e5m2")
      ->type_name("NAME")
      ->group(group);
  c.add_option("--accumulator", a.accumulator, "Sets the type of sums: float")->type_name("NAME")->group(group);
  c.add_option("--output", a.output, "Sets the type of outputs: float, bfloat16 or half")
      ->type_name("NAME")
      ->group(group);
}

void add_measure_options(CLI::App& c, PerfArgs& a) {
  PerfOptions& o = a.options;
  const std::string group = "Measurement";
  const auto not_negative = in_range(0, 1 << 30);
  c.add_option("-n,--iters", o.iters, "Sets the number of timed iterations")
      ->check(in_range(1, 1 << 30))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  c.add_option("-w,--warmup_iters", o.warmup_iters, "Sets the number of warm-up iterations")
      ->check(not_negative)
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  c.add_option("-m,--agg_iters", o.aggregate, "Issues this many operations as one group per iteration")
      ->check(in_range(1, 1024))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  c.add_option("-N,--run_cycles", o.run_cycles, "Repeats the whole sweep this many times; 0 repeats forever")
      ->check(not_negative)
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  c.add_option("-c,--check", o.check, "Verifies every element of the result this many times before and after; 0 never")
      ->check(not_negative)
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  c.add_option("-a,--average", o.average,
               "Selects the reported time: 0 rank 0's, 1 the mean, 2 the minimum, 3 the maximum over the ranks")
      ->check(in_range(0, 3))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  c.add_option("-z,--blocking", o.blocking,
               "Selects the waiting: 0 queues all iterations and then waits, 1 waits and runs a barrier after each, 2 "
               "waits after each, 3 is 1 with an untimed barrier")
      ->check(in_range(0, 3))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  c.add_option("-R,--local_register", o.registered,
               "Uses buffers from rondo_alloc, which all ranks can access, for 1 or 2 (nccl-tests' symmetric windows)")
      ->check(in_range(0, 2))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  c.add_option("--rotate", o.rotate,
               "Measures cold caches: every call uses the next of this many buffers, which should exceed the caches "
               "(rondo info)")
      ->check(in_range(0, 1 << 20))
      ->type_name("N")
      ->group(group);
  c.add_option("--device", a.device,
               "Selects the memory of buffers: host, or cuda (rank r uses device r modulo the device count)")
      ->type_name("NAME")
      ->capture_default_str()
      ->group(group);
}

void add_plan_options(CLI::App& c, PerfArgs& a) {
  const std::string group = "Plan and output";
  c.add_option("--algo", a.options.algorithm,
               "Sets RONDO_ALGO to use only this algorithm (rondo explain --list; NCCL's names Ring and Tree work too)")
      ->type_name("NAME")
      ->group(group);
  c.add_option("--hosts", a.options.hosts,
               "Sets RONDO_HOSTS to plan for ranks on these hosts: 2x4, 3+2 or 0,1,0,1; the transport does not change")
      ->type_name("LAYOUT")
      ->group(group);
  c.add_option("--proto", a.options.protocol,
               "Sets RONDO_PROTO to simple or inline, on devices also ll or ll128 (the host treats these as inline)")
      ->type_name("NAME")
      ->group(group);
  c.add_flag("-v,--plan", a.options.show_plan, "Prints the planner's choice and its reason for every size")
      ->group(group);
  c.add_flag("--explain", a.options.explain,
             "Measures every candidate (algorithm, protocol, message size, lap) for every size, and prints forecast, "
             "measured time, the planner's choice and how much faster the best one is")
      ->group(group);
  c.add_option("--bursts", a.options.bursts, "Measures each candidate this many times in turns, with --explain")
      ->check(in_range(3, 1000))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  c.add_option("--burst-us", a.options.burst_us,
               "Sets the approximate length of a burst of calls in microseconds, with --explain")
      ->check(in_range(1.0, 1e6))
      ->type_name("US")
      ->capture_default_str()
      ->group(group);
  c.add_flag("--json", a.options.json_stdout, "Prints JSON instead of the table, with --explain")->group(group);
  c.add_option("-J,--output_file", a.options.json_path,
               "Writes nccl-tests' JSON to a new file (adds .0, .1, ... if the name exists); - writes it to the "
               "standard output and the table to the standard error")
      ->type_name("FILE")
      ->group(group);
  c.add_option("-S,--report_timestamps", a.timestamps, "Adds a column with the time of day of each row, if 1")
      ->check(in_range(0, 1))
      ->type_name("N")
      ->group(group);
}

}  // namespace

void add_perf_command(CLI::App& app) {
  auto args = std::make_shared<PerfArgs>();
  CLI::App* command = app.add_subcommand(
      "perf",
      "Measures a collective with nccl-tests' flags, table and JSON, and verifies every element of every result");
  command
      ->add_option(
          "collective", args->operation,
          "One of: " + perf_operation_names() + "; names of nccl-tests' programs such as all_reduce_perf work too")
      ->required();
  add_world_options(*command, *args);
  add_size_options(*command, *args);
  add_type_options(*command, *args);
  add_measure_options(*command, *args);
  add_plan_options(*command, *args);
  args->nccl_flags.add_to(*command);
  args->plugins.add_to(*command);
  command->footer(
      "time is the mean over all iterations of one operation's time. algbw = size / time in GB/s (10^9 bytes).\n"
      "busbw = algbw x 2(n-1)/n for all_reduce, x 1 for broadcast, reduce and sendrecv, x (n-1)/n for the others.\n"
      "sendrecv: each rank sends to the next and receives from the previous one.\n"
      "..._v: part k of n has k + 1 of n(n+1)/2 shares of the whole.\n"
      "N/A: not verified, or not supported in place. The exit status is 0 if all values were right on all ranks.\n\n"
      "The columns after nccl-tests' own are the median, the 10th and the 90th percentile of the iterations' times,\n"
      "out of place and in place (iterations below 4 us are timed in batches; N/A with -z 0). The last column names\n"
      "the disturbed measurements: the time is above 1.25 medians, or the p90 is above twice the p10. Other work used\n"
      "the cores then: measure such a point again.\n\n"
      "Examples:\n"
      "  rondo perf all_reduce --ranks 2 -b 8 -e 64M -f 2            2 processes, 24 sizes\n"
      "  rondo perf all_gather --threads 4 -b 1M -d bfloat16         4 threads\n"
      "  rondo perf reduce_scatter --ranks 4 -b 4K -o all -d all     every op and datatype, verified\n"
      "  rondo perf all_reduce --ranks 2 -b 16M --rotate 16          cold: 16 sets of buffers\n"
      "  rondo perf all_reduce --ranks 4 -b 64K --explain            every candidate, forecast against measured\n"
      "  rondo perf reduce_scatter --ranks 4 -b 1M --wire bfloat16   float in and out, half the bytes between\n"
      "  rondo perf broadcast --ranks 4 -b 1M -r -1                  from every root\n"
      "  mpirun -np 4 rondo perf all_reduce -b 1M -J result.json     the ranks of a launcher\n");
  command->callback([args] {
    args->plugins.load("perf");
    finish_options(*args);
    const std::vector<std::string> argv = own_arguments();
    const int status = run(*args, argv);
    if (status != 0) throw CLI::RuntimeError(status);
  });
}

}  // namespace rondo::tools

#!/usr/bin/env bash
# Tests and measures the device code on a machine with a GPU. Needs only the folder that scripts/gpu_bundle.sh makes (or
# this repository with that folder in build/gpu_bundle) and bash, coreutils and Python 3.
#
#   scripts/gpu_check.sh A|B|C|D [--out FOLDER] [--parts LIST] [--most SECONDS] [--quick]
#   scripts/gpu_check.sh --list      the sets, their parts and the limit of each in seconds
#
# Each set takes at most 8 minutes: A shows that calls are right, B tests rare paths, C measures, D trains with PyTorch
# and runs sanitizers and a profiler. Parts run one after the other. A part that hangs is killed at its limit, and the
# next one runs. After each part a line of JSON is appended to gpu_SET.jsonl in the folder (gpu_SET_2.jsonl, if that is
# there). The whole output is in gpu_SET.log. A part that cannot run is skipped, and its line has the reason. Exit
# status 1: a part failed. scripts/gpu_report.py makes the result file.
#
#   --out     default: $OUT, else build/gpu_check
#   --parts   only these parts of the set, with commas
#   --most    no part takes longer than this
#   --quick   small sizes and few tests, to try the script itself. No result file is made of such a run
set -euo pipefail
scripts=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
top=$(dirname "$scripts")
usage() { sed -n '2,17p' "$0" >&2; exit 2; }

sets="" out=${OUT:-build/gpu_check} parts="" most=480 quick=0 list=0
while [ $# -gt 0 ]; do
  case $1 in
    [A-D]) [ -z "$sets" ] || usage; sets=$1; shift; continue ;;
    --list) list=1 quick=0; shift; continue ;;
    --quick) quick=1; shift; continue ;;
    --out | --parts | --most) [ $# -ge 2 ] || usage ;;
    *) usage ;;
  esac
  case $1 in
    --out) out=$2 ;;
    --parts) parts=$2 ;;
    --most) most=$2 ;;
  esac
  shift 2
done
[ -n "$sets" ] || [ $list = 1 ] || usage
[[ $most =~ ^[1-9][0-9]*$ ]] || { echo "gpu_check: --most $most is not a number of seconds" >&2; exit 2; }
for name in ${parts//,/ }; do
  [[ $(<"${BASH_SOURCE[0]}") == *$'\n'"part $sets $name "* ]] ||
    { echo "gpu_check: set $sets has no part $name: --list shows the parts" >&2; exit 2; }
done

bundle=$top
[ -e "$bundle/about.json" ] || bundle=$top/build/gpu_bundle
bin=$bundle/programs/bin library=$bundle/programs/lib/libnccl.so.2
# Sizes up to 1 GiB are beyond the caches of the largest device. Iterations: for times, for checks.
middle=16M largest=1G iterations=20 few=2
if [ $quick = 1 ]; then
  middle=16K largest=64K iterations=2 few=1
  export GPU_TESTS_QUICK=1
fi
# Threads that share a device need a hardware queue for each of their streams.
export CUDA_DEVICE_MAX_CONNECTIONS=32 RONDO_TIMEOUT_S=10 RONDO_INIT_TIMEOUT_S=20
failed=0 bad=0

# part SET NAME LIMIT_S COMMAND...: runs it if it was chosen, and appends its output and result to the files.
part() {
  local name=$2 limit=$3 since=$SECONDS status=0 begin group
  [ $list = 0 ] || { echo "$1 $2 $3"; return 0; }
  [ "$1" = "$sets" ] || return 0
  [ -z "$parts" ] || case ",$parts," in *",$name,"*) ;; *) return 0 ;; esac
  [ "$limit" -le "$most" ] || limit=$most
  shift 3
  printf '\n==== %s\n' "$name" >>"$out/$log"
  begin=$(stat -c %s "$out/$log")
  # timeout starts only programs, but most parts are functions, so they run in a shell that defines them. timeout ends
  # with that shell, but a program in its process group may ignore SIGTERM. It must not disturb the next part.
  timeout -k 5 "$limit" bash -euo pipefail -c "$(declare -f); $(declare -p "${variables[@]}"); \"\$@\"" \
    gpu_check "$@" >>"$out/$log" 2>&1 </dev/null &
  group=$!
  wait $group || status=$?
  kill -KILL -- -$group 2>/dev/null || true
  python3 -B "$scripts/gpu_report.py" part "$sets" "$name" $status $((SECONDS - since)) "$out/$log" "$begin" \
    "$out/$lines" || failed=1
}
variables=(scripts bundle bin library middle largest iterations few quick bad)

# Programs write whole lines to the log, so that it has those of a program that is killed (stdbuf).
# measure HEADING ARGUMENT...: a table of rondo perf. If it fails, the other tables of the part still run.
measure() {
  local status=0
  echo "## $1"
  shift
  timeout --foreground -k 2 60 stdbuf -oL "$bin/rondo" perf "$@" --device cuda || status=$?
  [ $status = 0 ] || { echo "## failed: status $status of rondo perf $*"; bad=1; }
}
test_of() {
  local test=$1 filter=$2
  stdbuf -oL "$bin/$test" --gtest_brief=1 --gtest_filter="$filter"
}
device_info() {
  nvidia-smi || echo "no nvidia-smi"
  "$bin/rondo" info
  echo "## record"
  "$bin/rondo" info --record
}
protocols() {
  local collective protocol
  for collective in all_reduce all_gather; do
    for protocol in simple ll ll128; do
      RONDO_DEVICE_ENGINE=interpreter measure "$collective threads 2 interpreter $protocol" "$collective" --threads 2 \
        --proto $protocol -b 64 -e $middle -f 16 -n $few -c 1
    done
    RONDO_DEVICE_ENGINE=stream measure "$collective threads 2 stream simple" "$collective" --threads 2 \
      -b 64 -e $middle -f 16 -n $few -c 1
  done
  return $bad
}
two_processes() {
  local collective
  for collective in all_reduce all_gather reduce_scatter; do
    measure "$collective ranks 2 auto auto" "$collective" --ranks 2 -b 64 -e $middle -f 16 -n $few -c 1
  done
  return $bad
}
sizes() {
  local collective n
  for n in 2 8; do
    for collective in all_reduce all_gather reduce_scatter; do
      measure "$collective threads $n auto auto" "$collective" --threads $n -b 64 -e $largest -f 16 -n 1 -w 0 -c 1
    done
  done
  return $bad
}
# The path between devices that cannot access each other.
host_memory() {
  test_of gpu_device_threads_gpu_test '*HostMemory' || bad=1
  test_of gpu_device_processes_gpu_test '*HostMemory' || bad=1
  return $bad
}
# Eight threads with fewer or more hardware queues of the device.
queues() {
  local engine
  export CUDA_DEVICE_MAX_CONNECTIONS=$1
  for engine in interpreter stream; do
    RONDO_DEVICE_ENGINE=$engine measure "all_reduce threads 8 $engine auto" all_reduce --threads 8 \
      -b 1K -e $middle -f 16 -n $few -c 1
  done
  return $bad
}
# All protocols and engines, with 1 to 8 threads. One rank alone copies.
perf() {
  local n=$1 collective protocol options=(-b 64 -e "$largest" -f 8 -z 0 -n "$iterations" -w 5 -c 0)
  for collective in all_reduce all_gather reduce_scatter; do
    measure "$collective threads $n auto auto" "$collective" --threads "$n" "${options[@]}"
  done
  [ "$n" -gt 1 ] || return $bad
  for protocol in simple ll ll128; do
    RONDO_DEVICE_ENGINE=interpreter measure "all_reduce threads $n interpreter $protocol" all_reduce --threads "$n" \
      --proto $protocol "${options[@]}"
  done
  # The slowest, so the last, and with few iterations: a message is at most 1 MiB.
  RONDO_DEVICE_ENGINE=stream measure "all_reduce threads $n stream simple" all_reduce --threads "$n" "${options[@]}" \
    -n 5 -w 1
  return $bad
}
# Few sizes and iterations: processes take turns on the device, so a call can take milliseconds.
perf_processes() {
  local n collective
  for n in 2 4; do
    for collective in all_reduce all_gather reduce_scatter; do
      measure "$collective ranks $n auto auto" "$collective" --ranks $n -b 64 -e $largest -f 64 -z 0 -n 3 -w 1 -c 0
    done
  done
  return $bad
}
# The kernels and the device's own copy: within the device's cache, and far beyond it.
bandwidth() {
  local bytes=("$((16 << 20))" "$((256 << 20))" "$((1 << 30))") b
  [ $quick = 0 ] || bytes=(65536)
  for b in "${bytes[@]}"; do stdbuf -oL "$bin/gpu_bandwidth" "$b" $iterations; done
}
# Runs the same program on rondo's library and on NVIDIA's of PyTorch, in turns.
nccl() {
  local n nvidia label sizes=(1024 1048576 16777216)
  [ $quick = 0 ] || sizes=(1024)
  nvidia=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null || true)
  label=$(python3 -c 'import torch; print("nccl", ".".join(map(str, torch.cuda.nccl.version())), "of PyTorch",
                      torch.__version__, "by sockets")' 2>/dev/null || true)
  [ -n "$nvidia" ] || echo "## skipped: NVIDIA's NCCL, because there is no PyTorch here"
  for n in 2 4; do
    echo "## rondo $n"
    "$bin/nccl_contender" "$library" "$n" "${sizes[@]}" || return $?
    [ -n "$nvidia" ] || continue
    echo "## ${label:-nccl of unknown version by sockets} $n"
    NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_MAX_CTAS=8 \
      "$bin/nccl_contender" "$nvidia" "$n" "${sizes[@]}" || { echo "## failed: NCCL, status $?"; bad=1; }
  done
  return $bad
}
fsdp() {
  python3 -c 'import torch' 2>/dev/null || { echo "no PyTorch"; return 77; }
  python3 -B "$scripts/gpu_fsdp.py" --library "$library" --processes 2 4 --steps 50
}
# sanitize TOOL: the copy kernel, one rank alone, and short reductions, which take the longest.
sanitize() {
  command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer"; return 77; }
  local check test filter
  for check in gpu_kernels_gpu_test='*Copy' gpu_device_threads_gpu_test='*OneRank' gpu_kernels_gpu_test='*Bits*'; do
    test=${check%%=*} filter=${check#*=}
    [ "$filter" != '*Bits*' ] || export GPU_TESTS_QUICK=1
    echo "## $1 $filter"
    compute-sanitizer --tool "$1" --error-exitcode 9 "$bin/$test" --gtest_brief=1 --gtest_filter="$filter" ||
      { echo "## failed: status $? of $1 $filter"; bad=1; }
  done
  return $bad
}
# The reductions only: a profiler repeats a kernel alone, and one that waits for another rank would never end.
profile() {
  command -v ncu >/dev/null || { echo "no profiler (ncu)"; return 77; }
  ncu --clock-control none --kernel-name regex:rondo_ --launch-count 9 --section SpeedOfLight \
    --section MemoryWorkloadAnalysis "$bin/gpu_bandwidth" "$((256 << 20))" 1
}

if [ $list = 0 ]; then
  [ -e "$bundle/about.json" ] || { echo "gpu_check: no programs in $bundle: run scripts/gpu_bundle.sh" >&2; exit 2; }
  command -v python3 >/dev/null || { echo "gpu_check: no python3 here" >&2; exit 2; }
  if [ ! -d "$bundle/programs" ]; then
    rm -rf "$bundle/unpacked"
    mkdir "$bundle/unpacked"
    python3 -m tarfile -e "$bundle/programs.tar.xz" "$bundle/unpacked" 2>/dev/null ||
      tar -xf "$bundle/programs.tar.xz" -C "$bundle/unpacked"
    mv "$bundle/unpacked/programs" "$bundle/programs"
  fi
  mkdir -p "$out"
  run=gpu_$sets
  for ((n = 2; ; ++n)); do
    [ -e "$out/$run.jsonl" ] || break
    run=gpu_${sets}_$n
  done
  log=$run.log lines=$run.jsonl
  : >"$out/$log"
  python3 -B "$scripts/gpu_report.py" start "$sets" $quick "$bundle/about.json" >"$out/$lines"
fi
threads=gpu_device_threads_gpu_test processes=gpu_device_processes_gpu_test

part A info 20 device_info
part A unit 60 test_of gpu_kernels_gpu_test '*'
part A protocols 60 protocols
part A two_processes 40 two_processes
part A sizes 200 sizes
part A bandwidth 40 bandwidth
part B conformance 110 test_of $threads '-*HostMemory'
part B ipc 15 test_of $processes '*Ipc*'
part B processes 85 test_of $processes '-*Ipc*:*AKilledRank:*Host*'
part B killed_rank 15 test_of $processes '*AKilledRank'
part B graphs 15 test_of gpu_graphs_gpu_test '*'
part B queues_8 20 queues 8
part B queues_32 20 queues 32
part B training 60 test_of gpu_training_gpu_test '*'
part B host_memory 30 host_memory
part B hosts 50 test_of $processes '*Hosts'
part C copies 30 bandwidth
part C perf_2 65 perf 2
part C perf_8 85 perf 8
part C perf_4 65 perf 4
part C perf_1 25 perf 1
part C perf_processes 50 perf_processes
part C nccl 110 nccl
part D fsdp 120 fsdp
part D memcheck 110 sanitize memcheck
part D racecheck 90 sanitize racecheck
part D synccheck 70 sanitize synccheck
part D profile 50 profile
exit $failed

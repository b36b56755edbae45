#!/usr/bin/env bash
# Tests and measures the device code on a machine with a GPU: builds, runs every test and benchmark that needs a device,
# and writes one JSON. Installs nothing: CUDA, CMake, ninja and a C++ compiler must be there; PyTorch for the part fsdp.
# For a part that cannot run the JSON has the reason. Exit status 1: a part failed.
#
#   scripts/gpu_check.sh [--deps FOLDER] [--out FILE] [--parts LIST] [--nccl-lib FILE]... [--nccl-tests FOLDER]
#
# Without the part build, build/gpu must hold what that part makes.
#
#   --deps        folder made by scripts/gpu_deps.sh; default: build/gpu_deps, if it exists
#   --out         default: build/gpu_check.json
#   --parts       of build,unit,conformance,processes,graphs,training,sanitize,bandwidth,perf,nccl,nccl_tests,fsdp;
#                 default: all
#   --nccl-lib    NVIDIA's libnccl.so.2 to measure beside rondo's, LABEL=FILE; default: the machine's
#   --nccl-tests  folder with nccl-tests' binaries, run on rondo's library
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

deps=build/gpu_deps out=build/gpu_check.json nccl_tests="" nccl_libs=()
parts=build,unit,conformance,processes,graphs,training,sanitize,bandwidth,perf,nccl,nccl_tests,fsdp
while [ $# -gt 0 ]; do
  case $1 in
    --deps) deps=$2 ;;
    --out) out=$2 ;;
    --parts) parts=$2 ;;
    --nccl-lib) nccl_libs+=("$2") ;;
    --nccl-tests) nccl_tests=$2 ;;
    *) sed -n '2,15p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done
build=build/gpu logs=build/gpu_logs
# The default of 8 hardware queues would put launches of one rank behind waits of another rank of the same process.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32} RONDO_TIMEOUT_S=10 RONDO_INIT_TIMEOUT_S=20
mkdir -p "$build" "$logs"
rm -f "$logs"/*
failed=0

# part NAME LIMIT_S COMMAND...: runs it, and stores its output, status and time.
part() {
  local name=$1 limit=$2 since=$SECONDS status=0
  shift 2
  case ",$parts," in *",$name,"*) ;; *) return 0 ;; esac
  # timeout starts only programs, but most parts are functions, so they run in a shell that defines them.
  timeout -k 5 "$limit" bash -euo pipefail -c "$(declare -f); $(declare -p build deps nccl_tests nccl_libs); \"\$@\"" \
    gpu_check "$@" >"$logs/$name.log" 2>&1 || status=$?
  # GoogleTest's status is 0 if all tests were skipped.
  [ $status != 0 ] || ! grep -qF '[  PASSED  ] 0 tests' "$logs/$name.log" || status=77
  printf '%s %d %d\n' "$name" "$status" $((SECONDS - since)) >>"$logs/parts.txt"
  local said="FAILED ($status)"
  [ $status != 0 ] || said=passed
  [ $status != 77 ] || said=skipped
  printf '== %-12s %s, %d s\n' "$name" "$said" $((SECONDS - since))
  [ $status = 0 ] || [ $status = 77 ] || { failed=1; tail -15 "$logs/$name.log"; }
}

build_all() {
  local root=()
  [ ! -d "$deps" ] || root=(-D "CMAKE_PREFIX_PATH=$(realpath "$deps")/usr" -D "OPENSSL_ROOT_DIR=$(realpath "$deps")/usr"
                            -D OPENSSL_USE_STATIC_LIBS=ON)
  cmake -S . -B "$build" -G Ninja -D CMAKE_BUILD_TYPE=Release -D RONDO_CUDA=ON -D RONDO_BUILD_EXAMPLES=OFF "${root[@]}"
  cmake --build "$build" -j "$(nproc)" --target rondo_cli rondo_nccl gpu_bandwidth nccl_contender tests_gpu
}

test_of() { "$build/tests/$1" --gtest_brief=1 "${@:2}"; }
sanitize() {
  command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer"; return 77; }
  local tool
  for tool in memcheck racecheck synccheck; do
    echo "-- $tool"
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/tests/gpu_kernels_gpu_test" --gtest_brief=1
  done
  compute-sanitizer --tool memcheck --error-exitcode 9 "$build/tests/gpu_device_threads_gpu_test" \
    --gtest_filter='*OneRank'
}
perf() {
  local n collective
  for collective in all_reduce all_gather reduce_scatter; do
    for n in 1 2 4 8; do
      echo "## $collective threads $n"
      "$build/tools/rondo" perf "$collective" --device cuda --threads "$n" -b 8 -e 128M -f 8 -z 0 -n 20 -w 5
    done
    for n in 2 4; do
      echo "## $collective ranks $n"
      "$build/tools/rondo" perf "$collective" --device cuda --ranks "$n" -b 1K -e 64M -f 16 -z 0 -n 5 -w 2
    done
  done
}
# Runs the same program on rondo's library and on NVIDIA's, in turns.
nccl() {
  local labelled n
  library=$(find "$build" -name 'libnccl.so.2' | head -1)
  if [ ${#nccl_libs[@]} = 0 ]; then
    local found
    found=$(ldconfig -p | awk '/libnccl.so.2 / && !seen++ {print $NF}')
    [ -n "$found" ] || found=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' \
      2>/dev/null || true)
    [ -z "$found" ] || nccl_libs=("sockets=$found")
  fi
  for n in 2 4; do  # few sizes: processes take turns on the device, so a call can take milliseconds
    echo "## rondo $n"
    "$build/bench/nccl_contender" "$library" "$n" 1024 1048576 16777216 || return $?
    for labelled in "${nccl_libs[@]}"; do
      echo "## nccl ${labelled%%=*} $n"
      NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_MAX_CTAS=8 \
        "$build/bench/nccl_contender" "${labelled#*=}" "$n" 1024 1048576 16777216 || echo "## failed"
    done
  done
}
run_nccl_tests() {
  [ -n "$nccl_tests" ] || { echo "no folder of nccl-tests was given"; return 77; }
  library=$(find "$build" -name 'libnccl.so.2' | head -1)
  local binary
  for binary in all_reduce_perf all_gather_perf reduce_scatter_perf; do
    LD_PRELOAD=$library "$nccl_tests/$binary" -g 1 -b 8 -e 64M -f 8
  done
}
fsdp() {
  python3 -c 'import torch' 2>/dev/null || { echo "no PyTorch"; return 77; }
  library=$(realpath "$(find "$build" -name 'libnccl.so.2' | head -1)")
  python3 scripts/gpu_fsdp.py --library "$library" --processes 2 4 --steps 50
}

part build 400 build_all
part unit 60 test_of gpu_kernels_gpu_test
part conformance 240 test_of gpu_device_threads_gpu_test
part processes 180 test_of gpu_device_processes_gpu_test
part graphs 90 test_of gpu_graphs_gpu_test
part training 120 test_of gpu_training_gpu_test
part sanitize 120 sanitize
part bandwidth 60 "$build/bench/gpu_bandwidth"
part perf 300 perf
part nccl 180 nccl
part nccl_tests 90 run_nccl_tests
part fsdp 150 fsdp
python3 scripts/gpu_check_report.py "$logs" "$out"
exit $failed

#!/usr/bin/env bash
# For machines with GPUs: runs nccl-tests on NVIDIA's NCCL and on rondo's libnccl.so.2, prints one table and draws one
# plot of both. FOLDER has nccl-tests' binaries (all_reduce_perf ...) or its source, which is then built. The output of
# each run stays in build/nccl_tests. rondo's library uses device buffers if the CUDA driver has a device
# (docs/nccl.md); this has not been run on a real device yet (docs/gpu-status.md).
#   scripts/nccl_tests.sh FOLDER [-l LIBNCCL] [-t TESTS] [-- FLAGS]
#     -l LIBNCCL  rondo's library; default: build it (release)
#     -t TESTS    separated by blanks; default: "all_reduce all_gather reduce_scatter broadcast alltoall sendrecv"
#     FLAGS       nccl-tests' flags; default: "-b 8 -e 128M -f 2 -g 2"
set -euo pipefail
source_top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(realpath "${1:?usage: nccl_tests.sh FOLDER [-l LIBNCCL] [-t TESTS] [-- FLAGS]}")
shift
cd "$source_top"
source scripts/lib.sh

library= tests="all_reduce all_gather reduce_scatter broadcast alltoall sendrecv"
while getopts l:t: option; do
  case $option in
    l) library=$OPTARG ;;
    t) tests=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
flags=("$@")
[ ${#flags[@]} -gt 0 ] || flags=(-b 8 -e 128M -f 2 -g 2)

need_packages python3-matplotlib
if [ -z "$library" ]; then
  need_packages "${BUILD_PACKAGES[@]}"
  configure release
  build build/release rondo_nccl
  library=build/release/src/rondo-nccl/libnccl.so.2
fi
library=$(realpath "$library")

binaries=$folder
if [ -f "$folder/Makefile" ]; then
  [ -x "$folder/build/all_reduce_perf" ] || make -C "$folder" -j "$(nproc)"
  binaries=$folder/build
fi

out=build/nccl_tests
mkdir -p "$out"
rm -f "$out"/*.txt
for name in $tests; do
  binary=$binaries/${name}_perf
  [ -x "$binary" ] || { echo "$binary is not there" >&2; exit 1; }
  echo "== $name on NVIDIA's NCCL"
  "$binary" "${flags[@]}" | tee "$out/$name.nvidia.txt"
  echo "== $name on rondo"
  LD_PRELOAD=$library "$binary" "${flags[@]}" | tee "$out/$name.rondo.txt"
done
python3 -B scripts/nccl_tests_report.py --plot "$out/nccl_tests.png" "$out"/*.txt

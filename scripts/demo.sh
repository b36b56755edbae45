#!/usr/bin/env bash
# From a fresh clone on Debian 12 to a first look at rondo, in under five minutes on two cores: installs what is
# missing, builds the command line (no tests, no benchmarks), measures the three collectives among four processes with
# every result checked, and prints the three-rank ring step by step.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

need_packages "${BUILD_PACKAGES[@]}"
echo "building the command line ..."
configure release -B build/demo -D RONDO_BUILD_TESTS=OFF -D RONDO_BUILD_BENCH=OFF -D RONDO_SHARED_FMT=ON
build build/demo rondo_cli
rondo=build/demo/tools/rondo

# Four processes on this machine; -c 1: the values are compared, and a wrong one makes the command fail.
for collective in all_reduce reduce_scatter all_gather; do
  printf '\n== %s, 4 processes, %s cores, shared memory\n' "$collective" "$(nproc)"
  "$rondo" perf "$collective" --ranks 4 -b 8 -e 4M -f 8 -n 10 -w 2 -c 1
done

printf '\n== the ring, 3 ranks, 6 elements\n'
"$rondo" explain all_reduce --algo ring --ranks 3 --elements 6

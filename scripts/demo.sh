#!/usr/bin/env bash
# A first look at rondo from a fresh clone on Debian 12, in under five minutes on two cores. Installs missing packages,
# builds the command line and an example (no tests, no benchmarks), measures three collectives among four processes with
# every result checked, prints the three-rank ring step by step, and trains a character transformer in plain C++, fully
# sharded among four processes, with a timeline of its communication.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

need_packages "${BUILD_PACKAGES[@]}"
echo "building the command line and a model ..."
configure release -B build/demo -D RONDO_BUILD_TESTS=OFF -D RONDO_BUILD_BENCH=OFF -D RONDO_SHARED_FMT=ON \
  -D RONDO_CUDA=OFF
build build/demo rondo_cli example_04_plain_model
rondo=build/demo/tools/rondo

# Four processes on this machine. -c 1 compares the values; a wrong one makes the command fail.
for collective in all_reduce reduce_scatter all_gather; do
  printf '\n== %s, 4 processes, %s cores, shared memory\n' "$collective" "$(nproc)"
  "$rondo" perf "$collective" --ranks 4 -b 8 -e 4M -f 8 -n 10 -w 2 -c 1
done

printf '\n== the ring, 3 ranks, 6 elements\n'
"$rondo" explain all_reduce --algo ring --ranks 3 --elements 6

printf '\n== a character transformer, fully sharded among 4 processes (about a minute)\n'
rm -rf build/demo/trace
build/demo/examples/example_04_plain_model --ranks 4 --steps 800 --plot build/demo/loss.svg --trace build/demo/trace
"$rondo" trace export build/demo/trace -o build/demo/timeline.json
printf '\n%s\n%s\n' "the loss of all steps:  build/demo/loss.svg" \
  "the timeline:           build/demo/timeline.json, for https://ui.perfetto.dev"

#!/usr/bin/env bash
# Builds a release with its tests and runs the checks of a commit: the unit tests and the tests with several processes,
# the dependency rule, and the proof of every algorithm for every number of ranks up to 64. Installs missing packages
# (Debian 12).
#   scripts/test.sh            all of it
#   scripts/test.sh --torch    against PyPI's torch (installs 5 GB below build/): the adapter for libtorch with its
#                              tests, examples and installed package, the backend of torch.distributed in a wheel, and
#                              the binding of torch to rondo's libnccl.so.2
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

export RONDO_PROBE=off  # plans do not depend on the machine
need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
if [ "${1:-}" = --torch ]; then
  torch_venv
  echo "== build of the adapter (in the release build)"
  configure release -D RONDO_BUILD_BENCH=OFF -D RONDO_SHARED_FMT=ON -D RONDO_TORCH=ON \
    -D CMAKE_PREFIX_PATH="$("$TORCH_PYTHON" -c 'import torch; print(torch.utils.cmake_prefix_path)')"
  build build/release rondo_nccl rondo_cli tests_torch example_03_char_transformer \
    example_07_wrapping fsdp_tests
  echo "== tests"
  run_tests --preset release -L '^torch$'
  echo "== checkpoints, read by PyTorch and by rondo"
  "$TORCH_PYTHON" -B tests/fsdp/torch_checkpoint.py --build build/release
  echo "== libnccl.so.2 under torch"
  scripts/torch_preload_check.sh build/release/src/rondo-nccl/libnccl.so.2
  echo "== wheel of the backend of torch.distributed"
  python_package
  for test in tests/python/*_test.py; do
    echo "== $test"
    build/python/venv/bin/python -B "$test"
  done
  exit
fi
echo "== dependency rule"
python3 -B scripts/check_dependencies.py
echo "== build (release, with tests)"
configure release -D RONDO_BUILD_BENCH=OFF -D RONDO_SHARED_FMT=ON -D RONDO_TORCH=OFF -D RONDO_CUDA_QUICK=ON
build build/release
echo "== tests"
run_tests --preset release -L '^(unit|mp)$' -LE '^slow$'
echo "== proof of every algorithm, 1 to 64 ranks"
build/release/tools/rondo check --max-ranks 64

#!/usr/bin/env bash
# Builds a release with its tests and runs what must hold before a commit: the unit tests and the tests with several
# processes, the dependency rule, and the proof of every algorithm for every number of ranks up to 64. Installs what is
# missing (Debian 12).
#   scripts/test.sh            all of it
#   scripts/test.sh --torch    that PyPI's torch binds to rondo's libnccl.so.2 (installs 5 GB below build/)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

if [ "${1:-}" = --torch ]; then exec scripts/torch_preload_check.sh; fi

need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
echo "== dependency rule"
python3 -B scripts/check_dependencies.py
echo "== build (release, with tests)"
configure release -D RONDO_BUILD_BENCH=OFF
build build/release
echo "== tests"
ctest --preset release -L '^(unit|mp)$' -LE '^slow$'
echo "== proof of every algorithm, 1 to 64 ranks"
build/release/tools/rondo check --max-ranks 64

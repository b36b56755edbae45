#!/usr/bin/env bash
# Runs at least 500,000 random operations and verifies every result: on random communicators (split trees, several
# threads a rank), with ranks as threads and as processes, or with ThreadSanitizer as threads. Takes a while. The usual
# tests run a small share of it.
#
#   scripts/stress.sh [release|tsan] [factor]      factor: multiple of the usual tests (default 12)
#   scripts/stress.sh --kill [number] [first]      random kills of ranks instead (default 3000, from 1 on); a kill's
#                                                  number replays it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

if [ "${1:-}" = --kill ]; then
  need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
  configure release -D RONDO_BUILD_BENCH=OFF
  build build/release faults_mp_tests
  export RONDO_TEST_KILLS=${2:-3000} RONDO_TEST_KILL_SEED=${3:-1}
  exec build/release/tests/faults_mp_tests --gtest_filter='Kills.*'
fi
preset=${1:-release} factor=${2:-12}
case $preset in
  release) programs=(api_tests api_mp_tests) ;;
  tsan) programs=(api_tests) ;;
  *) echo "stress.sh [release|tsan] [factor], or --kill [number] [first]" >&2; exit 2 ;;
esac
need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
[ "$preset" = release ] || need_packages "${CLANG_PACKAGES[@]}"
configure "$preset" -D RONDO_BUILD_BENCH=OFF
build "build/$preset" "${programs[@]}"
total=0
for program in "${programs[@]}"; do
  log=$(RONDO_TEST_STRESS_FACTOR=$factor "build/$preset/tests/$program" --gtest_filter='*/Stress.*' 2>&1) ||
    { printf '%s\n' "$log" | tail -40 >&2; exit 1; }
  count=$(printf '%s\n' "$log" | awk '/ operations, 0 wrong$/ { sum += $(NF - 3) } END { print sum + 0 }')
  echo "$preset, $program: $count operations, 0 wrong"
  total=$((total + count))
done
echo "total: $total operations, 0 wrong"

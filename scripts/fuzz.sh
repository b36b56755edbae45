#!/usr/bin/env bash
# Builds the libFuzzer targets of tests/fuzz (clang, AddressSanitizer, UndefinedBehaviorSanitizer) and runs each for a
# number of seconds: scripts/fuzz.sh [seconds, default 60] [name ...]. Findings are in build/fuzz/found. The corpus is
# in build/fuzz/corpus and starts with tests/fuzz/seeds. Exit status 1: a target found an error.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for source in tests/fuzz/*_fuzz.cc; do
    name=$(basename "$source" _fuzz.cc)
    names+=("$name")
  done
fi
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz --parallel "$(nproc)"
mkdir -p build/fuzz/found
failed=0
for name in "${names[@]}"; do
  corpus=build/fuzz/corpus/$name
  mkdir -p "$corpus"
  echo "fuzz $name for $seconds s"
  log=build/fuzz/$name.log
  build/fuzz/tests/fuzz/fuzz_"$name" "$corpus" tests/fuzz/seeds/"$name" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix=build/fuzz/found/"$name"- >"$log" 2>&1 || {
    failed=1
    tail -n 40 "$log"
  }
  grep -E "number_of_executed_units|DONE" "$log" || true
done
exit $failed

#!/usr/bin/env bash
# Shows that the protocol's tests can fail: builds it with its release store weakened to relaxed, and requires a data
# race of ThreadSanitizer in protocol_release_store_test. Exit status 0: the mutation was caught.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

test=protocol_release_store_test
configure mutation
build build/mutation "$test"
status=0
log=$(ctest --preset mutation 2>&1) || status=$?
if [ $status = 0 ]; then
  echo "mutation survived: $test passed with a relaxed release store" >&2
  exit 1
fi
if ! grep -q 'WARNING: ThreadSanitizer: data race' <<<"$log"; then
  printf '%s\n%s\n' "$log" "$test failed, but not with a data race, so the release store is not tested" >&2
  exit 1
fi
echo "mutation caught: $test fails with a data race when the release store is relaxed"

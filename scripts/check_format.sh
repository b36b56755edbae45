#!/usr/bin/env bash
# Checks the format of changes: clang-format on changed lines of C and C++ files, whitespace errors and lines over 120
# columns in all changed text. Changes nothing; `git clang-format` (same arguments) applies the format.
#   scripts/check_format.sh            the index against HEAD, as in the commit hook
#   scripts/check_format.sh COMMIT     everything since COMMIT
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"

range=(--cached)
[ $# -eq 0 ] || range=("$1")
failed=0

git diff --check "${range[@]}" || failed=1

long=$(git diff -U0 "${range[@]}" -- '*.h' '*.cc' '*.c' '*.cu' '*.cuh' '*.py' '*.sh' '*.cmake' |
  awk '/^\+\+\+ /{file=substr($2, 3)} /^\+/ && !/^\+\+\+ / && length($0) > 121 {print file ": " length($0) - 1 " columns"}')
if [ -n "$long" ]; then
  printf 'lines over 120 columns:\n%s\n' "$long"
  failed=1
fi

if command -v git-clang-format >/dev/null; then
  if [ $# -eq 0 ]; then out=$(git clang-format --diff --staged --extensions h,cc,c,cu,cuh || true)
  else out=$(git clang-format --diff --extensions h,cc,c,cu,cuh "$1" || true); fi
  case "$out" in
    '' | 'no modified files to format'* | *'did not modify any files'*) ;;
    *) printf '%s\n' "$out"; failed=1 ;;
  esac
else
  echo "git-clang-format is not installed (Debian: clang-format): format not checked"
fi
exit $failed

#!/usr/bin/env bash
# Fetches NVIDIA's NCCL from PyPI for the tests of libnccl.so.2's interface: header and library of each version, below
# FOLDER/VERSION. rondo contains nothing of it. Versions that are there are not fetched again.
#   scripts/fetch_nccl.sh FOLDER VERSION...
# Exit status: 0 all there, 77 the network or PyPI could not be reached (the tests are skipped with a reason).
set -euo pipefail

folder=${1:?usage: fetch_nccl.sh FOLDER VERSION...}
shift
mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9

for version in "$@"; do
  to=$folder/$version
  [ ! -f "$to/complete" ] || continue
  rm -rf "$to"
  mkdir -p "$to"
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$to" \
       "nvidia-nccl-cu13==$version" >"$to/log" 2>&1; then
    echo "NCCL $version cannot be fetched from PyPI: $(tail -1 "$to/log")"
    exit 77
  fi
  python3 -m zipfile -e "$to"/*.whl "$to/wheel"
  mv "$to/wheel/nvidia/nccl/include" "$to/wheel/nvidia/nccl/lib" "$to/"
  rm -rf "$to/wheel" "$to"/*.whl
  touch "$to/complete"
  echo "NCCL $version: $to"
done

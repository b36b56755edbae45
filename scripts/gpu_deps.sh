#!/usr/bin/env bash
# Downloads and unpacks Debian's development packages into a folder, to build rondo on a machine with a GPU and without
# a package registry. scripts/gpu_check.sh uses the folder.
#
#   scripts/gpu_deps.sh [FOLDER]          default: build/gpu_deps; about 25 MB
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(realpath -m "${1:-build/gpu_deps}")
packages=(libfmt-dev libfmt9 libcli11-dev nlohmann-json3-dev libgtest-dev googletest libssl-dev)
rm -rf "$folder"
mkdir -p "$folder/debs"
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
(cd "$folder/debs" && { apt-get download -qq "${packages[@]}" 2>/dev/null ||
  { "${as_root[@]}" apt-get update -qq && apt-get download -qq "${packages[@]}"; }; })
for deb in "$folder"/debs/*.deb; do dpkg -x "$deb" "$folder"; done
# Removes unneeded files, and links to missing shared libraries, so that the static ones are used.
rm -rf "$folder/debs" "$folder/usr/share/doc" "$folder/usr/share/man" "$folder/usr/lib"/*/libssl.so \
  "$folder/usr/lib"/*/libcrypto.so
du -sh "$folder" | cut -f1

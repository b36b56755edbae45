#!/usr/bin/env bash
# Gathers what a machine with a GPU and without a package registry needs to build rondo: Debian's development packages,
# unpacked side by side. scripts/gpu_check.sh takes the folder.
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
# What no build needs, and links to shared libraries that are not there: the static ones are taken.
rm -rf "$folder/debs" "$folder/usr/share/doc" "$folder/usr/share/man" "$folder/usr/lib"/*/libssl.so \
  "$folder/usr/lib"/*/libcrypto.so
du -sh "$folder" | cut -f1

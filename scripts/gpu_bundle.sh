#!/usr/bin/env bash
# Makes a folder with all that scripts/gpu_check.sh runs, for a machine that has a GPU but no compiler, packages or
# network: programs that need only glibc 2.36 or later, and the driver. They are packed (12 MB, unpacked 100 MB); the
# folder's scripts/gpu_check.sh unpacks them. Builds with nvcc, which takes some minutes. Installs missing packages.
#
#   scripts/gpu_bundle.sh [--archs LIST] [--build FOLDER] [--out FOLDER]
#   scripts/gpu_bundle.sh --check FOLDER     only checks the programs in a folder
#
#   --archs   architectures, with semicolons; default: 90
#   --build   build folder; default: build/gpu
#   --out     default: build/gpu_bundle
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

archs=90 build=build/gpu out=build/gpu_bundle check=""
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || { sed -n '2,11p' "$0" >&2; exit 2; }
  case $1 in
    --archs) archs=$2 ;;
    --build) build=$2 ;;
    --out) out=$2 ;;
    --check) check=$2 ;;
    *) sed -n '2,11p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done

GLIBC='^(libc\.so\.6|libm\.so\.6|libdl\.so\.2|libpthread\.so\.0|librt\.so\.1|ld-linux-(x86-64|aarch64)\.so\.[12])$'
NEWEST_GLIBC=2.36
MOST_MIB=55  # with this repository, less than 64 MiB travel to a machine

# check_programs FOLDER: names libraries that glibc does not have, search paths and symbols of a newer glibc.
check_programs() {
  local file dynamic name newest wrong=0 programs=0
  while IFS= read -r -d '' file; do
    dynamic=$(readelf -dW "$file" 2>/dev/null) && [ -n "$dynamic" ] || continue
    programs=$((programs + 1))
    for name in $(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic"); do
      [[ $name =~ $GLIBC ]] || { echo "$file needs $name, which a machine may lack: link it statically" >&2; wrong=1; }
    done
    if grep -qE '\((RPATH|RUNPATH)\)' <<<"$dynamic"; then
      echo "$file has a search path for libraries, of this machine" >&2
      wrong=1
    fi
    newest=$(readelf -VW "$file" | grep -oE 'GLIBC_[0-9.]+' | cut -c 7- | sort -uV | tail -1)
    if [ "$(printf '%s\n' "$newest" $NEWEST_GLIBC | sort -V | tail -1)" != $NEWEST_GLIBC ]; then
      echo "$file needs glibc $newest, newer than $NEWEST_GLIBC" >&2
      wrong=1
    fi
  done < <(find "$1" -type f -print0)
  [ $programs -gt 0 ] || { echo "$1 has no programs" >&2; wrong=1; }
  [ $wrong = 0 ] || return 1
  echo "$1: $programs programs"
}

[ -z "$check" ] || { check_programs "$check"; exit; }

need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
static="-static-libstdc++ -static-libgcc"
cmake -S . -B "$build" -G Ninja -D CMAKE_BUILD_TYPE=Release -D RONDO_CUDA=ON -D "RONDO_CUDA_ARCHS=$archs" \
  -D RONDO_BUILD_EXAMPLES=OFF -D RONDO_HWLOC=OFF -D RONDO_UNITY_BUILD=ON -D OPENSSL_USE_STATIC_LIBS=ON \
  -D CMAKE_SKIP_RPATH=ON -D "CMAKE_EXE_LINKER_FLAGS=$static" -D "CMAKE_SHARED_LINKER_FLAGS=$static" \
  -D "CMAKE_MODULE_LINKER_FLAGS=$static" >/dev/null
cmake --build "$build" -j "$(nproc)" --target rondo_cli rondo_nccl gpu_bandwidth nccl_contender tests_gpu
python3 -B tests/scripts/cuda_resources_test.py "$build/cuda" ON "" >"$build/cuda/resources.txt" ||
  { cat "$build/cuda/resources.txt" >&2; exit 1; }

rm -rf "$out"
mkdir -p "$out/programs/bin" "$out/programs/lib" "$out/scripts"
install -s "$build"/tools/rondo "$build"/bench/{gpu_bandwidth,nccl_contender} "$build"/tests/gpu_*_gpu_test \
  "$out/programs/bin"
install -s "$build/src/rondo-nccl/libnccl.so.2" "$out/programs/lib"
check_programs "$out/programs"
# Most of each program is equal to the others': the dictionary is as large as all of them.
tar -c -C "$out" programs | xz --lzma2=preset=2,dict=128MiB >"$out/programs.tar.xz"
rm -rf "$out/programs"
cp scripts/gpu_check.sh scripts/gpu_report.py scripts/gpu_fsdp.py "$out/scripts"
commit=$(git rev-parse HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain 2>/dev/null)" ] || commit+=" with changes"
printf '{"commit": "%s", "archs": "%s"}\n' "$commit" "$archs" >"$out/about.json"
mib=$(du -s --apparent-size -B 1M "$out" | cut -f1)
[ "$mib" -le $MOST_MIB ] || { echo "$out has $mib MiB, more than $MOST_MIB" >&2; exit 1; }
echo "$out: $mib MiB"

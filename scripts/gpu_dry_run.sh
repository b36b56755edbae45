#!/usr/bin/env bash
# Runs all sets of scripts/gpu_check.sh, with small sizes, on this machine's CPUs: the bundle's own programs on the fake
# driver. Root is an empty folder with the bundle, /proc, a few devices, glibc, bash, coreutils and Python, without a
# network. Shows that the bundle is complete, that the sets end within their limits and that no part fails. Does not
# show that a device runs the kernels: the fake driver finds kernels by name and runs them as host functions. The parts
# that need PyTorch, compute-sanitizer, ncu or network namespaces are skipped. Needs root. Takes about 3 minutes.
#
#   scripts/gpu_dry_run.sh [--build FOLDER] [--bundle FOLDER] [--out FOLDER]     defaults: as scripts/gpu_bundle.sh,
#                                                                             build/gpu_dry_run
set -euo pipefail
shopt -s extglob
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=build/gpu bundle=build/gpu_bundle out=build/gpu_dry_run
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || { sed -n '2,11p' "$0" >&2; exit 2; }
  case $1 in
    --build) build=$2 ;;
    --bundle) bundle=$2 ;;
    --out) out=$2 ;;
    *) sed -n '2,11p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done
[ "$(id -u)" = 0 ] || { echo "gpu_dry_run: needs root, to change the root folder" >&2; exit 77; }
cmake --build "$build" -j "$(nproc)" --target fake_libcuda_kernels
scripts/gpu_bundle.sh --check "$build/tests/fake_libcuda_kernels"

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
# with_libraries PROGRAM...: copies them, and the libraries that they need, to the same places below the root.
with_libraries() {
  local file
  for file in "$@"; do
    cp --parents -L "$file" "$root"
    for library in $(ldd "$file" 2>/dev/null | grep -oE '/[^ ]+'); do cp --parents -L "$library" "$root"; done
  done
}
machine=$(uname -m)-linux-gnu
mkdir -p "$root"/{proc,dev/shm,tmp,bundle,out,usr/bin,usr/lib64,"usr/lib/$machine"}
for folder in bin lib lib64; do ln -s usr/$folder "$root/$folder"; done
for program in bash cat cut dirname env mkdir mv realpath rm sed sleep stat stdbuf timeout; do
  with_libraries "$(type -P $program)"
done
cp -r --parents /usr/libexec/coreutils "$root"
python=$(/usr/bin/python3 -c 'import sys; print(sys.prefix + "/lib/python%d.%d" % sys.version_info[:2])')
with_libraries /usr/bin/python3 "$python"/lib-dynload/!(_ssl|_hashlib).*.so  # these need libcrypto
mkdir -p "$root$python"
(cd "$python" && find . -name '*.py' -not -path './test/*' -not -path './dist-packages/*' -print0 |
  xargs -0 cp --parents -t "$root$python")
cp -r "$bundle"/. "$root/bundle"
cp "$build/tests/fake_libcuda_kernels/libcuda.so.1" "$root/usr/lib/$machine"
touch "$root"/dev/{null,zero,urandom,nvidiactl}  # programs take nvidiactl as the sign of a GPU
ln -s /proc/self/fd "$root/dev/fd"

# in_root COMMAND...: runs it in namespaces of its own.
in_root() {
  unshare --mount --net --pid --fork --kill-child bash -euo pipefail -c '
    root=$1
    shift
    for device in null zero urandom; do mount --bind /dev/$device "$root/dev/$device"; done
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/dev/shm"
    ip link set lo up
    exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp "$@"' in_root "$root" "$@"
}
excess=$(find "$root" -name 'libstdc++*' -o -name 'libgcc_s*' -o -name 'libcrypto*' -o -name 'libfmt*')
[ -z "$excess" ] || { echo "gpu_dry_run: the root has libraries that hide what the bundle lacks: $excess" >&2; exit 1; }

status=0
for set in A B C D; do
  since=$SECONDS
  in_root /bundle/scripts/gpu_check.sh $set --quick --out /out || status=1
  echo "-- set $set: $((SECONDS - since)) s"
  [ $((SECONDS - since)) -le 480 ] || { echo "gpu_dry_run: set $set took more than 8 minutes" >&2; status=1; }
done
mkdir -p "$out"
cp "$root"/out/* "$out"
if grep '"status": "skipped"' "$out"/gpu_[ABC].jsonl | grep -v '"part": "hosts"'; then
  echo "gpu_dry_run: only parts of D, and hosts, may be skipped here" >&2
  status=1
fi
exit $status

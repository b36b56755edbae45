# shellcheck shell=bash disable=SC2034
# Shared functions; source it. Debian packages by name, and a build with or without ccache.

# Packages for the library and the command line, for the tests, and for the sanitizer builds.
BUILD_PACKAGES=(cmake ninja-build g++ pkg-config libfmt-dev libssl-dev libhwloc-dev libucx-dev libcli11-dev nlohmann-json3-dev)
TEST_PACKAGES=(libgtest-dev python3 python3-pip libucx0 iproute2 util-linux openssl openmpi-bin libopenmpi-dev)
CLANG_PACKAGES=(clang lld libclang-rt-14-dev)

# need_packages NAME...: installs missing packages. Needs no network if all are there.
need_packages() {
  if ! command -v dpkg-query >/dev/null; then
    echo "no dpkg here; needed Debian packages: $*" >&2
    return 0
  fi
  local missing=() name
  for name in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$name" 2>/dev/null)" = "ii " ] || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "installing: ${missing[*]}"
  local as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends)
  "${install[@]}" "${missing[@]}" >/dev/null 2>&1 ||
    { "${as_root[@]}" apt-get update -qq && "${install[@]}" "${missing[@]}" >/dev/null; }
}

# configure PRESET [ARGUMENT...]: cmake --preset, with ccache if it is installed, else as a unity build. Quiet unless it
# fails.
configure() {
  local preset=$1 launcher=(-D RONDO_UNITY_BUILD=ON) log
  shift
  if command -v ccache >/dev/null; then
    launcher=(-D CMAKE_CXX_COMPILER_LAUNCHER=ccache -D CMAKE_C_COMPILER_LAUNCHER=ccache
              -D CMAKE_DISABLE_PRECOMPILE_HEADERS=ON)
  fi
  log=$(cmake --preset "$preset" "${launcher[@]}" "$@" 2>&1) || { printf '%s\n' "$log" >&2; return 1; }
}

# build FOLDER [TARGET...]: quiet unless it fails.
build() {
  local folder=$1 targets=() log
  shift
  [ $# -eq 0 ] || targets=(--target "$@")
  log=$(cmake --build "$folder" -j "$(nproc)" "${targets[@]}" 2>&1) || { printf '%s\n' "$log" | tail -60 >&2; return 1; }
}

# run_tests ARGUMENT...: ctest with these arguments, started by the command TEST_PREFIX. Tests that an assertion of UCX
# 1.13 ends run a second time. If it ends them again, they are reported and do not count as failed
# (scripts/ended_by_ucx.py).
TEST_PREFIX=()
run_tests() {
  local results=$PWD/build/ctest.xml names
  "${TEST_PREFIX[@]}" ctest "$@" --output-junit "$results" && return 0
  names=$(python3 -B scripts/ended_by_ucx.py "$results") || return 1
  printf 'ended by an assertion of UCX (openucx/ucx#8175), now run again:\n%s\n' "$names"
  "${TEST_PREFIX[@]}" ctest "$@" --rerun-failed --output-junit "$results" && return 0
  names=$(python3 -B scripts/ended_by_ucx.py "$results") || return 1
  printf 'ended by an assertion of UCX (openucx/ucx#8175) twice, not counted as failed:\n%s\n' "$names"
}

# Installs PyPI's torch for the tests against it: 5.4 GB below build/, once.
TORCH_VERSION=2.15.0
TORCH_VENV=build/torch/venv
TORCH_PYTHON=$TORCH_VENV/bin/python
torch_venv() {
  need_packages python3-venv
  local has='from importlib.metadata import version as v
for name in ("numpy", "safetensors", "scikit-build-core"): v(name)
print(v("torch"))'
  [ "$("$TORCH_PYTHON" -c "$has" 2>/dev/null)" != "$TORCH_VERSION" ] || return 0
  rm -rf "$TORCH_VENV"
  python3 -m venv "$TORCH_VENV"
  "$TORCH_VENV/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    "torch==$TORCH_VERSION" numpy safetensors scikit-build-core
}

# Makes the wheel of python/ on the release build, and installs it in build/python/venv, which uses the torch of
# torch_venv.
python_package() {
  local folder=$PWD/build/python
  rm -rf "$folder"
  cmake --install build/release --prefix "$folder/rondo" >/dev/null
  "$TORCH_PYTHON" -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
    --wheel-dir "$folder" -C cmake.define.rondo_ROOT="$folder/rondo" ./python
  python3 -m venv "$folder/venv"
  "$TORCH_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$(echo "$folder"/venv/lib/python*/site-packages)/torch.pth"
  "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "$folder"/rondo-*.whl
}

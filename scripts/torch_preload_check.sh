#!/usr/bin/env bash
# Imports PyPI's torch with rondo's libnccl.so.2 preloaded and every symbol bound at once, and checks in the dynamic
# linker's log that each nccl symbol was bound to rondo's library. Needs no GPU. Not part of the tests, because the
# first run installs about 5 GB below build/torch. `scripts/test.sh --torch` runs it.
#   scripts/torch_preload_check.sh [LIBNCCL]     the library; default: build it (release)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

work=build/torch/bindings
library=${1:-}
if [ -z "$library" ]; then
  need_packages "${BUILD_PACKAGES[@]}"
  configure release
  build build/release rondo_nccl
  library=build/release/src/rondo-nccl/libnccl.so.2
fi
library=$(realpath "$library")

torch_venv
mkdir -p "$work"
rm -f "$work"/log.*
LD_PRELOAD=$library LD_BIND_NOW=1 LD_DEBUG=bindings LD_DEBUG_OUTPUT=$work/log \
  "$TORCH_PYTHON" - <<'EOF'
import torch

print(f"torch {torch.__version__}, compiled for NCCL {torch.cuda.nccl.version()}")
EOF
python3 -B scripts/check_bindings.py --library "$library" "$work"/log.*

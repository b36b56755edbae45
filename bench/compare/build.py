"""Builds the measured programs in release mode, in their own folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def build(build_dir: Path, *targets: str) -> None:
    if not (build_dir / "CMakeCache.txt").exists():
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DRONDO_UNITY_BUILD=ON"]
        options += [f"-DRONDO_{part}=OFF" for part in ("BUILD_TESTS", "BUILD_TOOLS", "CUDA")]  # none of it is measured
        argv = ["cmake", "-S", str(ROOT), "-B", str(build_dir), *generator, *options]
        subprocess.run(argv, check=True, stdout=sys.stderr)
    argv = ["cmake", "--build", str(build_dir), "--target", *targets, "-j", str(os.cpu_count() or 1)]
    subprocess.run(argv, check=True, stdout=sys.stderr)

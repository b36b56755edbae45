"""The machine and the software of a run, without host or user names."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any


def _output(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _cpu_name() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _caches() -> dict[str, str]:
    caches = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind = _read(str(index / "level")), _read(str(index / "type"))
        caches[f"L{level} {kind.lower()}"] = _read(str(index / "size"))
    return caches


def describe(root: Path) -> dict[str, Any]:
    flags = _read("/proc/cpuinfo").split()
    memory_kib = next(
        (int(x.split()[1]) for x in _read("/proc/meminfo").splitlines() if x.startswith("MemTotal")), 0
    )
    return {
        "cpu": _cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "virtual": "hypervisor" in flags,
        "isa": [name for name in ("avx2", "avx512f") if name in flags],
        "caches": _caches(),
        "memory_gib": round(memory_kib / (1 << 20), 1),
        "kernel": platform.release().split("-")[0],
        "transparent_hugepages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "compiler": _output("gcc", "--version").splitlines()[:1],
        "python": platform.python_version(),
        "packages": {
            name: _output("dpkg-query", "-W", "-f", "${Version}", name)
            for name in ("libopenmpi3", "libmpich12", "libucx0")
        },
        "rondo_commit": _output("git", "-C", str(root), "rev-parse", "--short", "HEAD"),
        "rondo_changed": bool(
            _output("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no", "src", "include")
        ),
    }

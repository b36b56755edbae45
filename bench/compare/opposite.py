"""The bandwidth of UCX itself between two hosts: two opposite ucx_perftest runs at once; the slower counts."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from .hosts import Hosts

SECONDS = 1.0  # about how long a run takes


def _start(hosts: Hosts, test: str, message_bytes: int, messages: int) -> list[tuple[subprocess.Popen[str], ...]]:
    """Client and server of both directions. Both servers listen before the first client starts, so that the runs
    overlap."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}

    def argv(server: int) -> list[str]:
        common = ["ucx_perftest", "-t", test, "-s", str(message_bytes), "-n", str(messages), "-w", "20"]
        return [*common, "-p", str(13400 + server), "-f", "-v"]

    servers = [subprocess.Popen(hosts.inside(s, *argv(s)), **pipes) for s in (0, 1)]
    time.sleep(0.3)  # the servers do not report when they listen
    clients = [subprocess.Popen(hosts.inside(1 - s, *argv(s), hosts.addresses[s]), **pipes) for s in (0, 1)]
    return list(zip(clients, servers, strict=True))


def _megabytes_per_s(csv: str) -> float | None:
    """The overall bandwidth, in MiB/s: the second to last bandwidth column of the last line of figures."""
    for line in reversed(csv.strip().splitlines()):
        fields = line.split(",")
        if len(fields) >= 8 and fields[0].strip().isdigit():
            return float(fields[5])
    return None


def opposite_us(hosts: Hosts, test: str, message_bytes: int, limit_s: float = 60) -> float | None:
    """Microseconds a message of the slower of two opposite runs; None if one failed."""
    messages = max(30, int(SECONDS * 3e9 / message_bytes))
    runs = _start(hosts, test, message_bytes, messages)
    rates = []
    for processes in runs:
        try:
            rates.append(_megabytes_per_s(processes[0].communicate(timeout=limit_s)[0]))
        except subprocess.TimeoutExpired:
            rates.append(None)
    for process in (p for processes in runs for p in processes):
        process.kill()
        process.wait()
    known = [r for r in rates if r]
    return message_bytes / (min(known) * (1 << 20)) * 1e6 if len(known) == 2 else None


def addition_us(program_dir: Path, num_bytes: int) -> float | None:
    """Microseconds of adding one buffer of `num_bytes` to another on one core, with the best SIMD level."""
    size = 262144 if num_bytes <= (1 << 20) else 67108864  # within L2, or beyond the caches
    argv = [str(program_dir / "kernels_bench"), f"--benchmark_filter=reduce/.*/float/sum/2x1/{size}$"]
    argv += ["--benchmark_format=json", "--benchmark_min_time=0.05"]
    try:
        out = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rates = [b["bytes_per_second"] for b in json.loads(out)["benchmarks"] if "bytes_per_second" in b]
    return 3 * num_bytes / max(rates) * 1e6 if rates else None

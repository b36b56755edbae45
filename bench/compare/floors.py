"""The limits of the machine: hand-overs between two processes, and the hand-written reference if there is one.

The reference (bounds.c) is no part of this repository; its sections `private` (two processes, staged), `bound` (both
buffers mapped into both) and `pingpong` are run as they are and their lines parsed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
SIZE = r"(\d+) (B|KiB|MiB|GiB)"
PRIVATE_LINE = re.compile(
    rf"^(shm one-shot|shm split|CMA split)\s+chunk\s+{SIZE}\s+x(\d+)\s+{SIZE}\s+([\d.]+) us"
)
BOUND_LINE = re.compile(rf"^(inplace fused nt|inplace fused)\s+{SIZE}\s+([\d.]+) us")
PINGPONG_LINE = re.compile(r"^two lines, no pause\s+med ([\d.]+) ns")
PLACEMENT = re.compile(r"\[placement (\w+):")


@dataclass
class Reference:
    """One run of bounds.c: microseconds by bytes."""

    private_us: dict[int, float] = field(default_factory=dict)  # the least over all variants
    private_variant: dict[int, str] = field(default_factory=dict)
    bound_us: dict[str, dict[int, float]] = field(default_factory=dict)  # by variant
    one_way_ns: float | None = None
    placements: list[str] = field(default_factory=list)
    complete: bool = True


def handover(program_dir: Path) -> dict[str, float | str | None]:
    """one_way_ns, exchange_ns, yield_us, placement (see handover.c); empty if it failed."""
    try:
        out = subprocess.run(
            [str(program_dir / "bench_handover")], capture_output=True, text=True, timeout=90
        )
        found: dict[str, float | str | None] = json.loads(out.stdout)
        return found
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError):
        return {}


def build_reference(source: Path, program_dir: Path) -> tuple[Path | None, str]:
    """The program, or None and the reason."""
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        return None, "the hand-written reference needs AVX2, which this processor lacks"
    text = source.read_text()
    # Its border between "near" and "far" (120 ns) is within the placements of some processors (115 to 150 ns), where it
    # would repeat every section for ever. placement.c has the same three classes with the border at 170 ns.
    text = text.replace('ns < 120 ? "near"', 'ns < 170 ? "near"')
    copy = program_dir / "reference.c"
    copy.write_text(text)
    program = program_dir / "reference"
    vectors = Path(__file__).with_name("avx512_on_avx2.h")
    build = subprocess.run(
        ["gcc", "-O3", "-march=native", "-pthread", "-w", "-D_GNU_SOURCE", "-include", str(vectors)]
        + ["-o", str(program), str(copy)],
        capture_output=True,
        text=True,
    )
    if build.returncode != 0:
        return None, "the hand-written reference does not build: " + build.stderr.strip()[:300]
    return program, ""


def parse_reference(text: str) -> Reference:
    reference = Reference()
    for line in text.splitlines():
        if match := PRIVATE_LINE.match(line):
            kind, chunk, chunk_unit, slots, size, unit, us = match.groups()
            size_bytes, value = int(size) * UNITS[unit], float(us)
            if value < reference.private_us.get(size_bytes, float("inf")):
                reference.private_us[size_bytes] = value
                reference.private_variant[size_bytes] = f"{kind} {chunk} {chunk_unit} x{slots}"
        elif match := BOUND_LINE.match(line):
            variant, size, unit, us = match.groups()
            reference.bound_us.setdefault(variant, {})[int(size) * UNITS[unit]] = float(us)
        elif match := PINGPONG_LINE.match(line):
            reference.one_way_ns = float(match.group(1))
        elif match := PLACEMENT.search(line):
            reference.placements.append(match.group(1))
    return reference


def run_reference(program: Path, limit_s: float) -> Reference:
    """Runs all three sections. If a run exceeds the limit, its output so far counts, and is marked."""
    process = subprocess.Popen(
        [str(program), "private", "bound", "pingpong"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "WANT": "any"},
        start_new_session=True,
    )
    complete = True
    try:
        out, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        complete = False
        os.killpg(process.pid, signal.SIGKILL)  # its second rank also holds the pipe
        out, _ = process.communicate()
    reference = parse_reference(out)
    reference.complete = complete and process.returncode == 0
    return reference

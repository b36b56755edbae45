"""Launches a contender for a list of points and returns one record a point, even if processes fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .contenders import Contender, command, environment
from .hosts import Hosts

Point = tuple[str, int]  # collective, bytes of the whole buffer
Record = dict[str, Any]


@dataclass(frozen=True)
class LoopSettings:
    repetitions: int = 9
    repetition_us: float = 2000
    point_s: float = 2.0
    point_limit_s: float = 45
    attempts: int = 2
    rotate_bytes: int = 0
    small_pages: bool = False
    out_of_place: bool = False

    def arguments(self) -> list[str]:
        return [
            "--repetitions",
            str(self.repetitions),
            "--repetition-us",
            str(self.repetition_us),
            "--point-s",
            str(self.point_s),
            "--point-limit-s",
            str(self.point_limit_s),
            "--attempts",
            str(self.attempts),
            "--rotate-bytes",
            str(self.rotate_bytes),
            *(["--small-pages"] if self.small_pages else []),
            *(["--out-of-place"] if self.out_of_place else []),
        ]


@dataclass
class Launch:
    records: dict[Point, Record] = field(default_factory=dict)
    errors: dict[Point, str] = field(default_factory=dict)
    version: str = ""
    trouble: list[str] = field(default_factory=list)


def _run_once(argv: list[str], env: dict[str, str], limit_s: float) -> tuple[list[str], str, int]:
    """Lines of standard output, the end of standard error, the exit status (124: out of time)."""
    process = subprocess.Popen(
        argv,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    status = None
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        status = 124
        process.terminate()  # a launcher ends its ranks; their own alarms end the others
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
    return out.splitlines(), err[-2000:], process.returncode if status is None else status


def _parse(lines: list[str], launch: Launch) -> None:
    for line in lines:
        if not line.startswith("{"):
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue  # a line truncated by the end of its process
        if "version" in record:
            launch.version = record["version"]
            continue
        point = (record.pop("collective"), record.pop("bytes"))
        if "error" in record:
            launch.errors[point] = record["error"]
        else:
            launch.records[point] = record


def run(
    contender: Contender,
    program_dir: Path,
    nranks: int,
    points: list[Point],
    settings: LoopSettings,
    limit_s: float,
    hosts: Hosts | None = None,
) -> Launch:
    """Measures the points. A process that dies or hangs loses its current point; the rest is launched again."""
    launch = Launch()
    left = list(points)
    memory_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None
    for _ in range(4):
        if not left:
            break
        with tempfile.TemporaryDirectory(prefix="rondo-bench-", dir=memory_dir) as directory:
            argv = command(contender, program_dir, nranks, Path(directory) / "control", hosts)
            argv += [*settings.arguments(), "--points", ",".join(f"{c}:{b}" for c, b in left)]
            try:
                lines, err, status = _run_once(argv, environment(contender, dict(os.environ)), limit_s)
            except OSError as error:
                launch.trouble.append(str(error))
                launch.errors |= {point: str(error) for point in left}
                return launch
        _parse(lines, launch)
        left = [p for p in left if p not in launch.records and p not in launch.errors]
        if status not in (0, 1):
            tail = err.strip().splitlines()
            launch.trouble.append(f"exit status {status}: {tail[0][:300] if tail else 'no message'}")
        if left and status != 0:
            if left[0] not in launch.errors:
                launch.errors[left[0]] = launch.trouble[-1] if launch.trouble else f"exit status {status}"
            left = left[1:]
    for point in left:
        launch.errors[point] = "not reached: the processes failed too often"
    return launch

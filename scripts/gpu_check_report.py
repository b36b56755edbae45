#!/usr/bin/env python3
"""Makes one JSON from the logs of scripts/gpu_check.sh: gpu_check_report.py LOGS OUT.

It has the parts with their status and time, the device, the names of failed tests, and the figures of the benchmarks:
lines that are JSON objects, and the tables of `rondo perf`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

STATUS = {0: "passed", 77: "skipped", 124: "timed out"}


def device() -> dict[str, str]:
    query = "name,driver_version,memory.total,compute_cap"
    try:
        out = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = out.splitlines()
    values = lines[0].split(", ") if lines else []
    return dict(zip(query.split(","), values)) | {"devices": str(len(lines))}


def json_lines(text: str) -> list[dict]:
    """Every line that is a JSON object, with the heading ("## words") above it."""
    found, heading = [], ""
    for line in text.splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif line.startswith("{"):
            try:
                found.append({"under": heading} | json.loads(line) if heading else json.loads(line))
            except json.JSONDecodeError:
                continue
    return found


PERF_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\S+)\s+(\S+)\s+(\S+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)")


def perf_rows(text: str) -> list[dict]:
    """The out-of-place columns of the tables of `rondo perf`."""
    rows, heading = [], ""
    for line in text.splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif match := PERF_ROW.match(line):
            size, _, dtype, op, _, us, algbw, busbw, wrong = match.groups()
            rows.append({"run": heading, "bytes": int(size), "dtype": dtype, "op": op, "us": float(us),
                         "algbw": float(algbw), "busbw": float(busbw), "wrong": wrong})
    return rows


def failures(text: str) -> list[str]:
    return sorted(set(re.findall(r"^\[  FAILED  \] (\S+)", text, re.MULTILINE)))


def report(logs: Path) -> dict:
    parts = []
    for line in (logs / "parts.txt").read_text().splitlines():
        name, status, seconds = line.split()
        text = (logs / f"{name}.log").read_text(errors="replace") if (logs / f"{name}.log").exists() else ""
        code = int(status)
        part = {"part": name, "status": STATUS.get(code, f"failed ({code})"), "seconds": int(seconds)}
        if names := failures(text):
            part["failed_tests"] = names
        if code == 77 or code not in (0, 77):
            part["says"] = text.strip().splitlines()[-12:]
        if figures := json_lines(text):
            part["figures"] = figures
        if rows := perf_rows(text):
            part["rows"] = rows
        parts.append(part)
    return {"device": device(), "parts": parts}


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    result = report(Path(sys.argv[1]))
    Path(sys.argv[2]).parent.mkdir(parents=True, exist_ok=True)
    Path(sys.argv[2]).write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {sys.argv[2]}: " + ", ".join(f"{p['part']} {p['status']}" for p in result["parts"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

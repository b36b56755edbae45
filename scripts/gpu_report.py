#!/usr/bin/env python3
"""Records and reports the runs of scripts/gpu_check.sh.

  gpu_report.py result OUT.json gpu_A.jsonl gpu_B.jsonl ...   makes a result file; a part of a later file counts
  gpu_report.py page RESULT.json ... [--check]                writes rows into docs/gpu-status.md, or compares them

scripts/gpu_check.sh calls:

  gpu_report.py start SET QUICK ABOUT.json                    prints the first line: the bundle and the device
  gpu_report.py part SET NAME STATUS SECONDS LOG BEGIN LINES  appends the line of a part, whose output begins at this
                                                              byte of the log. Exit status 1: the part failed
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PAGE = TOP / "docs" / "gpu-status.md"
BEGIN, END = "<!-- written by scripts/gpu_report.py page -->", "<!-- end -->"
WORDS = {0: "passed", 77: "skipped", 124: "timed out", 137: "timed out"}
TEXT_PARTS = ("info", "profile")  # their output is their result
PAGE_SIZES = {4 << 10: "4 KiB", 256 << 10: "256 KiB", 16 << 20: "16 MiB"}
SHOWS = {
    "info": "the machine's description",
    "unit": "bits of the host's reduction and copy kernels",
    "protocols": "2 threads, each protocol and engine, every value",
    "two_processes": "2 processes, every value",
    "sizes": "2 and 8 threads, 64 B to 1 GiB, every value",
    "bandwidth": "kernels beside the device's copy",
    "conformance": "threads: all calls, both engines, 10,000 random calls at 2, 4 and 8 ranks",
    "ipc": "memory of another process",
    "processes": "processes: 10,000 random calls at 2, 4 and 8 ranks",
    "killed_rank": "the survivors of a killed process",
    "graphs": "1,000 replays of a captured call",
    "queues_8": "8 threads, 8 hardware queues",
    "queues_32": "8 threads, 32 hardware queues",
    "training": "sharded training, bits of the host",
    "host_memory": "threads and processes through pinned host memory",
    "hosts": "two ranks, each in a network namespace, over TCP",
    "copies": "kernels beside the device's copy",
    "perf": "times of calls",
    "perf_1": "times of calls, 1 rank",
    "perf_2": "times of calls, 2 threads",
    "perf_4": "times of calls, 4 threads",
    "perf_8": "times of calls, 8 threads",
    "perf_processes": "times of calls, 2 and 4 processes",
    "nccl": "NCCL's interface, beside PyTorch's NCCL through sockets",
    "fsdp": "FSDP2 of PyTorch, losses of one process",
    "memcheck": "compute-sanitizer",
    "racecheck": "compute-sanitizer",
    "synccheck": "compute-sanitizer",
    "profile": "reduction kernels in the profiler",
}


def fail(why: str) -> None:
    raise SystemExit(f"gpu_report: {why}")


# ---- on the device's machine ----


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


def start(which: str, quick: str, about: Path) -> dict:
    bundle = json.loads(about.read_text()) if about.exists() else {}
    return {"set": which, "quick": quick == "1", "bundle": bundle, "device": device()}


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


def part(name: str, status: int, seconds: int, text: str) -> dict:
    """The line of a part. GoogleTest's status is 0 if all tests were skipped. Paths of sources begin at their room, and
    there are no ids of devices."""
    text = re.sub(r"(?<!\S)/\S*/(?=(?:src|tests|tools|bench)/)", "", text)
    text = re.sub(r"\b(GPU|MIG)(-[0-9a-f]+){5}\b", r"\1-...", text)
    tests = [int(n) for n in re.findall(r"^\[  PASSED  \] (\d+) test", text, re.MULTILINE)]
    if status == 0 and tests and sum(tests) == 0:
        status = 77
    line: dict = {"part": name, "status": WORDS.get(status, f"failed ({status})"), "seconds": seconds}
    if tests:
        line["tests"] = sum(tests)
    names = set(re.findall(r"^\[  FAILED  \] (\S+?),?(?: .*)?$", text, re.MULTILINE))
    if names := sorted(name for name in names if not name.isdigit()):  # not the line with the number of failures
        line["failed_tests"] = names
    for word in ("failed", "skipped"):
        if runs := re.findall(rf"^## {word}: (.*)$", text, re.MULTILINE):
            line[f"{word}_runs"] = runs
    reasons = sorted(set(re.findall(r": Skipped\n(.*)$", text, re.MULTILINE)))
    if reasons or status == 77:
        line["skipped_because"] = reasons or text.strip().splitlines()[-1:]
    if name in TEXT_PARTS and status == 0:
        line["text"] = text.strip().splitlines()[-200:]
    if status not in (0, 77):
        line["says"] = text.strip().splitlines()[-12:]
    if figures := json_lines(text):
        line["figures"] = figures
    if rows := perf_rows(text):
        line["rows"] = rows
    return line


def append_part(which: str, name: str, status: str, seconds: str, log: str, begin: str, lines: str) -> int:
    with open(log, "rb") as file:
        file.seek(int(begin))
        text = file.read().decode(errors="replace")
    made = {"set": which} | part(name, int(status), int(seconds), text)
    with open(lines, "a", encoding="utf-8") as file:
        file.write(json.dumps(made) + "\n")
    print(f"== {name:<14} {made['status']}, {seconds} s")
    if made["status"] in ("passed", "skipped"):
        return 0
    print("\n".join(made["says"]))
    return 1


# ---- afterwards ----


def read_lines(path: Path) -> tuple[dict, list[dict]]:
    """The first line, and the lines of parts. The last line may be incomplete: its command was killed."""
    lines = []
    for number, text in enumerate(path.read_text().splitlines()):
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            print(f"gpu_report: {path}: line {number + 1} is incomplete and was left out", file=sys.stderr)
    if not lines or "quick" not in lines[0]:
        fail(f"{path} has no first line of scripts/gpu_check.sh")
    return lines[0], lines[1:]


def copy_gbps(parts: list[dict]) -> float | None:
    """The bandwidth of the longest of the device's own copies; of equal ones the last, measured with the calls."""
    copies = [f for p in parts for f in p.get("figures", []) if f.get("what") == "device copy"]
    return max(reversed(copies), key=lambda f: f["bytes"])["gbps"] if copies else None


def share_of_copy(row: dict, copy: float) -> float:
    """The least that the ranks must read and write together, over the time, as a share of the copy's bandwidth."""
    collective, _, ranks = row["run"].split()[:3]
    vectors = 2 * int(ranks) if collective == "all_reduce" else int(ranks) + 1
    return round(row["bytes"] * vectors / (row["us"] * 1e3) / copy, 3)


def result(paths: list[Path]) -> dict:
    parts: dict[str, dict] = {}
    first: dict = {}
    for path in paths:
        head, lines = read_lines(path)
        if head["quick"]:
            fail(f"{path} is of a run with --quick, which shows nothing about a device")
        if not head["device"]:
            fail(f"{path} names no device: nvidia-smi was not there")
        first = first or head
        for key in ("device", "bundle"):
            if head[key] != first[key]:
                fail(f"{path} has another {key} than {paths[0]}: {head[key]}, not {first[key]}")
        parts |= {line["part"]: line for line in lines}
    ordered = sorted(parts.values(), key=lambda p: p["set"])  # stable: in the order of their runs
    if copy := copy_gbps(ordered):
        for row in (r for p in ordered for r in p.get("rows", [])):
            row["of_copy"] = share_of_copy(row, copy)
    return {"device": first["device"], "bundle": first["bundle"], "parts": ordered}


def result_text(p: dict) -> str:
    text = p["status"]
    if "tests" in p:
        text += f", {p['tests']} tests"
    if wrong := sum(int(r["wrong"]) for r in p.get("rows", []) if r["wrong"].isdigit()):
        text += f", {wrong} wrong values"
    for key in ("failed_tests", "failed_runs", "skipped_runs", "skipped_because"):
        if key in p:
            text += f"; {key.split('_')[0]}: " + ", ".join(p[key])
    return text.replace("|", "/")


def time_rows(parts: list[dict], copy: float) -> list[str]:
    """One row for each run of the tables of calls: microseconds, and the longest call's share of the copy."""
    runs: dict[str, dict[int, dict]] = {}
    for p in parts:
        if p["part"].startswith("perf"):
            for row in p.get("rows", []):
                runs.setdefault(row["run"], {})[row["bytes"]] = row
    made = []
    for run, rows in runs.items():
        longest = rows[max(rows)]
        cells = [f"{rows[b]['us']:,.0f}" if b in rows else "" for b in PAGE_SIZES]
        made.append(f"| {run.removesuffix(' auto auto')} | {' | '.join(cells)} | {longest['us']:,.0f} "
                    f"({longest['bytes'] >> 20} MiB) | {share_of_copy(longest, copy):.2f} |")
    return made


def tables(path: Path) -> list[str]:
    found = json.loads(path.read_text())
    what = found["device"]
    name = f"{what['name']}, driver {what['driver_version']}, devices: {what['devices']}"
    lines = [f"{name}; all ranks shared one", f"([{path.name}](../bench/results/{path.name})).", "",
             "| Part | Shows | Result | Seconds |", "|---|---|---|---|"]
    for p in found["parts"]:
        lines.append(f"| `{p['part']}` | {SHOWS.get(p['part'], '')} | {result_text(p)} | {p['seconds']} |")
    copy = copy_gbps(found["parts"])
    if copy and (rows := time_rows(found["parts"], copy)):
        lines += ["", "Microseconds of a call, out of place. The last column is the longest call's share of the copy",
                  f"({copy:,.0f} GB/s), if the ranks read and wrote no more than they must.", "",
                  f"| Ranks, engine, protocol | {' | '.join(PAGE_SIZES.values())} | longest | of the copy |",
                  "|---|" + "---|" * (len(PAGE_SIZES) + 2), *rows]
    return [*lines, ""]


def page(paths: list[Path], check: bool) -> int:
    text = PAGE.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        fail(f"{PAGE} needs one line {BEGIN} and one line {END}")
    begin, end = text.index(BEGIN), text.index(END) + len(END)
    made = text[:begin] + "\n".join([BEGIN, "", *(line for p in paths for line in tables(p)), END]) + text[end:]
    if not check:
        PAGE.write_text(made)
    elif made != text:
        names = " ".join(map(str, paths))
        print(f"gpu_report: {PAGE.name} differs from {names}: run scripts/gpu_report.py page {names}", file=sys.stderr)
        return 1
    return 0


def main(args: list[str]) -> int:
    if len(args) == 4 and args[0] == "start":
        print(json.dumps(start(args[1], args[2], Path(args[3]))))
        return 0
    if len(args) == 8 and args[0] == "part":
        return append_part(*args[1:])
    if len(args) >= 3 and args[0] == "result":
        Path(args[1]).write_text(json.dumps(result([Path(a) for a in args[2:]]), indent=1) + "\n")
        return 0
    if args[:1] == ["page"] and (results := [Path(a) for a in args[1:] if a != "--check"]):
        return page(results, "--check" in args)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

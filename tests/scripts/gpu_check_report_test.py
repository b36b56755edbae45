"""scripts/gpu_check_report.py on logs of scripts/gpu_check.sh, and how the latter runs a part."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
ROW = "{size:>12} {count:>12} float sum -1 {us:8.2f} 1.00 1.00 0 {us:8.2f} 1.00 1.00 0"


def perf_log(runs: list[tuple[str, dict[int, float]]]) -> str:
    lines = []
    for run, times in runs:
        lines.append(f"## {run}")
        lines += [ROW.format(size=size, count=size // 4, us=us) for size, us in times.items()]
    return "\n".join(lines) + "\n"


def report_of(logs: dict[str, str]) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        for name, text in logs.items():
            (top / name).write_text(text)
        out = top / "out.json"
        script = str(SCRIPTS / "gpu_check_report.py")
        subprocess.run([sys.executable, "-B", script, str(top), str(out)], check=True, capture_output=True)
        return json.loads(out.read_text())


class Report(unittest.TestCase):
    def test_rows_of_perf_stand_under_their_run(self) -> None:
        log = perf_log([("all_reduce threads 2", {1024: 9.0}), ("all_gather ranks 4", {8: 7.5})])
        (part,) = report_of({"parts.txt": "perf 0 12\n", "perf.log": log})["parts"]
        self.assertEqual([(row["run"], row["bytes"], row["us"]) for row in part["rows"]],
                         [("all_reduce threads 2", 1024, 9.0), ("all_gather ranks 4", 8, 7.5)])

    def test_a_part_that_failed_says_why(self) -> None:
        log = "[  FAILED  ] Kernels.Sum (3 ms)\n[  FAILED  ] Kernels.Sum\n"
        (part,) = report_of({"parts.txt": "unit 1 3\n", "unit.log": log})["parts"]
        self.assertEqual(part["status"], "failed (1)")
        self.assertEqual(part["failed_tests"], ["Kernels.Sum"])


class Parts(unittest.TestCase):
    """A part is a program or a function of the script; it ends at its limit and at its first error."""

    def statuses(self, calls: str) -> list[str]:
        text = (SCRIPTS / "gpu_check.sh").read_text()
        part = re.search(r"^part\(\) \{.*?^\}", text, re.MULTILINE | re.DOTALL)
        assert part is not None
        with tempfile.TemporaryDirectory() as logs:
            head = "set -euo pipefail; parts=a,b,c,d,e; build=x deps=y nccl_tests= nccl_libs=(); failed=0; "
            head += f"logs={logs}\n"
            subprocess.run(["bash", "-c", head + part[0] + "\n" + calls], check=True, capture_output=True)
            return [line.split()[1] for line in (Path(logs) / "parts.txt").read_text().splitlines()]

    def test_functions_run_under_the_limit(self) -> None:
        calls = """
            say() { echo "$1 $build ${#nccl_libs[@]}"; }
            skip() { return 77; }
            fail() { false; echo "not reached"; }
            hang() { sleep 60; }
            part a 10 say hello; part b 10 skip; part c 10 fail; part d 1 hang; part e 10 true
        """
        self.assertEqual(self.statuses(calls), ["0", "77", "1", "124", "0"])


if __name__ == "__main__":
    unittest.main()

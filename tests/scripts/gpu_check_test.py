"""scripts/gpu_check.sh with programs that hang, fail and skip; scripts/gpu_report.py on a recorded run; the check of
scripts/gpu_bundle.sh."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
SCRIPTS = TOP / "scripts"
RECORDED = Path(__file__).resolve().parent / "gpu_run"
ROW = "      64      16     float     sum      -1     9.50    1.00    1.00       0     9.50    1.00    1.00       0"
PASSED = "echo '[  PASSED  ] 3 tests.'"


class Bundle:
    """A folder like that of scripts/gpu_bundle.sh, with shell scripts as its programs."""

    def __init__(self, folder: str, programs: dict[str, str]) -> None:
        self.top = Path(folder)
        self.out = self.top / "out"
        (self.top / "programs" / "bin").mkdir(parents=True)
        (self.top / "scripts").mkdir()
        for name in ("gpu_check.sh", "gpu_report.py"):
            shutil.copy(SCRIPTS / name, self.top / "scripts")
        for name, text in ({"rondo": f"echo '{ROW}'"} | programs).items():
            path = self.top / "programs" / "bin" / name
            path.write_text(f"#!/bin/bash\n{text}\n")
            path.chmod(0o755)
        (self.top / "about.json").write_text('{"commit": "c", "archs": "90"}')

    def command(self, which: str, *options: str) -> list[str]:
        return [str(self.top / "scripts" / "gpu_check.sh"), which, "--out", str(self.out), *options]

    def run(self, which: str, *options: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PATH": f"{self.top}/programs/bin:{os.environ['PATH']}"}  # for tools of CUDA
        command = self.command(which, *options)
        return subprocess.run(command, cwd=self.top, env=env, capture_output=True, text=True, timeout=50)

    def lines(self, which: str) -> list[dict]:
        return [json.loads(line) for line in (self.out / f"gpu_{which}.jsonl").read_text().splitlines()]

    def statuses(self, which: str) -> dict[str, str]:
        return {line["part"]: line["status"] for line in self.lines(which)[1:]}


@contextlib.contextmanager
def bundle(**programs: str):
    with tempfile.TemporaryDirectory() as folder:
        yield Bundle(folder, programs)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class Check(unittest.TestCase):
    PARTS = ("--parts", "info,unit,protocols")

    def test_a_part_that_hangs_is_killed_and_the_next_one_runs(self) -> None:
        with bundle(gpu_kernels_gpu_test="trap '' TERM; echo $$ >pid; while true; do sleep 1; done") as b:
            ran = b.run("A", *self.PARTS, "--most", "2")
            self.assertFalse(is_running(int((b.top / "pid").read_text())))  # though it ignores SIGTERM
            self.assertEqual(ran.returncode, 1, ran.stderr)
            self.assertEqual(b.statuses("A"), {"info": "passed", "unit": "timed out", "protocols": "passed"})
            self.assertEqual(len(b.lines("A")[3]["rows"]), 8)

    def test_a_killed_command_leaves_the_results_of_the_parts_before(self) -> None:
        with bundle(gpu_kernels_gpu_test=f"{PASSED}; echo $$ >pid.new; mv pid.new pid; exec sleep 40") as b:
            with subprocess.Popen(b.command("A", *self.PARTS), stdout=subprocess.DEVNULL, cwd=b.top) as check:
                deadline = time.monotonic() + 30
                while not (b.top / "pid").exists():
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.05)
                check.send_signal(signal.SIGKILL)
            os.kill(int((b.top / "pid").read_text()), signal.SIGKILL)  # the part itself
            self.assertEqual(b.statuses("A"), {"info": "passed"})
            self.assertIn("3 tests", (b.out / "gpu_A.log").read_text())

    def test_a_part_that_cannot_run_is_skipped_with_the_reason(self) -> None:
        skipped = "echo '/home/x/tests/gpu/a.cc:34: Skipped'; echo 'no GPU here'; echo '[  PASSED  ] 0 tests.'"
        with bundle(gpu_kernels_gpu_test=skipped) as b:
            self.assertEqual(b.run("A", *self.PARTS).returncode, 0)
            self.assertEqual(b.lines("A")[2]["status"], "skipped")
            self.assertEqual(b.lines("A")[2]["skipped_because"], ["no GPU here"])
            if shutil.which("ncu") is None:
                self.assertEqual(b.run("D", "--parts", "profile").returncode, 0)
                self.assertEqual(b.lines("D")[1]["skipped_because"], ["no profiler (ncu)"])

    def test_a_table_that_fails_does_not_end_its_part(self) -> None:
        failing = f"echo '{ROW}'; echo /home/x/tests/a.cc:1: wrong; [[ $* != *ll128* ]]"
        with bundle(rondo=failing, gpu_kernels_gpu_test=PASSED) as b:
            self.assertEqual(b.run("A", *self.PARTS).returncode, 1)
            line = b.lines("A")[3]
            self.assertEqual(line["status"], "failed (1)")
            self.assertIn("tests/a.cc:1: wrong", line["says"])  # not the folder of the build
            self.assertEqual(len(line["failed_runs"]), 2)
            self.assertEqual(line["rows"][-1]["run"], "all_gather threads 2 stream simple")

    def test_a_second_run_keeps_the_first_one(self) -> None:
        with bundle() as b:
            for most in ("5", "6"):
                self.assertEqual(b.run("A", "--parts", "info", "--most", most).returncode, 0)
            self.assertEqual(sorted(p.name for p in b.out.glob("*.jsonl")), ["gpu_A.jsonl", "gpu_A_2.jsonl"])

    def test_bad_arguments_are_named(self) -> None:
        with bundle() as b:
            for options, word in ((("--parts", "info,copies"), "copies"), (("--most", "1m"), "--most 1m")):
                ran = b.run("A", *options)
                self.assertEqual(ran.returncode, 2)
                self.assertIn(word, ran.stderr)
                self.assertFalse(b.out.exists())

    def test_sanitizers_run_three_tests_and_the_profiler_one_program(self) -> None:
        tools = {"compute-sanitizer": 'echo "$* $GPU_TESTS_QUICK"; [[ $* != *OneRank* ]]', "ncu": "echo ncu $*"}
        with bundle(**tools) as b:
            self.assertEqual(b.run("D", "--parts", "memcheck,profile").returncode, 1)
            memcheck, profile = b.lines("D")[1:]
            self.assertEqual(memcheck["failed_runs"], ["status 1 of memcheck *OneRank"])
            ran = (b.out / "gpu_D.log").read_text().splitlines()
            self.assertEqual([line.split("=")[-1] for line in ran if line.startswith("--tool memcheck")],
                             ["*Copy ", "*OneRank ", "*Bits* 1"])
            self.assertRegex(profile["text"][0], "^ncu .*gpu_bandwidth 268435456 1$")

    def test_all_limits_of_a_set_are_8_minutes(self) -> None:
        listed = subprocess.run([SCRIPTS / "gpu_check.sh", "--list"], check=True, capture_output=True, text=True).stdout
        sums: dict[str, int] = {}
        for line in listed.splitlines():
            which, _, limit = line.split()
            sums[which] = sums.get(which, 0) + int(limit) + 5  # until it is killed
        self.assertEqual(sorted(sums), ["A", "B", "C", "D"])
        for which, seconds in sums.items():
            self.assertLessEqual(seconds, 475, which)

    def test_every_part_has_a_text_in_the_report(self) -> None:
        listed = subprocess.run([SCRIPTS / "gpu_check.sh", "--list"], check=True, capture_output=True, text=True).stdout
        text = (SCRIPTS / "gpu_report.py").read_text()
        for line in listed.splitlines():
            self.assertIn(f'"{line.split()[1]}":', text)


class Report(unittest.TestCase):
    """The files of gpu_run are of scripts/gpu_dry_run.sh: the lines are real, the figures mean nothing."""

    DEVICE = {"name": "Test GPU", "driver_version": "1", "memory.total": "1 MiB", "compute_cap": "9.0", "devices": "1"}

    def run_report(self, *args: object, scripts: Path = SCRIPTS) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-B", str(scripts / "gpu_report.py"), *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=20)

    def as_of_a_device(self, folder: Path, which: str, **head: object) -> Path:
        first, *lines = (RECORDED / f"gpu_{which}.jsonl").read_text().splitlines()
        changed = json.loads(first) | {"quick": False, "device": self.DEVICE} | head
        path = folder / f"gpu_{which}.jsonl"
        path.write_text("\n".join([json.dumps(changed), *lines]) + "\n")
        return path

    def test_a_quick_run_is_no_result(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            made = self.run_report("result", Path(folder) / "r.json", RECORDED / "gpu_A.jsonl")
            self.assertIn("--quick", made.stderr)
            self.assertFalse((Path(folder) / "r.json").exists())

    def test_sets_become_one_result(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            paths = [self.as_of_a_device(folder, "C"), self.as_of_a_device(folder, "A")]
            with paths[1].open("a") as file:
                file.write('{"set": "A", "part": "unfin')  # a killed command
            made = self.run_report("result", folder / "r.json", *paths)
            self.assertEqual(made.returncode, 0, made.stderr)
            self.assertIn("incomplete", made.stderr)
            result = json.loads((folder / "r.json").read_text())
            names = [p["part"] for p in result["parts"]]
            self.assertEqual(names[0], "info")
            self.assertEqual(names[-1], "nccl")
            (perf,) = (p for p in result["parts"] if p["part"] == "perf_2")
            copies = result["parts"][names.index("copies")]["figures"]
            copy = next(f["gbps"] for f in copies if f["what"] == "device copy")
            row = perf["rows"][-1]
            self.assertTrue(row["run"].startswith("all_reduce threads 2"))
            self.assertAlmostEqual(row["of_copy"], row["bytes"] * 4 / (row["us"] * 1e3) / copy, places=3)

    def test_runs_of_two_builds_are_no_result(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            paths = [self.as_of_a_device(folder, "A"), self.as_of_a_device(folder, "C", bundle={"commit": "other"})]
            made = self.run_report("result", folder / "r.json", *paths)
            self.assertNotEqual(made.returncode, 0)
            self.assertIn("another bundle", made.stderr)

    def test_the_page_has_the_rows_of_its_results(self) -> None:
        page = (TOP / "docs" / "gpu-status.md").read_text()
        block = page[page.index("<!-- written by"):]
        names = re.findall(r"\(\.\./bench/results/(\w+\.json)", block[:block.index("<!-- end -->")])
        self.assertTrue(names)
        made = self.run_report("page", *(TOP / "bench" / "results" / name for name in names), "--check")
        self.assertEqual(made.returncode, 0, made.stderr)

    def test_another_result_changes_the_page(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            top = Path(name)
            (top / "docs").mkdir()
            shutil.copytree(SCRIPTS, top / "scripts")
            shutil.copy(TOP / "docs" / "gpu-status.md", top / "docs")
            self.run_report("result", top / "r.json", self.as_of_a_device(top, "A"), self.as_of_a_device(top, "C"))
            self.assertEqual(self.run_report("page", top / "r.json", "--check", scripts=top / "scripts").returncode, 1)
            self.assertEqual(self.run_report("page", "--check", top / "r.json", scripts=top / "scripts").returncode, 1)
            self.assertEqual(self.run_report("page", top / "r.json", scripts=top / "scripts").returncode, 0)
            text = (top / "docs" / "gpu-status.md").read_text()
            self.assertIn("Test GPU", text)
            self.assertIn("| all_reduce threads 2 interpreter ll128 |", text)
            self.assertEqual(self.run_report("page", top / "r.json", "--check", scripts=top / "scripts").returncode, 0)


class BundleCheck(unittest.TestCase):
    def check(self, folder: str) -> subprocess.CompletedProcess[str]:
        command = [SCRIPTS / "gpu_bundle.sh", "--check", folder]
        return subprocess.run(command, capture_output=True, text=True, timeout=30)

    def test_a_library_that_a_machine_may_lack_is_named(self) -> None:
        program = shutil.which("bash")
        assert program is not None
        needed = subprocess.run(["readelf", "-dW", program], capture_output=True, text=True).stdout
        others = re.findall(r"NEEDED.*\[(lib(?!c\.so).*)\]", needed)
        self.assertTrue(others)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(program, folder)
            ran = self.check(folder)
            self.assertEqual(ran.returncode, 1)
            self.assertIn(f"bash needs {others[0]}", ran.stderr)

    def test_programs_of_glibc_alone_pass(self) -> None:
        program = shutil.which("true")
        assert program is not None
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(program, folder)
            self.assertEqual(self.check(folder).returncode, 0)


if __name__ == "__main__":
    unittest.main()

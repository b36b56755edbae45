"""nccl_tests_report.py and check_bindings.py on small handwritten outputs in the formats of nccl-tests and ld.so."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import tempfile
import unittest
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


report = load("nccl_tests_report")
bindings = load("check_bindings")

HEAD = """\
# nccl-tests version 2.17.6 nccl-headers=23007 nccl-library=23203
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 1048576 step: 131072(factor) warmup iters: 1 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on       node device  0 [0000:0a:00] Some GPU
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
NVIDIA = HEAD + """\
           8             2     float     sum      -1    12.50    0.00    0.00       0    12.10    0.00    0.00       0
node:4711:4711 NCCL INFO a line of the library
     1048576        262144     float     sum      -1    40.00   26.21   26.21       0    41.00   25.58   25.58       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 13.1
"""
RONDO = HEAD + """\
           8             2     float     sum      -1     6.25    0.00    0.00       0     6.00    0.00    0.00     N/A
     1048576        262144     float     sum      -1    80.00   13.11   13.11       0    79.00   13.27   13.27       0
"""
# A version with columns for the spread of the times.
WIDE = """\
#   size  count    type   redop  root   time  algbw  busbw  #wrong    min    max   time  algbw  busbw  #wrong
       8      2   float     sum    -1   9.00   0.00   1.50       3   8.00  11.00   7.00   0.00   2.50       1
"""


class Report(unittest.TestCase):
    def test_rows_are_read_by_the_headers_names(self) -> None:
        small, large = report.parse(NVIDIA.splitlines())
        self.assertEqual((small.size_bytes, small.dtype, small.redop, small.time_us), (8, "float", "sum", (12.5, 12.1)))
        self.assertEqual((large.busbw, large.num_wrong), ((26.21, 25.58), (0, 0)))
        (wide,) = report.parse(WIDE.splitlines())
        self.assertEqual((wide.time_us, wide.busbw, wide.num_wrong), ((9.0, 7.0), (1.5, 2.5), (3, 1)))

    def test_lines_that_do_not_fit_are_errors(self) -> None:
        with self.assertRaisesRegex(ValueError, "5 columns instead of 13"):
            report.parse((HEAD + "8 2 float sum -1\n").splitlines())
        with self.assertRaisesRegex(ValueError, "before the header"):
            report.parse(["8 2 float sum -1"])
        with self.assertRaisesRegex(ValueError, "no column busbw"):
            report.parse(["# size count type redop time #wrong", "8 2 float sum 1.0 0"])

    def run_main(self, files: dict[str, str], *more: str) -> tuple[int, str]:
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, text in files.items():
                paths.append(str(Path(folder) / name))
                Path(paths[-1]).write_text(text, encoding="utf-8")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                status = report.main([*more, *paths])
            return status, out.getvalue()

    def test_the_table_has_both_libraries_side_by_side(self) -> None:
        status, text = self.run_main({"all_reduce.nvidia.txt": NVIDIA, "all_reduce.rondo.txt": RONDO})
        self.assertEqual(status, 0)
        lines = [line.split() for line in text.splitlines()]
        self.assertEqual(lines[0], ["all_reduce", "bytes", "nvidia", "us", "nvidia", "GB/s", "rondo", "us", "rondo",
                                    "GB/s", "times"])
        self.assertEqual(lines[1], ["8", "12.50", "0.00", "6.25", "0.00", "2.00"])
        self.assertEqual(lines[2], ["1048576", "40.00", "26.21", "80.00", "13.11", "0.50"])

    def test_a_size_that_one_run_lacks_stays_empty(self) -> None:
        status, text = self.run_main({"a.nvidia.txt": HEAD + NVIDIA.splitlines()[-3] + "\n", "a.rondo.txt": RONDO})
        self.assertEqual(status, 0)
        self.assertEqual(text.splitlines()[1].split(), ["8", "-", "-", "6.25", "0.00"])

    def test_wrong_values_and_empty_runs_fail(self) -> None:
        status, text = self.run_main({"a.rondo.txt": WIDE})
        self.assertEqual((status, "4 wrong values" in text), (1, True))
        status, text = self.run_main({"a.rondo.txt": HEAD})
        self.assertEqual((status, "no result line" in text), (1, True))

    def test_the_plot_is_drawn(self) -> None:
        if importlib.util.find_spec("matplotlib") is None:
            self.skipTest("matplotlib is not installed")
        with tempfile.TemporaryDirectory() as folder:
            to = Path(folder) / "plot.png"
            self.run_main({"a.nvidia.txt": NVIDIA, "a.rondo.txt": RONDO, "b.rondo.txt": RONDO}, "--plot", str(to))
            self.assertEqual(to.read_bytes()[:4], b"\x89PNG")


class Bindings(unittest.TestCase):
    LINE = "      7:\tbinding file {} [0] to {} [0]: normal symbol `{}' [VERS]\n"

    def run_main(self, *bound: tuple[str, str, str]) -> tuple[int, str]:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "bindings.7"
            log.write_text("".join(self.LINE.format(*b) for b in bound), encoding="utf-8")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                status = bindings.main(["--library", "/r/libnccl.so.2", str(log)])
            return status, out.getvalue()

    def test_all_symbols_have_to_come_from_one_library(self) -> None:
        good = ("/t/libtorch_cuda.so", "/r/libnccl.so.2", "ncclAllReduce")
        self.assertEqual(self.run_main(good, ("/t/a.so", "/lib/libc.so.6", "strlen"))[0], 0)
        status, text = self.run_main(good, ("/t/libtorch_cuda.so", "/n/libnccl.so.2", "ncclGetVersion"))
        self.assertEqual(status, 1)
        self.assertIn("/t/libtorch_cuda.so takes ncclGetVersion from /n/libnccl.so.2", text)

    def test_a_log_without_any_is_no_success(self) -> None:
        own = ("/r/libnccl.so.2", "/n/x.so", "ncclSend")
        status, text = self.run_main(("/t/a.so", "/lib/libc.so.6", "strlen"), own)
        self.assertEqual((status, "no nccl symbol was bound" in text), (1, True))


if __name__ == "__main__":
    unittest.main()

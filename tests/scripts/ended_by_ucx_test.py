"""ended_by_ucx.py on files in ctest's format."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from xml.sax.saxutils import escape

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "ended_by_ucx.py"
UCX = "[host:71:0:71]  wireup.c:614  Assertion `req->send.ep == ep' failed: req 0x55d0 ep 0x7f00: got REP message\nSubprocess aborted"
UCX_BREAK = (
    "[host:71:0:71]   uct_iface.h:884  Assertion `comp->count > 0' failed: comp=0x55cf (ucs_empty) count=0 status=-80\n"
)
OURS = "x_test.cc:12: Failure\nrank 1 was ended by signal 6"


class EndedByUcx(unittest.TestCase):
    def judge(self, *cases: tuple[str, str, str]) -> tuple[int, str, str]:
        """Exit status, stdout and stderr for tests with these names, statuses and outputs."""
        rows = "".join(f'<testcase name="{name}" status="{status}"><system-out>{escape(output)}</system-out></testcase>'
                       for name, status, output in cases)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "ctest.xml"
            file.write_text(f'<?xml version="1.0"?><testsuite>{rows}</testsuite>', encoding="utf-8")
            run = subprocess.run([sys.executable, "-B", SCRIPT, file], capture_output=True, text=True, check=False)
        return run.returncode, run.stdout, run.stderr

    def test_only_tests_that_the_assertion_ended(self) -> None:
        status, names, _ = self.judge(("a_test", "run", ""), ("b_test", "fail", UCX), ("c_test", "fail", OURS + UCX))
        self.assertEqual((status, names), (0, "b_test\nc_test\n"))

    def test_a_connection_that_broke_while_ucx_sent(self) -> None:
        self.assertEqual(self.judge(("b_test", "fail", UCX_BREAK))[:2], (0, "b_test\n"))

    def test_one_that_failed_by_itself_is_named(self) -> None:
        status, names, errors = self.judge(("b_test", "fail", UCX), ("c_test", "fail", OURS))
        self.assertEqual((status, names, errors), (1, "", "c_test failed by itself\n"))

    def test_other_assertions_of_ucx_do_not_count(self) -> None:
        for output in (UCX.replace("REP", "REQ"), UCX.replace("Assertion", "assertion"), "got REP message", "",
                       UCX_BREAK.replace("count=0", "count=1"), UCX_BREAK.replace("-80", "-3")):
            self.assertEqual(self.judge(("b_test", "fail", output))[0], 1, output)

    def test_a_file_without_failures_excuses_nothing(self) -> None:
        self.assertEqual(self.judge(("a_test", "run", UCX))[0], 2)


if __name__ == "__main__":
    unittest.main()

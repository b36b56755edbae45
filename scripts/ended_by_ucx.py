#!/usr/bin/env python3
"""Reads ctest's output of a failed run (--output-junit FILE) and checks whether UCX's own assertion ended the tests.

Two assertions of UCX 1.13 can end a process, and later versions lack the first one:
  got REP message   a peer dies or leaves while the two connect (https://github.com/openucx/ucx/pull/8175)
  comp->count > 0   a TCP connection breaks while UCX sends from the caller's memory; status -80 is its own code for it
Such a failure is not rondo's. It is recognised only by the text of the assertion.

Prints the names of the tests, one a line. Exit status: 0 the assertion ended all failed tests, 1 some failed otherwise
(each is named on stderr), 2 the file cannot be read or names no failed test.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ASSERTION = re.compile(
    r"Assertion `[^'\n]+' failed: req \S+ ep \S+: got REP message"
    r"|uct_iface\.h:\d+ +Assertion `comp->count > 0' failed: comp=\S+ \(\S+\) count=0 status=-80"
)


def failed_tests(junit: str) -> dict[str, str]:
    """The output of each failed test, by its name."""
    cases = ElementTree.fromstring(junit).iter("testcase")
    return {c.get("name", ""): c.findtext("system-out", "") for c in cases if c.get("status") == "fail"}


def main(arguments: list[str]) -> int:
    try:
        failed = failed_tests(Path(arguments[0]).read_text(encoding="utf-8", errors="replace"))
    except (IndexError, OSError, ElementTree.ParseError) as error:
        print(f"ended_by_ucx.py FILE: {error}", file=sys.stderr)
        return 2
    if not failed:
        print(f"{arguments[0]} names no failed test", file=sys.stderr)
        return 2
    others = [name for name, output in failed.items() if not ASSERTION.search(output)]
    for name in others:
        print(f"{name} failed by itself", file=sys.stderr)
    if not others:
        print("\n".join(failed))
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

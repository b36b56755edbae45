#!/usr/bin/env python3
"""Checks that each suite of the test programs belongs to exactly one entry of ctest, and that no entry lacks its tests.

usage: selections_test.py FILE    FILE has a line for each entry: ENTRY PROGRAM FILTER (tests/CMakeLists.txt)

A filter is a list of SUITE.* with colons between them, or * for all suites. Programs that this build has not made are
passed over: ctest reports their entries as not run.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path


def suites_of(program: str) -> list[str]:
    listed = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
    return re.findall(r"^(\S+)\.$", listed, re.MULTILINE)


def faults(suites: list[str], filters: dict[str, str]) -> list[str]:
    """What is wrong with a program of these suites, whose entries have these filters."""
    wrong, entries = [], defaultdict(list)
    for entry, selection in filters.items():
        chosen = suites if selection == "*" else [pattern.removesuffix(".*") for pattern in selection.split(":")]
        for suite in chosen:
            entries[suite].append(entry)
        wrong += [f"{entry} has no suite {suite!r}" for suite in chosen if suite not in suites]
    for suite in suites:
        if len(entries[suite]) != 1:
            wrong.append(f"the suite {suite} belongs to {' and '.join(entries[suite]) or 'no entry'}")
    return wrong


def self_check() -> None:
    assert faults(["A", "P/B"], {"a": "A.*", "b": "P/B.*"}) == faults(["A"], {"a": "*"}) == []
    assert faults(["A", "P/B"], {"a": "A.*"}) == ["the suite P/B belongs to no entry"]
    assert faults(["A"], {"a": "A.*", "b": "A.*"}) == ["the suite A belongs to a and b"]
    assert faults(["A"], {"a": "A.*:B.*"}) == ["a has no suite 'B'"]
    assert faults(["A"], {"a": "A.*", "b": ""}) == ["b has no suite ''"]


def main(file: str) -> int:
    self_check()
    programs: dict[str, dict[str, str]] = defaultdict(dict)
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        entry, program, selection = line.split(" ")
        programs[program][entry] = selection
    wrong, num_suites = [], 0
    for program, filters in programs.items():
        if Path(program).exists():
            suites = suites_of(program)
            num_suites += len(suites)
            wrong += [f"{Path(program).name}: {fault}" for fault in faults(suites, filters)]
    print("\n".join(wrong) or f"{num_suites} suites, each in one entry")
    return 1 if wrong or num_suites == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

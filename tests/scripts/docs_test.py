#!/usr/bin/env python3
"""Names in the pages must exist: links and their headings, files, tests, settings, and flags of `rondo`. Figures must
equal those of the result files.

usage: docs_test.py RONDO    RONDO is the command line. Its --help lists the flags. Without it flags are not checked
"""
from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RONDO = ""
FOLDERS = "src|scripts|tests|bench|docs|include|tools|examples|adapters|cmake"
PLACEHOLDERS = ("NAME", "FOLDER")


def read(path: str) -> str:
    with open(os.path.join(TOP, path), encoding="utf-8") as file:
        return file.read()


def pages() -> list[str]:
    patterns = ("*.md", "docs/*.md", "bench/**/*.md", "examples/**/*.md", "src/**/*.md", "adapters/**/*.md")
    return sorted({p for pattern in patterns for p in glob.glob(pattern, root_dir=TOP, recursive=True)})


def anchors(page: str) -> set[str]:
    """The headings of a page in the form that links use."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", read(page), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
        found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


def wrong_links(page: str, text: str) -> list[str]:
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, heading = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if not os.path.exists(os.path.join(TOP, target)):
            wrong.append(f"{page}: {link}: there is no such file")
        elif heading and target.endswith(".md") and heading not in anchors(target):
            wrong.append(f"{page}: {link}: there is no such heading")
    return wrong


def wrong_paths(page: str, text: str) -> list[str]:
    """`src/api/x.cc` in backquotes, relative to the top or to the page's folder. * matches anything."""
    wrong = []
    for quoted in re.findall(r"`([^`\n]+)`", text):
        for path in re.findall(rf"(?<![\w/.-])(?:{FOLDERS})/[\w./*-]+", quoted):
            path = path.rstrip(".")
            places = (path, os.path.join(os.path.dirname(page), path))
            if not any(name in path for name in PLACEHOLDERS) and not any(glob.glob(p, root_dir=TOP) for p in places):
                wrong.append(f"{page}: {path}: there is no such file")
    return wrong


def names_of_tests() -> set[str]:
    names = set()
    for path in glob.glob("tests/**/*_test.*", root_dir=TOP, recursive=True):
        stem = os.path.splitext(path)[0]
        names |= {stem.removeprefix("tests/").replace("/", "_"), os.path.basename(stem)}
    return names


def wrong_tests(page: str, text: str, tests: set[str]) -> list[str]:
    named = re.findall(r"(?<![\w/.])([a-z][a-z0-9_]*_test)\b", text)
    return [f"{page}: {name}: there is no such test" for name in named if name not in tests | {"self_test"}]


def sources() -> str:
    """The text of all files except pages and results."""
    folders = ("CMake*", ".ci/*", *(f"{folder}/**/*" for folder in FOLDERS.split("|")))
    paths = [p for folder in folders for p in glob.glob(folder, root_dir=TOP, recursive=True)]
    kinds = re.compile(r"\.(h|def|cc|c|cu|cuh|py|sh|cmake|txt|in)$|CMakePresets|/run$")
    return "\n".join(read(p) for p in paths if kinds.search(p))


def wrong_variables(page: str, text: str, known: str) -> list[str]:
    settings = set(re.findall(r"^SETTING\((\w+),", read("src/config/settings.def"), re.M))
    return [f"{page}: {name}: there is no such variable"
            for name in re.findall(r"\bRONDO_[A-Z][A-Z0-9_]*[A-Z0-9]\b", text)
            if name[6:].lower() not in settings and not re.search(rf"\b{name}", known)]


HELP: dict[tuple[str, ...], str] = {}


def help_of(*command: str) -> str:
    if command not in HELP:
        run = subprocess.run([RONDO, *command, "--help"], capture_output=True, text=True, timeout=60)
        HELP[command] = run.stdout if run.returncode == 0 else ""
    return HELP[command]


def wrong_flags(page: str, text: str) -> list[str]:
    """`rondo COMMAND ... --flag`, on a separate line or in backquotes."""
    wrong = []
    lines = re.findall(r"^ {4}.*$", text, re.M) + re.findall(r"`([^`\n]+)`", text)
    for line in lines:
        for command, rest in re.findall(r"(?:^|[\s/])rondo ([a-z]+)\b([^#|;&]*)", line.split("   #")[0]):
            words = rest.split("    ")[0].split() if line.startswith("    ") else rest.split()
            helped = help_of(command)
            if not re.search(rf"^  {command} ", help_of(), re.M):
                wrong.append(f"{page}: rondo {command}: there is no such command")
                continue
            for word in words:  # trace export, fsdp plan
                if re.fullmatch(r"[a-z]+", word) and re.search(rf"^  {word} ", helped, re.M):
                    helped += help_of(command, word)
                    break
            for flag in re.findall(r"(?<![\w-])--?[a-zA-Z][a-z-]*", " ".join(words)):
                short = re.fullmatch(r"-[a-zA-Z]", flag)
                if not re.search(rf"(?<![\w-]){flag}(?![a-z-])", helped) and not (flag[1] != "-" and not short):
                    wrong.append(f"{page}: rondo {command} {flag}: there is no such flag")
    return wrong


class Pages(unittest.TestCase):
    maxDiff = None

    def check_all(self, check) -> None:
        self.assertEqual([], [w for page in pages() for w in check(page, read(page))])

    def test_links_lead_to_files_and_headings(self) -> None:
        self.check_all(wrong_links)

    def test_named_files_exist(self) -> None:
        self.check_all(wrong_paths)

    def test_named_tests_exist(self) -> None:
        tests = names_of_tests()
        self.check_all(lambda page, text: wrong_tests(page, text, tests))

    def test_named_variables_exist(self) -> None:
        known = sources()
        self.check_all(lambda page, text: wrong_variables(page, text, known))

    def test_named_flags_exist(self) -> None:
        if not RONDO:
            self.skipTest("no command line was given")
        self.check_all(wrong_flags)

    def test_the_number_of_verbs(self) -> None:
        verbs = re.search(r"enum class Verb[^{]*\{(.*?)\}", read("include/rondo/schedule.h"), re.S)[1].count("=")
        table = re.search(r"^\| Verb \|.*?\n\n", read("docs/architecture.md"), re.S | re.M)[0]
        words = "zero one two three four five six seven eight nine ten eleven twelve".split()
        self.assertEqual(verbs, len(re.findall(r"\| `\w+` \|", table)))
        self.assertEqual([words[verbs]], re.findall(r"calls (\w+) verbs", read("README.md")))

    def test_the_cost_of_traces(self) -> None:
        page, result = read("docs/tracing.md"), json.loads(read("bench/results/trace_cost.json"))
        sizes = {"8 B": 8, "512 B": 512, "32 KiB": 1 << 15, "256 KiB": 1 << 18, "2 MiB": 1 << 21, "32 MiB": 1 << 25}
        points = {(p["algorithm"], p["bytes"]): p for p in result["all_reduce"]}
        rows = re.findall(r"^\| (planner|ring)(?:'s choice)?, ([^|]+) \| ([\d,]+) ns \| ([\d,]+) ns \|.*\| (\S+) % \|$",
                          page, re.M)
        self.assertEqual(12, len(rows))
        for algorithm, size, off, on, added in rows:
            point = points[algorithm, sizes[size]]
            self.assertEqual((off, on, added), (f"{point['off_ns']:,.0f}", f"{point['on_ns']:,.0f}",
                                                f"{point['added_percent']:.1f}"), f"{algorithm}, {size}")
        self.assertEqual([f"{result['alone']['full_record_ns']:.0f}"],
                         re.findall(r"A full record by itself takes (\d+) ns", page))

    def test_what_the_planners_grid_says(self) -> None:
        page = read("docs/planner.md")
        rows = re.findall(r"`results/(planner_grid\w*\.json)`\) \| (\d+) \| ([\d.]+) % \| ([\d.]+) % \|", page)
        self.assertEqual(3, len(rows))
        for file, points, within, first in rows:
            result = json.loads(read(f"bench/results/{file}"))
            self.assertEqual((int(points), within, first),
                             (len(result["points"]), f"{100 * result['share_within_15_percent']:.1f}",
                              f"{100 * result['share_at_first_measurement']:.1f}"), file)

    def test_a_machine_is_called_idle_only_where_its_load_says_so(self) -> None:
        page = re.sub(r"\s+", " ", read("bench/README.md"))
        for file in glob.glob("bench/results/*.json", root_dir=TOP):
            load, name = json.loads(read(file)).get("load_average_before", 0), os.path.basename(file)
            if load > 0.3:
                self.assertEqual([], re.findall(rf"`{name}` is of \d+ rounds on an idle", page))


class TheChecks(unittest.TestCase):
    """The checks find errors."""

    def test_links(self) -> None:
        text = "[a](no.md) [b](planner.md#no-such) [c](planner.md#calibration) [d](https://x.y/z)"
        self.assertEqual(2, len(wrong_links("docs/x.md", text)))

    def test_paths(self) -> None:
        self.assertEqual(1, len(wrong_paths("docs/x.md", "`src/api/no.cc` `src/api/*.cc` `src/algorithms/NAME.h`")))

    def test_tests_and_variables(self) -> None:
        self.assertEqual(1, len(wrong_tests("x.md", "`no_such_test`, `core_split_test`", {"core_split_test"})))
        self.assertEqual(1, len(wrong_variables("x.md", "RONDO_ALGO RONDO_NO_SUCH", "")))

    def test_flags(self) -> None:
        if not RONDO:
            self.skipTest("no command line was given")
        text = "    rondo perf all_reduce --ranks 4 -b 8 --no-such\n`rondo trace export x -o y` `rondo nothing`\n"
        self.assertEqual(["x.md: rondo perf --no-such: there is no such flag",
                          "x.md: rondo nothing: there is no such command"], wrong_flags("x.md", text))


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        RONDO = sys.argv.pop(1)
    unittest.main()

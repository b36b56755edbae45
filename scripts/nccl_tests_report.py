#!/usr/bin/env python3
"""Makes one table and one plot from the output of nccl-tests with two libraries.

Each file is the output of one run and is named TEST.LIBRARY.txt (all_reduce.rondo.txt). Columns are found by their
names in nccl-tests' header line, so that versions with more columns are read too. Exit status: 0; 1 a run has no result
line or wrong values; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One size: times in us and bus bandwidths in GB/s, out of place and in place."""

    size_bytes: int
    dtype: str
    redop: str
    time_us: tuple[float, float]
    busbw: tuple[float, float]
    num_wrong: tuple[int, int]  # 0 if nothing was compared


@dataclass(frozen=True)
class Run:
    test: str
    library: str
    rows: list[Row]


def positions(header: Sequence[str], name: str) -> tuple[int, int]:
    """The two positions of a column, out of place and in place. The same twice if one of them is missing."""
    found = [i for i, column in enumerate(header) if column == name]
    if not found:
        raise ValueError(f"the header has no column {name}: {' '.join(header)}")
    return found[0], found[-1]


def parse(lines: Iterable[str]) -> list[Row]:
    """The result lines of one run. ValueError if they do not fit their header."""
    header: list[str] | None = None
    rows = []
    for line in lines:
        words = line.lstrip("#").split()
        if line.startswith("#"):
            if words[:2] == ["size", "count"]:
                header = words
            continue
        if not words or not words[0].isdigit():
            continue  # other output of a library or mpirun
        if header is None:
            raise ValueError("a result line stands before the header")
        if len(words) != len(header):
            raise ValueError(f"{len(words)} columns instead of {len(header)}: {line.strip()}")
        pair = {name: [words[i] for i in positions(header, name)] for name in ("time", "busbw", "#wrong")}
        rows.append(
            Row(
                size_bytes=int(words[0]),
                dtype=words[header.index("type")],
                redop=words[header.index("redop")],
                time_us=(float(pair["time"][0]), float(pair["time"][1])),
                busbw=(float(pair["busbw"][0]), float(pair["busbw"][1])),
                num_wrong=tuple(0 if text == "N/A" else int(float(text)) for text in pair["#wrong"]),  # type: ignore
            )
        )
    return rows


def read_run(path: Path) -> Run:
    test, library = path.name.removesuffix(".txt").rsplit(".", 1)
    with path.open(encoding="utf-8", errors="replace") as lines:
        return Run(test, library, parse(lines))


def table(runs: Sequence[Run]) -> str:
    """Sizes down, libraries across: time and bus bandwidth out of place; for two libraries also the ratio of times."""
    lines = []
    for test in dict.fromkeys(run.test for run in runs):
        of_test = sorted((run for run in runs if run.test == test), key=lambda run: run.library)
        names = [run.library for run in of_test]
        columns = "".join(f"{f'{name} us':>14}{f'{name} GB/s':>14}" for name in names)
        lines.append(f"{test:<16}{'bytes':>12}{columns}{'times' if len(names) == 2 else '':>8}")
        by_size = [{row.size_bytes: row for row in run.rows} for run in of_test]
        for size in sorted(set().union(*by_size)):
            cells = [rows.get(size) for rows in by_size]
            text = "".join(f"{c.time_us[0]:>14.2f}{c.busbw[0]:>14.2f}" if c else f"{'-':>14}{'-':>14}" for c in cells)
            both = len(cells) == 2 and cells[0] and cells[1] and cells[1].time_us[0] > 0
            ratio = f"{cells[0].time_us[0] / cells[1].time_us[0]:>8.2f}" if both else ""  # type: ignore[union-attr]
            lines.append(f"{'':<16}{size:>12}{text}{ratio}")
    return "\n".join(lines)


def plot(runs: Sequence[Run], to: Path) -> None:
    import matplotlib  # only needed to draw

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tests = list(dict.fromkeys(run.test for run in runs))
    figure, axes = pyplot.subplots(1, len(tests), figsize=(4 * len(tests), 4), squeeze=False)
    for axis, test in zip(axes[0], tests):
        for run in sorted((run for run in runs if run.test == test), key=lambda run: run.library):
            axis.plot([r.size_bytes for r in run.rows], [r.busbw[0] for r in run.rows], marker=".", label=run.library)
        axis.set(title=test, xlabel="bytes", ylabel="bus bandwidth, GB/s")
        axis.set_xscale("log", base=2)
        axis.set_yscale("symlog", linthresh=0.01)
        axis.legend()
    figure.tight_layout()
    figure.savefig(to, dpi=120)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, help="draw bus bandwidths to this file (needs matplotlib)")
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    runs, failed = [], False
    for path in options.files:
        try:
            run = read_run(path)
        except ValueError as why:
            print(f"{path}: {why}")
            failed = True
            continue
        wrong = sum(sum(row.num_wrong) for row in run.rows)
        if not run.rows or wrong:
            print(f"{path}: {f'{wrong} wrong values' if wrong else 'no result line'}")
            failed = True
        runs.append(run)
    print(table(runs))
    if options.plot and runs:
        plot(runs, options.plot)
        print(f"plot: {options.plot}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

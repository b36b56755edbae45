#!/usr/bin/env python3
"""Benchmarks with rounds: confidence intervals that are known, how often they contain the true value, and rounds that
are repeated until a placement of the CPUs has enough pairs."""

import math
import random
import sys
import time
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from compare import campaign  # noqa: E402
from compare.contenders import CONTENDERS  # noqa: E402
from compare.launch import Launch, LoopSettings  # noqa: E402
from compare.verdict import Results, size_name  # noqa: E402
from compare.statistics_of_pairs import Interval, median_of, ratio_of_medians  # noqa: E402


class MedianOf(unittest.TestCase):
    def test_order_statistics(self) -> None:
        self.assertEqual(median_of([float(x) for x in range(40)]), Interval(19.5, 13.0, 26.0))
        self.assertEqual(median_of([3.0, 1.0, 2.0]), Interval(2.0, 1.0, 3.0))  # too few: minimum and maximum

    def test_holds_the_truth_in_95_of_100_cases(self) -> None:
        draw, held = random.Random(1), 0
        for _ in range(1000):
            m = median_of([draw.expovariate(1) for _ in range(30)])
            held += m.low <= math.log(2) <= m.high
        self.assertGreater(held, 935)
        self.assertLess(held, 990)


class RatioOfMedians(unittest.TestCase):
    def test_of_constants_and_of_nothing(self) -> None:
        self.assertEqual(ratio_of_medians([(1.0, 4.0)] * 5), Interval(0.25, 0.25, 0.25))
        self.assertEqual(ratio_of_medians([(1.0, 0.0)] * 5).median, math.inf)
        self.assertEqual(ratio_of_medians([(-1.0, 4.0)] * 5).median, -0.25)

    def test_holds_the_truth_where_the_first_is_near_zero(self) -> None:
        draw, held = random.Random(2), 0
        for _ in range(200):
            m = ratio_of_medians([(draw.gauss(0.5, 2), draw.gauss(10, 2)) for _ in range(30)], resamples=400)
            self.assertLessEqual(m.low, m.high)
            held += m.low <= 0.05 <= m.high
        self.assertGreater(held, 180)
        self.assertLess(held, 200)

    def test_is_the_same_for_the_same_rounds(self) -> None:
        rounds = [(float(i % 7), float(5 + i % 3)) for i in range(30)]
        self.assertEqual(ratio_of_medians(rounds), ratio_of_medians(rounds))


class Placements(unittest.TestCase):
    """The CPUs of the contenders' n-th launches are at these places. A peer's name gives its time."""

    POINT = ("all_reduce", 4096)
    US = {"rondo": 1.0, "ompi": 2.0, "ompi-sm": 3.0, "ompi-nocma": 4.0}

    def run_with(self, places: list[str], wanted: int, seconds: float = 60) -> tuple[Results, int]:
        launches: dict[str, int] = {}

        def launch(contender, _program_dir, _nranks, points, _loop, _limit_s) -> Launch:
            number = launches[contender.name] = launches.get(contender.name, -1) + 1
            place = places[number % len(places)] if contender.is_peer else "near"
            us = self.US[contender.name]
            record = {"median_us": us, "placement": place, "moved": False, "disturbed": False}
            return Launch({point: dict(record) for point in points})

        plan = campaign.Plan(
            Path(), tuple(CONTENDERS[n] for n in self.US), ("all_reduce",), (4096,), LoopSettings(), rounds=2,
            finalists=2, screen_max_bytes=4096, pairs_of_a_placement=wanted,
        )
        results = Results()
        with (
            mock.patch.object(campaign, "run", launch),
            mock.patch.object(campaign, "handover", lambda _: {}),
            mock.patch.object(campaign, "progress", lambda _: None),
        ):
            made = campaign.Campaign(plan, 2, results, time.monotonic() + seconds)
            made.screen()
            return results, made.duel()

    def test_points_are_repeated_until_a_placement_has_enough_pairs(self) -> None:
        results, rounds = self.run_with(["near", "far", "far"], wanted=3)
        ratio = results.by_placement((2, *self.POINT), "rondo", "ompi")["near"]
        self.assertEqual((ratio.pairs, ratio.median), (3, 0.5))
        self.assertGreater(rounds, 2)
        finalists = [len(results.rounds_of((2, *self.POINT), name)) for name in ("ompi", "ompi-sm")]
        self.assertEqual(finalists, [rounds, rounds], "all finalists take part")

    def test_without_the_option_there_are_no_more_rounds(self) -> None:
        self.assertEqual(self.run_with(["far"], wanted=0)[1], 2)

    def test_the_time_ends_the_repeats(self) -> None:
        results, _ = self.run_with(["far"], wanted=3, seconds=0.3)
        self.assertIn("fewer than 3 undisturbed pairs", results.notes[-1])
        self.assertEqual(results.by_placement((2, *self.POINT), "rondo", "ompi"), {})

    def test_sizes_have_different_names(self) -> None:
        names = [size_name(b) for b in (4096, 5000, 1 << 20, 1900000)]
        self.assertEqual(names, ["4 KiB", "5000 B", "1 MiB", "1900000 B"])


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Confidence intervals of benchmarks with rounds: known intervals, and how often they contain the true value."""

import math
import random
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
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


if __name__ == "__main__":
    unittest.main()

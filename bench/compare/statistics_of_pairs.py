"""Medians of measurements in rounds, and of ratios of pairs from one round and one placement of the CPUs, with 95 %
intervals."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Ratio:
    median: float
    low: float  # smallest and largest pair
    high: float
    ci_high: (
        float  # upper end of the 95 % interval of the median (order statistics; the largest below 9 pairs)
    )
    pairs: int

    @property
    def faster(self) -> bool:
        """The rule for "faster": at most 0.95, or at most 1.0 including its confidence interval."""
        return self.median <= 0.95 or (self.pairs > 1 and self.ci_high <= 1.0)


def _ci_high_index(n: int) -> int:
    """Index of the smallest order statistic that is below the median with at most 2.5 %; the last if there is none."""
    for k in range(n // 2, n):
        if sum(math.comb(n, i) for i in range(k + 1, n + 1)) / 2**n <= 0.025:
            return k
    return n - 1


def ratio_of_pairs(pairs: list[float]) -> Ratio | None:
    if not pairs:
        return None
    ordered = sorted(pairs)
    return Ratio(
        median(ordered), ordered[0], ordered[-1], ordered[_ci_high_index(len(ordered))], len(ordered)
    )


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(math.log(v) for v in values) / len(values))


@dataclass(frozen=True)
class Interval:
    """A median and the ends of its 95 % interval."""

    median: float
    low: float
    high: float


def median_of(values: list[float]) -> Interval:
    """By order statistics; the least and the largest if there are fewer than 6 values. Needs one value."""
    ordered = sorted(values)
    k = _ci_high_index(len(ordered))
    return Interval(median(ordered), ordered[len(ordered) - 1 - k], ordered[k])


def ratio_of_medians(rounds: list[tuple[float, float]], resamples: int = 4000) -> Interval:
    """The median of the first members over the median of the second ones, for differences near zero, whose ratios in
    single rounds are meaningless. Interval by deterministic bootstrap over rounds. Infinite if the second median is not
    positive."""

    def ratio(drawn: list[tuple[float, float]]) -> float:
        below = median(b for _, b in drawn)
        return median(a for a, _ in drawn) / below if below > 0 else math.inf

    draw = random.Random(1)
    ratios = sorted(ratio(draw.choices(rounds, k=len(rounds))) for _ in range(resamples))
    return Interval(ratio(rounds), ratios[int(0.025 * resamples)], ratios[math.ceil(0.975 * resamples) - 1])

"""Medians of paired ratios: both members of a pair come from the same round and the same placement of the CPUs."""

from __future__ import annotations

import math
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
        """The house rule: at most 0.95, or at most 1.0 with its confidence interval."""
        return self.median <= 0.95 or (self.pairs > 1 and self.ci_high <= 1.0)


def _ci_high_index(n: int) -> int:
    """Index of the smallest order statistic that lies below the median with at most 2.5 %; the last when none does."""
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

"""The order of a run: screen all peers, then let rondo and each point's best peers alternate over several rounds.

Screening (round 0) measures every peer setting briefly at every size up to `screen_max_bytes`. Then each round measures
each point once, for rondo and for the point's `finalists` best peers of the screening (larger sizes take the finalists
of the largest screened one), in an order that changes from round to round. Large sizes have fewer rounds. No round
begins when the time of a number of processes is spent.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from .contenders import CONTENDERS, Contender, points_of
from .floors import handover
from .launch import LoopSettings, Point, run
from .verdict import Results, size_name

COLLAPSED = (
    20.0  # a peer this many times slower than the best at 8 B is dropped at this number of processes
)
LARGE_BYTES = 16 << 20
LARGE_ROUNDS = 3


@dataclass(frozen=True)
class Plan:
    program_dir: Path
    contenders: tuple[Contender, ...]
    collectives: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    loop: LoopSettings
    rounds: int
    finalists: int
    screen_max_bytes: int
    large_rounds: int = LARGE_ROUNDS
    pairs_of_a_placement: int = 0


def progress(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


class Campaign:
    """All measurements at one number of processes, added to shared Results."""

    def __init__(self, plan: Plan, nranks: int, results: Results, deadline_s: float) -> None:
        self.plan, self.nranks, self.results, self.deadline_s = plan, nranks, results, deadline_s
        self.points: list[Point] = points_of(plan.collectives, plan.sizes_bytes, nranks)
        self.peers = [c for c in plan.contenders if c.is_peer]
        self.own = [c for c in plan.contenders if not c.is_peer]
        self.versions: dict[str, str] = {}

    def _measure(
        self,
        contender: Contender,
        points: list[Point],
        round_number: int,
        loop: LoopSettings,
        results: Results | None = None,
    ) -> None:
        """Launches once and adds the measurements to `results` (default: the run's)."""
        results = results or self.results
        wanted = [p for p in points if contender.measures(self.nranks, *p)]
        if not wanted:
            return
        start = time.monotonic()
        limit_s = max(300, 6 * len(wanted))
        launch = run(contender, self.plan.program_dir, self.nranks, wanted, loop, limit_s)
        for (collective, size), record in launch.records.items():
            results.add((self.nranks, collective, size), contender.name, round_number, record)
        for (collective, size), why in launch.errors.items():
            results.errors.append((self.nranks, contender.name, collective, size, why))
        if launch.version:
            self.versions[contender.name] = launch.version
        for trouble in launch.trouble:
            progress(f"  {contender.name}: {trouble}")
        progress(
            f"{self.nranks} processes, round {round_number}, {contender.name}: {len(launch.records)} of "
            f"{len(wanted)} points in {time.monotonic() - start:.1f} s"
        )

    def _drop_collapsed(self, loop: LoopSettings) -> list[Contender]:
        """Drops peers that spin for whole time slices without a core for each rank. One point shows them."""
        point = ("all_reduce", 8)
        if self.nranks == 2:
            return self.peers
        probe = Results()  # not part of the run's results
        for peer in self.peers:
            self._measure(peer, [point], 0, loop, probe)
        times = {p.name: probe.median_us((self.nranks, *point), p.name) for p in self.peers}
        known = [t for t in times.values() if t is not None]
        kept = [p for p in self.peers if (t := times[p.name]) is None or t <= COLLAPSED * min(known)]
        for peer in self.peers:
            if peer not in kept:
                self.results.notes.append(
                    f"{peer.name} with {self.nranks} processes: {times[peer.name]:.0f} us for an "
                    f"8 B all-reduce; not measured further"
                )
        return kept

    def screen(self) -> None:
        loop = replace(self.plan.loop, repetitions=3, repetition_us=1000, point_s=0.5, attempts=1)
        small = [p for p in self.points if p[1] <= self.plan.screen_max_bytes]
        self.peers = self._drop_collapsed(loop)
        for peer in self.peers:
            self._measure(peer, small, 0, loop)

    def _finalists(self, point: Point) -> set[str]:
        collective, size = point
        screened = min(size, self.plan.screen_max_bytes)
        known = [b for b in self.results.sizes(self.nranks, collective) if b <= screened]
        key = (self.nranks, collective, max(known, default=size))
        candidates = [
            (record[0]["median_us"], name)
            for name, record in self.results.samples.get(key, {}).items()
            if 0 in record and CONTENDERS[name].is_peer
        ]
        return {name for _, name in sorted(candidates)[: self.plan.finalists]}

    def _order(self, round_number: int) -> list[Contender]:
        order = self.own + self.peers
        random.Random(1000 * self.nranks + round_number).shuffle(order)
        return order

    def _points_of_round(self, round_number: int) -> list[Point]:
        return [p for p in self.points if p[1] < LARGE_BYTES or round_number <= self.plan.large_rounds]

    def duel(self) -> int:
        """Runs the rounds and returns their number. The first runs whatever the time."""
        finalists = {point: self._finalists(point) for point in self.points}
        next_s = 0.0  # expected time of the next round
        for number in range(1, self.plan.rounds + 1):
            start = time.monotonic()
            if number > 1 and start + next_s > self.deadline_s:
                self.results.notes.append(
                    f"{self.nranks} processes: {number - 1} rounds, then the time was spent"
                )
                return number - 1
            self.results.handovers.append(
                {"nranks": self.nranks, "round": number, **handover(self.plan.program_dir)}
            )
            points = self._points_of_round(number)
            for contender in self._order(number):
                mine = [p for p in points if not contender.is_peer or contender.name in finalists[p]]
                self._measure(contender, mine, number, self.plan.loop)
            next_s = time.monotonic() - start
            if number == self.plan.large_rounds:
                next_s /= 2  # the large sizes are done
        return self._hold_placement(finalists)

    def _hold_placement(self, finalists: dict[Point, set[str]]) -> int:
        """Repeats the points that have too few pairs of one placement. Returns the number of the last round."""
        number, wanted = self.plan.rounds, self.plan.pairs_of_a_placement
        while left := [p for p in self.points if self._most_pairs(p) < wanted]:
            if time.monotonic() > self.deadline_s:
                names = ", ".join(f"{c} {size_name(b)}" for c, b in left)
                self.results.notes.append(
                    f"{self.nranks} processes: fewer than {wanted} undisturbed pairs in each placement: {names}"
                )
                break
            number += 1
            for contender in self._order(number):
                mine = [p for p in left if contender.name == "rondo" or contender.name in finalists[p]]
                self._measure(contender, mine, number, self.plan.loop)
        return number

    def _most_pairs(self, point: Point) -> int:
        key = (self.nranks, *point)
        peer = self.results.best_peer(key)
        if peer is None or not self.results.rounds_of(key, "rondo"):
            return self.plan.pairs_of_a_placement  # nothing to compare
        ratios = self.results.by_placement(key, "rondo", peer)
        return max((ratio.pairs for ratio in ratios.values()), default=0)


def describe_plan(plan: Plan, rank_counts: list[int]) -> str:
    sizes = ", ".join(size_name(b) for b in plan.sizes_bytes)
    return (
        f"processes {rank_counts}; {', '.join(plan.collectives)}; sizes {sizes}; "
        f"{len(plan.contenders)} contenders; {plan.rounds} rounds"
    )


def run_all(
    plan: Plan, rank_counts: list[int], results: Results, minutes: float, before_rounds: Callable[[int], None]
) -> tuple[dict[int, int], dict[str, str]]:
    """Runs every number of processes within the minutes. Calls before_rounds(nranks) between screening and rounds."""
    end_s = time.monotonic() + 60 * minutes
    weights = {2: 4.0, 4: 5.0}
    rounds_done: dict[int, int] = {}
    versions: dict[str, str] = {}
    for i, nranks in enumerate(rank_counts):
        left = rank_counts[i:]
        share = weights.get(nranks, 6.0) / sum(weights.get(n, 6.0) for n in left)
        now = time.monotonic()
        campaign = Campaign(plan, nranks, results, now + share * max(0.0, end_s - now))
        campaign.screen()
        before_rounds(nranks)
        rounds_done[nranks] = campaign.duel()
        versions |= campaign.versions
    return rounds_done, versions

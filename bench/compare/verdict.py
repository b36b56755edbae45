"""From samples to verdicts: a point's best peer, paired ratios, and the targets as PASS or FALLS SHORT."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from .contenders import COLLECTIVES, CONTENDERS, CORE_COLLECTIVES
from .floors import Reference
from .statistics_of_pairs import Ratio, geometric_mean, ratio_of_pairs

KIB, MIB = 1 << 10, 1 << 20
Key = tuple[int, str, int]  # nranks, collective, bytes


@dataclass
class Results:
    """samples[key][contender][round] is a record of the timing loop; round 0 is the screening."""

    samples: dict[Key, dict[str, dict[int, dict[str, Any]]]] = field(default_factory=dict)
    errors: list[tuple[int, str, str, int, str]] = field(
        default_factory=list
    )  # nranks, contender, point, text
    handovers: list[dict[str, Any]] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, key: Key, contender: str, round_number: int, record: dict[str, Any]) -> None:
        self.samples.setdefault(key, {}).setdefault(contender, {})[round_number] = record

    def rounds_of(self, key: Key, contender: str) -> dict[int, dict[str, Any]]:
        """The rounds that count: those after the screening, or the screening if there are none."""
        rounds = self.samples.get(key, {}).get(contender, {})
        return {k: r for k, r in rounds.items() if k > 0} or rounds

    def median_us(self, key: Key, contender: str) -> float | None:
        """Median over the undisturbed rounds, or over all rounds if none is undisturbed."""
        rounds = list(self.rounds_of(key, contender).values())
        steady = [r for r in rounds if not r["moved"] and not r["disturbed"]]
        return median(r["median_us"] for r in steady or rounds) if rounds else None

    def best_peer(self, key: Key) -> str | None:
        """The peer with the least median among those measured beside rondo, else among the screened ones."""
        peers = [name for name in self.samples.get(key, {}) if CONTENDERS[name].is_peer]
        duelled = [name for name in peers if any(k > 0 for k in self.samples[key][name])]
        most = max((len(self.rounds_of(key, name)) for name in duelled), default=0)
        steady = [name for name in duelled if 2 * len(self.rounds_of(key, name)) >= most]
        return min(steady or peers, key=lambda name: self.median_us(key, name) or float("inf"), default=None)

    def paired(self, key: Key, contender: str, other: str) -> Ratio | None:
        """contender over other, by rounds. Uses disturbed pairs and unequal placements only if there are no others."""
        mine, theirs = self.rounds_of(key, contender), self.rounds_of(key, other)
        common = sorted(set(mine) & set(theirs))
        steady = [ratio for ratios in self._steady_pairs(mine, theirs).values() for ratio in ratios]
        return ratio_of_pairs(steady or [mine[k]["median_us"] / theirs[k]["median_us"] for k in common])

    def by_placement(self, key: Key, contender: str, other: str) -> dict[str, Ratio]:
        """As paired, for each placement of the CPUs. Only undisturbed pairs of equal placement."""
        pairs = self._steady_pairs(self.rounds_of(key, contender), self.rounds_of(key, other))
        return {name: ratio for name, of in pairs.items() if (ratio := ratio_of_pairs(of)) is not None}

    @staticmethod
    def _steady_pairs(
        mine: dict[int, dict[str, Any]], theirs: dict[int, dict[str, Any]]
    ) -> dict[str, list[float]]:
        """The ratios of undisturbed pairs of equal placement, by that placement."""
        found: dict[str, list[float]] = {}
        for k in sorted(set(mine) & set(theirs)):
            undisturbed = not any(r[k][what] for r in (mine, theirs) for what in ("moved", "disturbed"))
            if undisturbed and mine[k]["placement"] == theirs[k]["placement"]:
                found.setdefault(mine[k]["placement"], []).append(mine[k]["median_us"] / theirs[k]["median_us"])
        return found

    def handover(self, name: str) -> float | None:
        values = [h[name] for h in self.handovers if h.get(name)]
        return median(values) if values else None

    def one_way_us(self) -> float | None:
        values = [v for v in (self.handover("one_way_ns"), *(r.one_way_ns for r in self.references)) if v]
        return median(values) / 1000 if values else None

    def reference_us(self, size_bytes: int) -> float | None:
        values = [r.private_us[size_bytes] for r in self.references if size_bytes in r.private_us]
        return median(values) if values else None

    def bound_us(self, size_bytes: int, variants: tuple[str, ...]) -> float | None:
        values = []
        for r in self.references:
            found = [r.bound_us[v][size_bytes] for v in variants if size_bytes in r.bound_us.get(v, {})]
            if found:
                values.append(min(found))
        return median(values) if values else None

    def share_disturbed(self) -> float:
        """The share of the samples that other work or a moved CPU has disturbed in every attempt."""
        every = [
            r
            for contenders in self.samples.values()
            for rounds in contenders.values()
            for r in rounds.values()
        ]
        return sum(r["moved"] or r["disturbed"] for r in every) / len(every) if every else 0.0

    def sizes(self, nranks: int, collective: str) -> list[int]:
        return sorted(b for n, c, b in self.samples if n == nranks and c == collective)


@dataclass(frozen=True)
class Verdict:
    target: str
    passed: bool | None  # None: reported, not judged
    text: str

    def line(self) -> str:
        word = {True: "PASS", False: "FALLS SHORT", None: "REPORTED"}[self.passed]
        return f"{word:11}  {self.target}: {self.text}"


def size_name(size_bytes: int) -> str:
    for unit, factor in (("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def _limits(target: str, rows: list[tuple[int, float, float]]) -> list[Verdict]:
    """Rows of (bytes, value, limit), all of which must hold. Names the worst size and the sizes that miss."""
    if not rows:
        return []
    misses = [(b, v, lim) for b, v, lim in rows if v > lim]
    worst = max(rows, key=lambda row: row[1] / row[2])
    text = f"worst at {size_name(worst[0])}: {worst[1]:.3g} against a limit of {worst[2]:.3g}"
    if misses:
        text += "; misses at " + ", ".join(f"{size_name(b)} ({v:.3g})" for b, v, _ in misses)
    return [Verdict(target, not misses, text)]


def _against_peers(results: Results, nranks: int, collective: str) -> list[Verdict]:
    slower, speedups, unpaired = [], {}, []
    for size in results.sizes(nranks, collective):
        key = (nranks, collective, size)
        peer = results.best_peer(key)
        if peer is None:
            continue
        ratio = results.paired(key, "rondo", peer)
        if ratio is None:
            unpaired.append(size)
            continue
        speedups[size] = 1 / ratio.median
        if not ratio.faster:
            slower.append(f"{size_name(size)} ({ratio.median:.2f} of {peer}'s time)")
    if not speedups:
        return []
    letter = "a" if nranks == 2 else "e"
    text = f"{len(speedups) - len(slower)} of {len(speedups)} sizes" + (
        "; not at " + ", ".join(slower) if slower else ""
    )
    if unpaired:
        text += "; not measured beside it: " + ", ".join(map(size_name, unpaired))
    verdicts = [
        Verdict(
            f"({letter}) {nranks} processes, {collective}: faster than the best peer at every size",
            not slower and not unpaired,
            text,
        )
    ]
    low, high, limit = (KIB, MIB, 1.5) if nranks == 2 else (0, 1 << 62, 1.3)
    in_range = [v for size, v in speedups.items() if low <= size <= high]
    if in_range:
        mean = geometric_mean(in_range)
        where = "from 1 KiB to 1 MiB" if nranks == 2 else "over all sizes"
        verdicts.append(
            Verdict(
                f"({letter}) {nranks} processes, {collective}: geometric mean {where} >= {limit}x",
                mean >= limit if collective in CORE_COLLECTIVES else None,
                f"{mean:.2f}x",
            )
        )
    return verdicts


def _against_floors(results: Results) -> list[Verdict]:
    verdicts: list[Verdict] = []
    one_way_us = results.one_way_us()
    smallest = results.median_us((2, "all_reduce", 8), "rondo")
    if one_way_us and smallest:
        verdicts += [
            Verdict(
                "(b) 2 processes, 8 B all-reduce <= 1.4x the one-way hand-over of a cache line",
                smallest <= 1.4 * one_way_us,
                f"{smallest * 1000:.0f} ns, {smallest / one_way_us:.2f}x of {one_way_us * 1000:.0f} ns",
            )
        ]
    sizes = results.sizes(2, "all_reduce")
    for name, low, high, limit in (
        ("up to 32 KiB", 0, 32 * KIB, 1.2),
        ("above 32 KiB", 32 * KIB + 1, 1 << 62, 1.05),
    ):
        rows = [
            (b, us / ref, limit)
            for b in sizes
            if low <= b <= high
            and (us := results.median_us((2, "all_reduce", b), "rondo"))
            and (ref := results.reference_us(b))
        ]
        verdicts += _limits(f"(c) 2 processes, all-reduce <= {limit}x the reference {name}", rows)
    for name, variants in (
        ("in place, fused", ("inplace fused",)),
        ("the best in place", ("inplace fused", "inplace fused nt")),
    ):
        rows = [
            (b, us / (1.5 * bound + 2 * one_way_us), 1.0)
            for b in sizes
            if one_way_us
            and (us := results.median_us((2, "all_reduce", b), "rondo-registered"))
            and (bound := results.bound_us(b, variants))
        ]
        verdicts += _limits(
            f"(c) 2 processes, registered all-reduce over (1.5x bound ({name}) + two hand-overs) <= 1", rows
        )
    for collective in ("reduce_scatter", "all_gather"):
        rows = [
            (b, us / ref, 0.65)
            for b in results.sizes(2, collective)
            if b >= MIB
            and (us := results.median_us((2, collective, b), "rondo"))
            and (ref := results.reference_us(b))
        ]
        verdicts += _limits(
            f"(c) 2 processes, {collective} <= 0.65x the reference's all-reduce from 1 MiB", rows
        )
    return verdicts


def _ring(results: Results) -> list[Verdict]:
    verdicts = []
    for nranks in sorted({key[0] for key in results.samples}):
        rows = []
        for size in results.sizes(nranks, "all_reduce"):
            ratio = results.paired((nranks, "all_reduce", size), "rondo-ring", "rondo")
            if ratio and size >= 16 * MIB:
                rows.append((size, ratio.median, 1.3))
        for v in _limits(
            f"(d) {nranks} processes, ring forced over the planner's choice <= 1.3 from 16 MiB", rows
        ):
            verdicts.append(v if nranks == 2 else Verdict(v.target, None, v.text))
    return verdicts


def _yield(results: Results) -> list[Verdict]:
    yield_us = results.handover("yield_us")
    rows = [
        (b, us / yield_us, 2.0)
        for b in results.sizes(4, "all_reduce")
        if b <= KIB and yield_us and (us := results.median_us((4, "all_reduce", b), "rondo"))
    ]
    return _limits("(e) 4 processes, all-reduce up to 1 KiB <= 2x one hand-over by sched_yield", rows)


def evaluate(results: Results, cold: bool) -> list[Verdict]:
    """All targets that can be judged from the samples. Floors are hot figures, so cold runs skip them."""
    verdicts = []
    ranks = sorted({key[0] for key in results.samples})
    for nranks in ranks:
        for collective in COLLECTIVES:
            verdicts += _against_peers(results, nranks, collective)
    if not cold:
        verdicts += _against_floors(results) + _yield(results)
    return verdicts + _ring(results)

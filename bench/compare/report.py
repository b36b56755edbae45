"""The readable table and the committed JSON (schema: bench/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .contenders import COLLECTIVES, CONTENDERS
from .verdict import Results, Verdict, size_name

SCHEMA = "rondo-compare-peers-1"
COLUMNS = (
    "contender",
    "nranks",
    "collective",
    "bytes",
    "round",
    "median_us",
    "min_us",
    "max_us",
    "inner",
    "repetitions",
    "placement",
    "one_way_ns_before",
    "one_way_ns_after",
    "moved",
    "disturbed",
    "foreign_s",
    "wall_s",
    "attempts",
)


def _cell(value: float | None, suffix: str = "") -> str:
    if value is None:
        return "-"
    return (f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}") + suffix


def _table_of(results: Results, nranks: int, collective: str) -> list[str]:
    with_floors = nranks == 2 and collective == "all_reduce"
    head = f"{'size':>8} {'rondo us':>10} {'best peer us':>12}  {'ratio [min..max] pairs':25}"
    if with_floors:
        head += f" {'ref us':>9} {'/ref':>6} {'registered':>10} {'bound us':>9}"
    lines = ["", f"{collective}, {nranks} processes", head + "  best peer"]
    for size in results.sizes(nranks, collective):
        key = (nranks, collective, size)
        us, peer = results.median_us(key, "rondo"), results.best_peer(key)
        ratio = results.paired(key, "rondo", peer) if peer and us else None
        shown = f"{ratio.median:.2f} [{ratio.low:.2f}..{ratio.high:.2f}] {ratio.pairs}" if ratio else "-"
        peer_us = results.median_us(key, peer) if peer else None
        line = f"{size_name(size):>8} {_cell(us):>10} {_cell(peer_us):>12}  {shown:25}"
        if with_floors:
            reference = results.reference_us(size)
            line += (
                f" {_cell(reference):>9} {_cell(us / reference if us and reference else None):>6}"
                f" {_cell(results.median_us(key, 'rondo-registered')):>10}"
                f" {_cell(results.bound_us(size, ('inplace fused',))):>9}"
            )
        lines.append(f"{line}  {peer or '-'}")
    return lines


def text(results: Results, machine: dict[str, Any], verdicts: list[Verdict]) -> str:
    lines = [
        f"{machine['cpu']}, {machine['cpus']} CPU cores; placement met: {', '.join(placements(results))}; "
        f"{100 * results.share_disturbed():.0f} % of the samples disturbed"
    ]
    for nranks in sorted({key[0] for key in results.samples}):
        for collective in COLLECTIVES:
            if results.sizes(nranks, collective):
                lines += _table_of(results, nranks, collective)
    handovers = {name: results.handover(name) for name in ("one_way_ns", "exchange_ns", "yield_us")}
    lines += ["", "hand-overs: " + ", ".join(f"{k} {_cell(v)}" for k, v in handovers.items())]
    lines += [""] + [v.line() for v in verdicts]
    for nranks, contender, collective, size, why in sorted(set(results.errors)):
        lines.append(f"NOT MEASURED  {contender}, {nranks} processes, {collective} {size_name(size)}: {why}")
    if results.share_disturbed() > 0.1:
        lines.append(
            "WARNING  other work disturbed this run: repeat it on an idle machine before quoting a figure"
        )
    return "\n".join(lines + results.notes)


def placements(results: Results) -> list[str]:
    return sorted(
        {
            record["placement"]
            for contenders in results.samples.values()
            for rounds in contenders.values()
            for record in rounds.values()
        }
    )


def _settings() -> dict[str, Any]:
    return {
        c.name: {"family": c.family, "mca": dict(c.mca), "env": c.env, "program_args": list(c.program_args)}
        for c in CONTENDERS.values()
    }


def _rows(results: Results) -> list[list[Any]]:
    rows = []
    for (nranks, collective, size), contenders in sorted(results.samples.items()):
        for name, rounds in sorted(contenders.items()):
            for number, r in sorted(rounds.items()):
                rows.append(
                    [
                        name,
                        nranks,
                        collective,
                        size,
                        number,
                        r["median_us"],
                        r["min_us"],
                        r["max_us"],
                        r["inner"],
                        r["repetitions"],
                        r["placement"],
                        *r["placement_ns"],
                        r["moved"],
                        r["disturbed"],
                        r["foreign_s"],
                        r["wall_s"],
                        r["attempts"],
                    ]
                )
    return rows


def _summary(results: Results) -> list[dict[str, Any]]:
    summary = []
    for nranks, collective, size in sorted(results.samples):
        key = (nranks, collective, size)
        peer, us = results.best_peer(key), results.median_us(key, "rondo")
        ratio = results.paired(key, "rondo", peer) if peer and us else None
        entry: dict[str, Any] = {
            "nranks": nranks,
            "collective": collective,
            "bytes": size,
            "rondo_us": us,
            "best_peer": peer,
            "best_peer_us": results.median_us(key, peer) if peer else None,
            "ratio": vars(ratio) if ratio else None,
            "by_placement": {
                name: vars(r) for name, r in results.by_placement(key, "rondo", peer).items()
            }
            if peer and us
            else {},
        }
        if nranks == 2 and collective == "all_reduce":
            entry |= {
                "reference_us": results.reference_us(size),
                "bound_us": results.bound_us(size, ("inplace fused",)),
                "registered_us": results.median_us(key, "rondo-registered"),
            }
        summary.append(entry)
    return summary


def write_json(
    path: Path, results: Results, machine: dict[str, Any], run: dict[str, Any], verdicts: list[Verdict]
) -> None:
    """Writes one line per sample and summary row, so that diff can compare two files."""
    head = {
        "schema": SCHEMA,
        "machine": machine,
        "run": run,
        "settings": _settings(),
        "handovers": results.handovers,
        "references": [vars(r) for r in results.references],
        "verdicts": [vars(v) for v in verdicts],
        "errors": results.errors,
        "notes": results.notes,
    }
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for name, rows in (("summary", _summary(results)), ("samples", _rows(results))):
        parts.append(
            f'"{name}": [\n' + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]"
        )
    parts.insert(-1, f'"columns": {json.dumps(COLUMNS)}')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")

#!/usr/bin/env python3
"""Times torch.distributed's collectives on backend rondo beside Gloo, from Python, on CPU tensors.

    build/torch/venv/bin/python bench/torch_compare.py --ranks 2 4 --output bench/results/torch_NAME.json

Both backends are in the same processes and take turns: five rounds, each with one sample of every point on each. A
sample is the mean of as many calls as fit 20 ms. The result of a point is the median of the samples, and the ratio is
Gloo's median divided by rondo's. Backend `fake` does nothing: its time is the floor of Python and torch.
Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SAMPLE_S = 0.02
ROUNDS = 5
# Collectives for which a target exists come first. Sizes are of the whole tensor, in bytes.
TARGETED = ("all_reduce", "reduce_scatter", "all_gather")
OTHERS = ("broadcast", "reduce", "all_to_all", "gather", "scatter", "all_gather_list", "barrier", "send_recv")
BANDS = (("1-64 KiB", 1 << 10, 64 << 10), ("256 KiB-1 MiB", 256 << 10, 1 << 20), ("4-64 MiB", 4 << 20, 64 << 20))
Call = Callable[[], object]


def calls(collective: str, size_bytes: int, group: dist.ProcessGroup) -> Call:
    n, rank = dist.get_world_size(), dist.get_rank()
    part = max(size_bytes // 4 // n, 1)
    whole, mine = torch.ones(part * n), torch.ones(part)
    parts = [torch.ones(part) for _ in range(n)]
    on_root = parts if rank == 0 else None
    if collective == "send_recv":  # there and back between ranks 0 and 1

        def ping_pong() -> None:
            if rank == 0:
                dist.send(whole, 1, group=group)
                dist.recv(whole, 1, group=group)
            elif rank == 1:
                dist.recv(whole, 0, group=group)
                dist.send(whole, 0, group=group)

        return ping_pong
    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(mine, whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, mine, group=group),
        "broadcast": lambda: dist.broadcast(whole, 0, group=group),
        "reduce": lambda: dist.reduce(whole, 0, group=group),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole, group=group),
        "gather": lambda: dist.gather(mine, on_root, 0, group=group),
        "scatter": lambda: dist.scatter(mine, on_root, 0, group=group),
        "all_gather_list": lambda: dist.all_gather(parts, mine, group=group),
        "barrier": lambda: dist.barrier(group=group),
    }[collective]


def sample_us(call: Call, count: int) -> float:
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count * 1e6


def serve(rank: int, n: int, port: int, points: list[tuple[str, int]], results: dict) -> None:
    dist.init_process_group("rondo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=n)
    groups = {"rondo": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    for collective, size in points:
        made = {name: calls(collective, size, group) for name, group in groups.items()}
        counts = {}
        for name, call in made.items():
            once = torch.tensor([max(min(sample_us(call, 2) for _ in range(2)), 0.5)])
            dist.broadcast(once, 0)  # all ranks make as many calls
            counts[name] = max(int(SAMPLE_S * 1e6 / once.item()), 2)
        samples = {name: [] for name in made}
        for _ in range(ROUNDS):
            for name, call in made.items():
                samples[name].append(sample_us(call, counts[name]))
        if rank == 0:
            results[collective, size] = samples
    if rank == 0:
        t = torch.ones(2)
        results["async"] = [sample_us(lambda: dist.all_reduce(t, async_op=True).wait(), 1000) for _ in range(ROUNDS)]
        results["sync"] = [sample_us(lambda: dist.all_reduce(t), 1000) for _ in range(ROUNDS)]
    else:
        t = torch.ones(2)
        for _ in range(ROUNDS):
            sample_us(lambda: dist.all_reduce(t, async_op=True).wait(), 1000)
        for _ in range(ROUNDS):
            sample_us(lambda: dist.all_reduce(t), 1000)
    dist.destroy_process_group()


def fake_us(_: int, results: dict) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    t = torch.ones(2)
    results["fake async"] = [sample_us(lambda: dist.all_reduce(t, async_op=True).wait(), 5000) for _ in range(ROUNDS)]
    results["fake sync"] = [sample_us(lambda: dist.all_reduce(t), 5000) for _ in range(ROUNDS)]


def processor() -> str:
    with open("/proc/cpuinfo") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), platform.machine())


def measure(n: int, points: list[tuple[str, int]]) -> dict:
    with mp.Manager() as manager:
        shared = manager.dict()
        mp.spawn(serve, (n, 29400 + os.getpid() % 1000, points, shared), n)
        mp.spawn(fake_us, (shared,), 1)
        found = dict(shared)
    rows = []
    for collective, size in points:
        samples = found[collective, size]
        us = {name: statistics.median(s) for name, s in samples.items()}
        rows.append({"collective": collective, "bytes": size, "rondo_us": us["rondo"], "gloo_us": us["gloo"],
                     "ratio": us["gloo"] / us["rondo"],
                     "rondo_spread": [min(samples["rondo"]), max(samples["rondo"])],
                     "gloo_spread": [min(samples["gloo"]), max(samples["gloo"])]})
    short = {k: statistics.median(found[k]) for k in ("sync", "async", "fake sync", "fake async")}
    return {"ranks": n, "rows": rows, "all_reduce_8B_us": short}


def mean_ratio(rows: list[dict]) -> float:
    return math.exp(statistics.fmean(math.log(r["ratio"]) for r in rows)) if rows else float("nan")


def report(result: dict) -> None:
    print(f"\n{result['ranks']} processes: time on Gloo divided by time on rondo")
    for collective in TARGETED + OTHERS:
        rows = [r for r in result["rows"] if r["collective"] == collective]
        bands = []
        for name, low, high in BANDS:
            bands.append(f"{name} {mean_ratio([r for r in rows if low <= r['bytes'] <= high]):7.1f}")
        if rows:
            worst = min(rows, key=lambda r: r["ratio"])
            print(f"  {collective:16} {'   '.join(bands)}   least {worst['ratio']:.2f} at {worst['bytes']} B")
    s = result["all_reduce_8B_us"]
    print(f"  8 B all-reduce: {s['sync']:.1f} us, with async_op and wait {s['async']:.1f} us; "
          f"backend fake {s['fake sync']:.1f} and {s['fake async']:.1f} us")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--first", type=int, default=1 << 10, help="smallest size in bytes")
    parser.add_argument("--last", type=int, default=64 << 20, help="largest size in bytes")
    parser.add_argument("--collectives", nargs="+", default=list(TARGETED + OTHERS), choices=TARGETED + OTHERS)
    parser.add_argument("--output", help="JSON file")
    args = parser.parse_args()
    sizes = [args.first * 4**i for i in range(32) if args.first * 4**i <= args.last]
    points = [(c, s) for c in args.collectives for s in (sizes if c != "barrier" else sizes[:1])]
    results = {"processor": processor(), "cores": os.cpu_count(), "torch": torch.__version__, "results": []}
    for n in args.ranks:
        results["results"].append(measure(n, points))
        report(results["results"][-1])
    if args.output:
        with open(args.output, "w") as f:
            json.dump(results, f, indent=1)
            f.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Trains a small network with PyTorch's FSDP2 on rondo's libnccl.so.2, several processes on one GPU, and compares the
losses with those of one process on the same batches: equal within 1e-5 in fp32.

  gpu_fsdp.py --library libnccl.so.2 --processes 2 4 --steps 50

The processes get the library by LD_PRELOAD. Prints one JSON object for each number of processes. Exit status 1: a loss
differs or a process fails.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

BATCH = 16


def train(rank: int, nranks: int, steps: int, out: str) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.cuda.set_device(0)
    torch.manual_seed(7)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(4)), nn.Linear(128, 16)).cuda()
    if nranks > 1:
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("nccl", rank=rank, world_size=nranks)
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(BATCH, 128, generator=generator), torch.randn(BATCH, 16, generator=generator)
        share = BATCH // nranks
        mine = slice(rank * share, (rank + 1) * share)
        loss = nn.functional.mse_loss(model(x[mine].cuda()), y[mine].cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.detach().clone()
        if nranks > 1:
            dist.all_reduce(whole, op=dist.ReduceOp.AVG)
        losses.append(whole.item())
    if rank == 0:
        Path(out).write_text(json.dumps(losses))
    if nranks > 1:
        dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(nranks: int, steps: int, library: str | None) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "losses.json")
        env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        if library and nranks > 1:
            env["LD_PRELOAD"] = library
        command = [sys.executable, __file__, "--steps", str(steps), "--out", out]
        children = [subprocess.Popen([*command, "--as-rank", str(r), str(nranks)], env=env) for r in range(nranks)]
        codes = []
        try:
            codes = [child.wait(timeout=100) for child in children]
        finally:
            for child in children:
                child.kill()
        if any(codes):
            raise RuntimeError(f"processes ended with {codes}")
        return json.loads(Path(out).read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="rondo's libnccl.so.2")
    parser.add_argument("--processes", type=int, nargs="+", default=[2])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--as-rank", type=int, nargs=2, metavar=("RANK", "RANKS"), help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_rank:
        train(args.as_rank[0], args.as_rank[1], args.steps, args.out)
        return 0
    alone = run(1, args.steps, None)
    worst = 0
    for nranks in args.processes:
        try:
            losses = run(nranks, args.steps, args.library)
            difference = max(abs(a - b) for a, b in zip(alone, losses, strict=True))
            right = difference <= 1e-5
            print(json.dumps({"processes": nranks, "steps": args.steps, "largest_difference": difference,
                              "last_loss": losses[-1], "right": right}))
        except (RuntimeError, subprocess.TimeoutExpired) as e:
            right = False
            print(json.dumps({"processes": nranks, "error": str(e), "right": False}))
        worst |= not right
    return worst


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Trains a character transformer with PyTorch, on one process or on several that torchrun starts.

    torchrun --nproc-per-node 2 train.py --backend rondo --mode fsdp2 --steps 20
    python train.py --mode local                        # one process, for comparison: it prints the same losses

Each step has one batch, and each process takes an equal part of it. Everything random has a seed. Therefore all modes,
backends and numbers of processes print the same losses, up to rounding. Only `distribute` and `main` know of processes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 128  # ASCII
SIZES = {  # layers, width, heads, context
    "tiny": (2, 64, 2, 64),
    "small": (4, 128, 4, 128),  # 0.8 M parameters, as example 03
    "medium": (8, 512, 8, 256),  # 25 M
    "large": (12, 1024, 16, 512),  # 152 M, for GPUs
}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:  # x: batch x length x width
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)  # each: batch x heads x length x width of a head
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:  # both: batch x length; returns the mean loss
        x = self.characters(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.characters.weight)  # the embedding is also the last layer
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def made_up_text(sentences: int = 5000) -> str:
    """Sentences of a small grammar, always the same."""
    draw = random.Random(1)
    nouns, verbs = "cat dog bird child river".split(), "sees likes follows hears finds".split()
    adjectives = ["", "", "old ", "small ", "quiet "]

    def thing() -> str:
        return f"{draw.choice(['the', 'a', 'one'])} {draw.choice(adjectives)}{draw.choice(nouns)}"

    return " ".join(f"{thing()} {draw.choice(verbs)} {thing()}.".capitalize() for _ in range(sentences))


def draw_batch(text: Tensor, size: int, context: int, step: int) -> tuple[Tensor, Tensor]:
    """Returns `size` pieces of the text, and the same shifted by one character. The step number is the seed."""
    starts = torch.randint(0, len(text) - context, (size,), generator=torch.Generator().manual_seed(step))
    pieces = torch.stack([text[s : s + context + 1] for s in starts.tolist()])
    return pieces[:, :-1], pieces[:, 1:]


def distribute(model: nn.Module, mode: str, device: torch.device) -> nn.Module:
    """Makes a model that trains on all processes. Its forward and backward communicate."""
    if mode == "local":
        return model
    if mode == "ddp":  # all processes have all parameters; backward averages the gradients
        return DistributedDataParallel(model)
    # Each process has a part of each parameter, its gradient and its optimizer state. A unit, here a block, is gathered
    # while it computes. The root unit has the other parameters.
    if mode == "fsdp1":
        policy = ModuleWrapPolicy({Block})
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=device, use_orig_params=True)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["rondo", "gloo", "nccl"], default="rondo")
    parser.add_argument("--mode", choices=["fsdp2", "fsdp1", "ddp", "local"], default="fsdp2")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=5, help="steps between two printed losses")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step, of all processes together")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--text", type=Path, help="a file to learn (default: sentences of a small grammar)")
    parser.add_argument("--trace", metavar="FOLDER", help="record the communication of the last step (rondo only)")
    args = parser.parse_args()
    if args.trace and (args.backend != "rondo" or args.mode == "local"):
        parser.error("--trace needs --backend rondo and a mode other than local")

    rank, size = 0, 1
    device = torch.device(args.device)
    if args.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if args.mode != "local":  # torchrun has set RANK, WORLD_SIZE and the address of rank 0
        dist.init_process_group(args.backend)
        rank, size = dist.get_rank(), dist.get_world_size()
    if args.batch % size != 0:
        parser.error(f"--batch {args.batch} cannot be divided among {size} processes")

    text = args.text.read_text(errors="ignore") if args.text else made_up_text()
    codes = torch.tensor([c for c in text.encode() if c < VOCABULARY])
    torch.manual_seed(1)  # all processes begin with the same parameters
    layers, width, heads, context = SIZES[args.size]
    model = distribute(Transformer(layers, width, heads, context).to(device), args.mode, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    times_s = []
    for step in range(1, args.steps + 1):
        recording: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if args.trace and step == args.steps:
            import rondo

            recording = rondo.trace(args.trace)
        ids, targets = (t.chunk(size)[rank].to(device) for t in draw_batch(codes, args.batch, context, step))
        begin_s = time.perf_counter()
        with recording:
            optimizer.zero_grad()
            loss = model(ids, targets)
            loss.backward()
            optimizer.step()
            if args.device == "cuda":
                torch.cuda.synchronize()
        times_s.append(time.perf_counter() - begin_s)
        if step % args.every == 0 or step in (1, args.steps):
            mean = loss.detach()
            if size > 1:
                dist.all_reduce(mean, dist.ReduceOp.AVG)
            if rank == 0:
                print(f"step {step:4d}  loss {mean.item():.4f}", flush=True)
    if rank == 0:
        median_ms = statistics.median(times_s[min(3, args.steps - 1) :]) * 1e3  # the first steps allocate memory
        what = "" if args.mode == "local" else f" on {args.backend}, {size} processes"
        print(f"{args.mode}{what}: median {median_ms:.1f} ms a step")
    if args.mode != "local":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

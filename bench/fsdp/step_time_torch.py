"""One rank of PyTorch's side of bench/compare_fsdp: FSDP2 over Gloo with the architecture of
examples/03_char_transformer. Reads lines "STEPS timed|watched" from stdin and answers each with a line of five numbers:
seconds, the last loss, seconds blocked in collectives (only in watched bursts, which wrap them), and CPU seconds of
this process and of its threads that do not compute.
Arguments: sharded|plain dim layers context batch. Plain is the same model without fully_shard, separate in each
process, with the same optimizer over all parameters. Rank and meeting place come from torchrun's variables."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

HEADS, VOCABULARY = 4, 128


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, dim // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, dim: int, layers: int, context: int) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(VOCABULARY, dim), nn.Embedding(context, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        x = self.characters(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.characters.weight.t()
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


class Watch:
    """Adds up the time in FSDP2's collectives, which on a CPU return when they are done."""

    def __init__(self) -> None:
        self.blocked_s = 0.0
        names = ("all_gather_single", "reduce_scatter_single", "all_reduce")
        self.plain = {name: getattr(dist, name) for name in names}

    def timed(self, collective: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            start = time.monotonic()
            work = collective(*args, **kwargs)
            self.blocked_s += time.monotonic() - start
            if work is not None:
                raise RuntimeError("a collective of FSDP2 goes on after its call: its Work.wait must be timed too")
            return None

        return call

    def __enter__(self) -> Watch:
        for name, collective in self.plain.items():
            setattr(dist, name, self.timed(collective))
        return self

    def __exit__(self, *_: object) -> None:
        for name, collective in self.plain.items():
            setattr(dist, name, collective)


def main() -> None:
    mode = sys.argv[1]
    dim, layers, context, batch = map(int, sys.argv[2:])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    ids = torch.randint(VOCABULARY, (batch, context))
    following = torch.randint(VOCABULARY, (batch, context))
    model = Transformer(dim, layers, context)
    if mode == "sharded":
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    for line in sys.stdin:
        steps, kind = line.split()
        watch = Watch()
        with watch if kind == "watched" and mode == "sharded" else contextlib.nullcontext():
            cpu, own, start = time.process_time(), time.thread_time(), time.monotonic()
            for _ in range(int(steps)):
                loss = model(ids, following)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                value = loss.item()
            took, cpu = time.monotonic() - start, time.process_time() - cpu
            others = cpu - (time.thread_time() - own)
        print(took, value, watch.blocked_s, cpu, others, flush=True)
    if mode == "sharded":
        dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()

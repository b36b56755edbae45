#!/usr/bin/env python3
"""DTensors, tensor parallel layers, pipelines, and torch's other ways to call collectives, on the backend rondo.

    build/torch/venv/bin/python -B tests/python/parallel_test.py [-v] [-k PATTERN]

Models are compared with one process (models.py). Functions named check_... run on all ranks.
"""

from __future__ import annotations

import copy
import time
import unittest
from typing import Any

from models import assert_parameters_equal, cpu_mesh, plain_sgd, sgd
from ranks import run_ranks

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel
from torch.distributed.tensor.parallel import parallelize_module
from torch.testing import assert_close

# ---- DTensor and tensor parallelism


def check_redistribute(rank: int) -> None:
    mesh = cpu_mesh()
    for shape in ((8, 12), (7, 9), (3, 2)):  # of 4 ranks, some have no part of the last
        whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
        steps = (Shard(0), Shard(1), Replicate(), Shard(1), Shard(0), Replicate())
        x = distribute_tensor(whole, mesh, [Replicate()])
        for placement in steps:
            x = x.redistribute(mesh, [placement])
            assert torch.equal(x.full_tensor(), whole), (shape, placement)
        for op, expected in (("sum", whole * 10), ("avg", whole * 2.5), ("max", whole * 4)):
            partial = DTensor.from_local(whole * (rank + 1), mesh, [Partial(op)])
            for placement in (Shard(0), Shard(1), Replicate()):
                assert torch.equal(partial.redistribute(mesh, [placement]).full_tensor(), expected), (op, placement)

    square = cpu_mesh(2, 2, names=("x", "y"))
    whole = torch.arange(35.0).view(5, 7)
    x = distribute_tensor(whole, square, [Shard(0), Shard(1)])
    for placements in ([Shard(1), Shard(1)], [Replicate(), Shard(0)], [Shard(0), Shard(0)]):
        assert torch.equal(x.redistribute(square, placements).full_tensor(), whole), placements
    a, b = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)), torch.arange(20.0).view(5, 4)
    product = distribute_tensor(a, mesh, [Shard(1)]) @ distribute_tensor(b, mesh, [Shard(0)])
    assert_close(product.full_tensor(), a @ b)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(self.norm(x))))


def compare_mlp(model: nn.Module, data_rank: int, num_data: int) -> None:
    reference = Mlp()
    optimizers = sgd(reference), sgd(model)
    for step in range(4):
        x = torch.randn(8, 4, 8, generator=torch.Generator().manual_seed(step))
        y = model(x.chunk(num_data)[data_rank])
        expected = reference(x)
        assert_close(y, expected.chunk(num_data)[data_rank], rtol=1e-5, atol=1e-5)
        y.square().mean().backward()
        expected.square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert_parameters_equal(model, reference)


def check_tensor_parallel(rank: int) -> None:
    mesh = cpu_mesh(dist.get_world_size())
    model = parallelize_module(Mlp(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    x = torch.ones(2, 4, 8)
    with CommDebugMode() as counted:
        model(x)
    assert counted.get_comm_counts()[torch.ops.c10d_functional.all_reduce] == 1, counted.get_comm_counts()
    compare_mlp(model, 0, 1)
    model = parallelize_module(Mlp(), mesh, {
        "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Replicate()),
    })
    compare_mlp(model, 0, 1)


def check_tensor_and_data_parallel(rank: int) -> None:
    mesh = cpu_mesh(2, 2, names=("data", "tensor"))
    model = parallelize_module(Mlp(), mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    compare_mlp(model, mesh.get_local_rank("data"), 2)


class Tensors(unittest.TestCase):
    def test_redistribute(self) -> None:
        run_ranks(4, check_redistribute)

    def test_tensor_parallel(self) -> None:
        for n in (2, 4):
            run_ranks(n, check_tensor_parallel)

    def test_tensor_and_data_parallel(self) -> None:
        run_ranks(4, check_tensor_and_data_parallel)


# ---- Pipelines


def layers_of(num_stages: int) -> list[nn.Module]:
    torch.manual_seed(1)
    return [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(num_stages)]


def check_pipeline(rank: int) -> None:
    size = dist.get_world_size()
    for schedule_type, stages_per_rank in ((ScheduleGPipe, 1), (Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2)):
        num_stages = size * stages_per_rank
        layers = layers_of(num_stages)
        reference = nn.Sequential(*copy.deepcopy(layers))
        mine = range(rank, num_stages, size)
        stages = [PipelineStage(layers[s], s, num_stages, torch.device("cpu")) for s in mine]
        schedule = schedule_type(stages if stages_per_rank > 1 else stages[0], 4, loss_fn=F.mse_loss)
        optimizers = [plain_sgd(layers[s]) for s in mine]
        reference_optimizer = plain_sgd(reference)
        for step in range(3):
            x, y = torch.randn(2, 8, 6, generator=torch.Generator().manual_seed(step))
            losses: list[Tensor] = []
            inputs = (x,) if rank == 0 else ()
            schedule.step(*inputs, **({"target": y, "losses": losses} if rank == size - 1 else {}))
            loss = F.mse_loss(reference(x), y)
            loss.backward()
            if rank == size - 1:
                assert_close(torch.stack(losses).mean(), loss, rtol=1e-5, atol=1e-6)
            for optimizer in (*optimizers, reference_optimizer):
                optimizer.step()
                optimizer.zero_grad()
        for s in mine:
            assert_parameters_equal(layers[s], reference[s])


class Pipelines(unittest.TestCase):
    def test_two_stages(self) -> None:
        run_ranks(2, check_pipeline)

    def test_four_stages(self) -> None:
        run_ranks(4, check_pipeline)


# ---- Other ways to call collectives


def check_functional(rank: int) -> None:
    n, group = dist.get_world_size(), dist.group.WORLD
    mine = torch.arange(4.0) + 10 * rank
    all_of = torch.stack([torch.arange(4.0) + 10 * r for r in range(n)])
    assert torch.equal(funcol.all_reduce(mine, "sum", group), all_of.sum(0))
    assert torch.equal(funcol.all_reduce(mine, "avg", group), all_of.mean(0))
    assert torch.equal(funcol.all_gather_single(mine, 0, group), all_of.flatten())
    assert torch.equal(funcol.all_gather_single(mine[None].t(), 1, group), all_of.t())
    assert torch.equal(funcol.reduce_scatter_single(mine, "sum", 0, group), all_of.sum(0).chunk(n)[rank])
    assert torch.equal(funcol.all_to_all_single(mine, None, None, group), all_of[:, rank])
    assert torch.equal(funcol.broadcast(mine, 1, group), all_of[1])
    assert torch.equal(funcol.permute_tensor(mine, [(r + 1) % n for r in range(n)], group), all_of[rank - 1])
    for out in funcol.all_reduce_coalesced([mine, 2 * mine], "max", group)[:1]:
        assert torch.equal(out, all_of[-1])
    out = funcol.all_gather_single_coalesced([mine, mine[:1]], group)
    assert torch.equal(out[1], all_of[:, 0])
    out = funcol.reduce_scatter_single_coalesced([mine, mine], "sum", [0, 0], group)
    assert torch.equal(out[1], all_of.sum(0).chunk(n)[rank])

    splits = [1, 0, 2, 1]  # to each rank; from each rank comes splits[rank] of its elements
    received = funcol.all_to_all_single(mine, [splits[rank]] * n, splits, group)
    start = sum(splits[:rank])
    assert torch.equal(received, all_of[:, start : start + splits[rank]].flatten())

    x = mine.clone().requires_grad_()
    funcol.all_gather_single_autograd(x, 0, group).square().sum().backward()
    assert_close(x.grad, 2 * mine * n)  # each rank's loss holds x
    x = mine.clone().requires_grad_()
    (funcol.all_to_all_single_autograd(x, None, None, group) * (rank + 1)).sum().backward()
    assert torch.equal(x.grad, torch.arange(4.0) + 1)


def check_objects(rank: int) -> None:
    n = dist.get_world_size()
    mine = {"rank": rank, "text": "x" * (1 + 1000 * rank)}
    all_of = [{"rank": r, "text": "x" * (1 + 1000 * r)} for r in range(n)]
    found: list[Any] = [None] * n
    dist.all_gather_object(found, mine)
    assert found == all_of
    gathered: list[Any] | None = [None] * n if rank == 1 else None
    dist.gather_object(mine, gathered, dst=1)
    assert gathered == (all_of if rank == 1 else None)
    objects = all_of[:2] if rank == 2 else [None, None]
    dist.broadcast_object_list(objects, src=2)
    assert objects == all_of[:2]
    part: list[Any] = [None]
    dist.scatter_object_list(part, all_of if rank == 0 else None, src=0)
    assert part == [mine]
    if rank == 0:
        dist.send_object_list([mine, 5], dst=3)
    elif rank == 3:
        received: list[Any] = [None, None]
        dist.recv_object_list(received, src=0)
        assert received == [all_of[0], 5]


def check_async(rank: int) -> None:
    """Many calls are in flight; their Works and futures are asked in any order."""
    n = dist.get_world_size()
    tensors = [torch.full((100,), float(i + rank)) for i in range(50)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    doubled = [w.get_future().then(lambda f: f.value()[0] * 2) for w in works[:10]]
    for i in reversed(range(50)):
        works[i].wait()
        assert tensors[i][0] == n * i + n * (n - 1) / 2
    for i, future in enumerate(doubled):
        assert torch.equal(future.wait(), tensors[i] * 2)


def check_future_in_callback(rank: int) -> None:
    """A callback of a future makes a call and waits for its future, as PowerSGD's do."""

    def add_again(future: torch.futures.Future[list[Tensor]]) -> Tensor:
        if rank == 1:
            time.sleep(0.2)  # the others wait
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    n = dist.get_world_size()
    result = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(add_again).wait()
    assert torch.equal(result, torch.full((3,), float(n * n)))


def check_messages(rank: int) -> None:
    n = dist.get_world_size()
    to, origin = (rank + 1) % n, (rank - 1) % n
    received = torch.empty(5)
    for work in dist.batch_isend_irecv([
        dist.P2POp(dist.isend, torch.full((5,), float(rank)), to),
        dist.P2POp(dist.irecv, received, origin),
    ]):
        work.wait()
    assert torch.equal(received, torch.full((5,), float(origin)))


def check_subgroups(rank: int) -> None:
    mesh = cpu_mesh(2, 2, names=("rows", "columns"))
    for name, expected in (("rows", {0: 2, 1: 4, 2: 2, 3: 4}), ("columns", {0: 1, 1: 1, 2: 5, 3: 5})):
        x = torch.tensor(float(rank))
        dist.all_reduce(x, group=mesh.get_group(name))
        assert x == expected[rank], (name, x)
    x = torch.tensor(float(rank))
    dist.all_reduce(x, group=mesh._flatten("all").get_group())
    assert x == 6

    mine, _ = dist.new_subgroups(2)
    x = torch.tensor(float(rank))
    dist.all_reduce(x, group=mine)
    assert x == (1 if rank < 2 else 5)
    group = dist.new_group([3, 1, 2], use_local_synchronization=True) if rank else None
    if group is not None:
        x = torch.tensor(float(rank))
        dist.broadcast(x, src=3, group=group)
        assert x == 3
        dist.destroy_process_group(group)
    x = torch.tensor(float(rank))
    dist.all_reduce(x)
    assert x == 6


class OtherCalls(unittest.TestCase):
    def test_functional_collectives(self) -> None:
        run_ranks(4, check_functional)

    def test_objects(self) -> None:
        run_ranks(4, check_objects)

    def test_asynchronous_calls(self) -> None:
        run_ranks(4, check_async)

    def test_future_in_callback(self) -> None:
        run_ranks(3, check_future_in_callback, timeout=20)

    def test_messages(self) -> None:
        run_ranks(3, check_messages)

    def test_subgroups(self) -> None:
        run_ranks(4, check_subgroups)


if __name__ == "__main__":
    unittest.main()

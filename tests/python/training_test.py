#!/usr/bin/env python3
"""Trains small models on the backend rondo in every way that torch offers, and compares with one process.

    build/torch/venv/bin/python -B tests/python/training_test.py [-v] [-k PATTERN]

Each rank gets an equal part of each batch, so the mean of the ranks' losses is the loss of one process. Each rank
computes that reference too, without communication. Functions named check_... run on all ranks.
"""

from __future__ import annotations

import copy
import tempfile
import time
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from ranks import init_group, run_ranks

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

Wrap = Callable[[nn.Module], nn.Module]

# Nothing here changes the output of a model in place.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")

VOCABULARY, DIM, HIDDEN = 17, 10, 21  # 2 and 4 do not divide all of them
BATCH = 40  # of all ranks
STEPS = 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, HIDDEN)
        self.down = nn.Linear(HIDDEN, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Guesses a token from another: embedding, blocks, last layer.

    tied: the last layer's weight is the embedding's. sparse: so is the embedding's gradient. unused: there is a layer
    that forward does not use. recompute: backward computes the blocks again.
    """

    def __init__(
        self,
        tied: bool = False,
        sparse: bool = False,
        unused: bool = False,
        recompute: bool = False,
        seed: int = 1,
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(VOCABULARY, DIM, sparse=sparse)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(DIM, VOCABULARY)
        self.recompute = recompute
        if tied:
            self.head.weight = self.embedding.weight
        if unused:
            self.unused = nn.Linear(DIM, DIM)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x)


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    """Returns the ids and the targets of one step, for all ranks together."""
    ids = torch.randint(0, VOCABULARY, (BATCH,), generator=torch.Generator().manual_seed(step))
    return ids, (3 * ids + 1) % VOCABULARY


def part_of(whole: Tensor) -> Tensor:
    return whole.chunk(dist.get_world_size())[dist.get_rank()]


def loss_of(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(ids), targets)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.3, momentum=0.9)


def plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.3)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def mean_of_ranks(value: Tensor) -> Tensor:
    value = value.detach().clone()
    dist.all_reduce(value, dist.ReduceOp.AVG)
    return value


def train_alone(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range = range(STEPS)) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, *batch_of(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range = range(STEPS)) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, *(part_of(t) for t in batch_of(step)))
        loss.backward()
        optimizer.step()
        losses.append(mean_of_ranks(loss).item())
    return losses


def whole_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        yield name, parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def assert_parameters_equal(model: nn.Module, reference: nn.Module, tolerance: float = 1e-5) -> None:
    expected = dict(reference.named_parameters())
    for name, parameter in whole_parameters(model):
        assert_close(parameter, expected[name.removeprefix("module.")], rtol=tolerance, atol=tolerance, msg=name)


def assert_trains_like_one_process(
    wrap: Wrap, make_optimizer: Callable[[nn.Module], Any] = sgd, model: nn.Module | None = None
) -> tuple[nn.Module, nn.Module]:
    """Returns the wrapped model and the reference, both trained."""
    reference = Model() if model is None else model
    wrapped = wrap(copy.deepcopy(reference))
    expected = train_alone(reference, make_optimizer(reference))
    losses = train(wrapped, make_optimizer(wrapped))
    assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    assert expected[-1] < expected[0], "the model learns nothing"
    return wrapped, reference


def cpu_mesh(*sizes: int, names: tuple[str, ...] | None = None) -> DeviceMesh:
    return init_device_mesh("cpu", sizes or (dist.get_world_size(),), mesh_dim_names=names)


def fsdp2(model: nn.Module, **options: Any) -> nn.Module:
    """Three units: the blocks, and the root with the rest."""
    options.setdefault("mesh", cpu_mesh())
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def fsdp1(model: nn.Module, **options: Any) -> nn.Module:
    options.setdefault("auto_wrap_policy", ModuleWrapPolicy({Block}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # NO_SHARD is deprecated
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True, **options)


def ddp(model: nn.Module, **options: Any) -> nn.Module:
    return DistributedDataParallel(model, bucket_cap_mb=0.001, **options)  # several buckets


# ---- FSDP2


def check_fsdp2_parity(rank: int) -> None:
    for make_optimizer in (sgd, adamw):
        wrapped, reference = assert_trains_like_one_process(fsdp2, make_optimizer)
        assert_parameters_equal(wrapped, reference)


def check_fsdp2_options(rank: int) -> None:
    for options in (
        {"reshard_after_forward": False},
        {"reshard_after_forward": 2},
        {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
        {"shard_placement_fn": lambda p: Shard(1) if p.dim() == 2 and p.shape[1] % 4 == 0 else None},
    ):
        assert_trains_like_one_process(lambda m: fsdp2(m, **options))
    assert_trains_like_one_process(fsdp2, model=Model(recompute=True))

    def prefetching(model: nn.Module) -> nn.Module:
        model = fsdp2(model)
        first, second = model.blocks
        model.set_modules_to_forward_prefetch([first, second])
        second.set_modules_to_backward_prefetch([first])
        model.unshard(async_op=True)
        return model

    assert_trains_like_one_process(prefetching)


def check_fsdp2_shared_and_frozen(rank: int) -> None:
    assert_trains_like_one_process(fsdp2, model=Model(tied=True))

    model = Model()
    for part in (model.embedding, model.blocks[0].up):
        part.requires_grad_(False)
    before = copy.deepcopy(model)
    wrapped, reference = assert_trains_like_one_process(fsdp2, model=model)
    assert_parameters_equal(wrapped, reference)
    assert torch.equal(wrapped.blocks[0].up.weight.full_tensor(), before.blocks[0].up.weight)


def check_fsdp2_hybrid(rank: int) -> None:
    mesh = cpu_mesh(2, 2, names=("replicate", "shard"))
    wrapped, reference = assert_trains_like_one_process(lambda m: fsdp2(m, mesh=mesh), adamw)
    assert_parameters_equal(wrapped, reference)


def check_fsdp2_divide_factor(rank: int) -> None:
    """A factor other than the number of ranks needs ReduceOp.PREMUL_SUM."""
    reference = Model()
    for factor in (1.0, 3.0):
        model = fsdp2(Model())
        for unit in (model, *model.blocks):
            unit.set_gradient_divide_factor(factor)
        loss_of(model, *(part_of(t) for t in batch_of(0))).backward()
        reference.zero_grad()
        (loss_of(reference, *batch_of(0)) * dist.get_world_size() / factor).backward()
        for name, p in model.named_parameters():
            expected = reference.get_parameter(name).grad
            assert_close(p.grad.full_tensor(), expected, rtol=1e-5, atol=1e-6, msg=f"{name}, factor {factor}")


def check_fsdp2_counts(rank: int) -> None:
    """Each block is gathered for forward and for backward, the root only once; each reduces its gradients once."""
    for options, gathers in (({}, 2 + 2 + 1), ({"reshard_after_forward": False}, 2 + 1)):
        model = fsdp2(Model(), **options)
        ids, targets = (part_of(t) for t in batch_of(0))
        with CommDebugMode() as counted:
            loss_of(model, ids, targets).backward()
        counts = counted.get_comm_counts()
        assert counts[torch.ops.c10d._allgather_base_] == gathers, counts
        assert counts[torch.ops.c10d._reduce_scatter_base_] == 3, counts
        assert counted.get_total_counts() == gathers + 3, counts


def check_fsdp2_clipping(rank: int) -> None:
    reference, model = Model(), fsdp2(Model())
    optimizers = sgd(reference), sgd(model)
    for step in range(3):
        ids, targets = batch_of(step)
        loss_of(reference, ids, targets).backward()
        loss_of(model, part_of(ids), part_of(targets)).backward()
        expected = nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        assert_close(norm.full_tensor(), expected, rtol=1e-5, atol=1e-6)
        assert expected > 0.1
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert_parameters_equal(model, reference)


def gradients_of_parts(model: nn.Module, dtype: torch.dtype, step: int) -> dict[str, Tensor]:
    """Returns the mean of the gradients of each rank's part, computed in `dtype` and added in float32."""
    sums: dict[str, Tensor] = {}
    n = dist.get_world_size()
    for ids, targets in zip(*(t.chunk(n) for t in batch_of(step))):
        narrow = copy.deepcopy(model).to(dtype)
        F.cross_entropy(narrow(ids).float(), targets).backward()
        for name, p in narrow.named_parameters():
            sums[name] = sums.get(name, torch.zeros(p.shape)) + p.grad.float() / n
    return sums


def check_fsdp2_mixed_precision(rank: int) -> None:
    # bfloat16 gradients are rounded once more by a reduction in bfloat16: half a unit of 2^-8.
    for dtype, reduce_dtype, tolerance in (
        (torch.bfloat16, torch.float32, 1e-5),
        (torch.bfloat16, torch.bfloat16, 1e-2),
        (torch.float16, torch.float16, 2e-3),  # added with ReduceOp.SUM: FSDP2 divides before and after
    ):
        reference = Model()
        model = fsdp2(Model(), mp_policy=MixedPrecisionPolicy(dtype, reduce_dtype))
        optimizers = sgd(reference), sgd(model)
        for step in range(3):
            ids, targets = (part_of(t) for t in batch_of(step))
            logits = model(ids)
            assert logits.dtype == dtype
            F.cross_entropy(logits.float(), targets).backward()
            for name, gradient in gradients_of_parts(reference, dtype, step).items():
                reference.get_parameter(name).grad = gradient
            for name, p in model.named_parameters():
                assert p.dtype == torch.float32
                assert_close(p.grad.full_tensor(), reference.get_parameter(name).grad, rtol=tolerance,
                             atol=tolerance * 0.1, msg=f"{name}, {dtype}, {reduce_dtype}, step {step}")
            with torch.no_grad():  # the same parameters for the next step
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            whole = {name: p.detach() for name, p in whole_parameters(model)}
            reference.load_state_dict(whole)


def check_fsdp2_accumulation(rank: int) -> None:
    for method in ("set_requires_gradient_sync", "set_requires_all_reduce"):
        mesh = cpu_mesh() if method == "set_requires_gradient_sync" else cpu_mesh(2, 2, names=("replicate", "shard"))
        reference, model = Model(), fsdp2(Model(), mesh=mesh)
        for step in range(3):
            ids, targets = batch_of(step)
            loss_of(reference, ids, targets).backward()
            getattr(model, method)(step == 2)
            loss_of(model, part_of(ids), part_of(targets)).backward()
        for name, p in model.named_parameters():
            assert_close(p.grad.full_tensor(), reference.get_parameter(name).grad, rtol=1e-5, atol=1e-6, msg=name)


class Fsdp2(unittest.TestCase):
    def test_loss_is_that_of_one_process(self) -> None:
        for n in (2, 4):
            run_ranks(n, check_fsdp2_parity)

    def test_options(self) -> None:
        run_ranks(4, check_fsdp2_options)

    def test_tied_and_frozen_parameters(self) -> None:
        run_ranks(2, check_fsdp2_shared_and_frozen)

    def test_hybrid_sharding(self) -> None:
        run_ranks(4, check_fsdp2_hybrid)

    def test_gradient_divide_factor(self) -> None:
        run_ranks(2, check_fsdp2_divide_factor)

    def test_number_of_collectives(self) -> None:
        run_ranks(2, check_fsdp2_counts)

    def test_gradient_clipping(self) -> None:
        run_ranks(4, check_fsdp2_clipping)

    def test_mixed_precision(self) -> None:
        run_ranks(4, check_fsdp2_mixed_precision)

    def test_gradient_accumulation(self) -> None:
        run_ranks(4, check_fsdp2_accumulation)


# ---- FSDP1


def check_fsdp1_parity(rank: int) -> None:
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        assert_trains_like_one_process(lambda m: fsdp1(m, sharding_strategy=strategy))
    wrapped, reference = assert_trains_like_one_process(fsdp1, adamw)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        for name, p in wrapped.named_parameters():
            expected = reference.get_parameter(name.replace("_fsdp_wrapped_module.", ""))
            assert_close(p, expected, rtol=1e-5, atol=1e-5, msg=name)


def check_fsdp1_init_and_clipping(rank: int) -> None:
    # torch refuses parameters on the CPU here, though only NCCL needs that.
    with mock.patch("torch.distributed.fsdp._init_utils._check_module_states_for_sync_module_states"):
        model = fsdp1(Model(seed=10 + rank), sync_module_states=True)
    reference = Model(seed=10)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    assert_close(dict(state), dict(reference.state_dict()), rtol=0, atol=0)
    ids, targets = batch_of(0)
    loss_of(model, part_of(ids), part_of(targets)).backward()
    loss_of(reference, ids, targets).backward()
    expected = nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
    assert_close(model.clip_grad_norm_(0.1), expected, rtol=1e-5, atol=1e-6)


def check_fsdp1_hybrid(rank: int) -> None:
    mesh = cpu_mesh(2, 2, names=("replicate", "shard"))
    for strategy in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2):
        assert_trains_like_one_process(lambda m: fsdp1(m, sharding_strategy=strategy, device_mesh=mesh))


class Fsdp1(unittest.TestCase):
    def test_loss_is_that_of_one_process(self) -> None:
        for n in (2, 4):
            run_ranks(n, check_fsdp1_parity)

    def test_parameters_of_rank_0_and_gradient_clipping(self) -> None:
        run_ranks(4, check_fsdp1_init_and_clipping)

    def test_hybrid_sharding(self) -> None:
        run_ranks(4, check_fsdp1_hybrid)


# ---- DDP


def check_ddp_parity(rank: int) -> None:
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        wrapped, reference = assert_trains_like_one_process(lambda m: ddp(m, **options))
        assert_parameters_equal(wrapped, reference)
    assert_trains_like_one_process(ddp, adamw, Model(tied=True))
    assert_trains_like_one_process(lambda m: ddp(m, find_unused_parameters=True), sgd, Model(unused=True))
    assert_trains_like_one_process(ddp, lambda m: ZeroRedundancyOptimizer(m.parameters(), torch.optim.AdamW, lr=0.01)
                                   if isinstance(m, DistributedDataParallel) else adamw(m))


def check_ddp_init(rank: int) -> None:
    assert_parameters_equal(ddp(Model(seed=10 + rank)), Model(seed=10), tolerance=0)


def check_ddp_accumulation(rank: int) -> None:
    reference, model = Model(), ddp(Model())
    for step in range(4):
        ids, targets = batch_of(step)
        loss_of(reference, ids, targets).backward()
        with CommDebugMode() as counted:
            if step < 3:
                with model.no_sync():
                    loss_of(model, part_of(ids), part_of(targets)).backward()
                assert counted.get_total_counts() == 0
            else:
                loss_of(model, part_of(ids), part_of(targets)).backward()
    for name, p in model.module.named_parameters():
        assert_close(p.grad, reference.get_parameter(name).grad, rtol=1e-5, atol=1e-6, msg=name)


def check_ddp_hooks(rank: int) -> None:
    for hook, tolerance in ((default_hooks.allreduce_hook, 1e-5), (default_hooks.bf16_compress_hook, 1e-2)):
        reference, model = Model(), ddp(Model())
        model.register_comm_hook(None, hook)
        expected = train_alone(reference, plain_sgd(reference))
        assert_close(train(model, plain_sgd(model)), expected, rtol=tolerance, atol=tolerance)


def check_ddp_power_sgd(rank: int) -> None:
    """PowerSGD computes the same on rondo as on Gloo.

    There is one bucket: with several, the hook's callbacks make calls in another order on each rank, on any backend of
    the CPU.
    """
    losses = []
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        model = DistributedDataParallel(Model(), process_group=group)
        state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        losses.append(train(model, plain_sgd(model)))
    assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-5)
    assert losses[0][-1] < losses[0][0]


def check_ddp_sparse(rank: int) -> None:
    wrapped, reference = assert_trains_like_one_process(ddp, plain_sgd, Model(sparse=True))
    assert wrapped.module.embedding.weight.grad.is_sparse
    assert_parameters_equal(wrapped, reference)


def check_ddp_uneven_inputs(rank: int) -> None:
    """Ranks with fewer batches join: they take part in the others' collectives."""
    model = ddp(Model())
    optimizer = plain_sgd(model)
    with model.join():
        for step in range(2 + 2 * rank):
            loss_of(model, *(part_of(t) for t in batch_of(step))).backward()
            optimizer.step()
            optimizer.zero_grad()
    mine = nn.utils.parameters_to_vector(model.parameters()).detach()
    assert_close(mean_of_ranks(mine), mine, rtol=1e-6, atol=1e-6)


def check_ddp_debug_detail(rank: int) -> None:
    dist.set_debug_level(dist.DebugLevel.DETAIL)  # what TORCH_DISTRIBUTED_DEBUG=DETAIL does
    init_group("rondo")
    assert "Wrapper" in type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__
    wrapped, reference = assert_trains_like_one_process(ddp)
    assert_parameters_equal(wrapped, reference)
    try:
        dist.all_reduce(torch.zeros(3 + rank))
    except RuntimeError as error:
        assert "mismatch" in str(error).lower(), error
    else:
        raise AssertionError("shapes that do not match are not found")
    dist.destroy_process_group()


class Ddp(unittest.TestCase):
    def test_loss_is_that_of_one_process(self) -> None:
        for n in (2, 4):
            run_ranks(n, check_ddp_parity)

    def test_parameters_of_rank_0(self) -> None:
        run_ranks(4, check_ddp_init)

    def test_gradient_accumulation(self) -> None:
        run_ranks(2, check_ddp_accumulation)

    def test_hooks(self) -> None:
        run_ranks(4, check_ddp_hooks)

    def test_power_sgd(self) -> None:
        run_ranks(4, check_ddp_power_sgd, timeout=20)

    def test_sparse_gradients(self) -> None:
        run_ranks(4, check_ddp_sparse)

    def test_uneven_inputs(self) -> None:
        run_ranks(2, check_ddp_uneven_inputs)

    def test_debug_level_detail(self) -> None:
        run_ranks(2, check_ddp_debug_detail, init=False)


# ---- Checkpoints


def trained_fsdp2(steps: range = range(3)) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = fsdp2(Model())
    optimizer = adamw(model)
    train(model, optimizer, steps)
    return model, optimizer


def check_full_state(rank: int) -> None:
    """Full state dicts are those of a local model; a model on `meta` takes them from rank 0."""
    model, optimizer = trained_fsdp2()
    reference = Model()
    reference_optimizer = adamw(reference)
    train_alone(reference, reference_optimizer, range(3))
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=options)
    moments = get_optimizer_state_dict(model, optimizer, options=options)
    if rank == 0:  # cpu_offload: others have none
        expected = get_optimizer_state_dict(reference, reference_optimizer)
        assert_close(dict(weights), dict(reference.state_dict()), rtol=1e-5, atol=1e-5)
        assert_close(moments["state"], expected["state"], rtol=1e-5, atol=1e-5)
    else:
        assert not weights and not moments

    with torch.device("meta"):
        empty = Model()
    fsdp2(empty)
    empty.to_empty(device="cpu")
    set_model_state_dict(empty, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    assert_parameters_equal(empty, reference)


def check_save(rank: int, folder: str) -> list[float]:
    """Returns the losses of the steps after the one that is saved."""
    model, optimizer = trained_fsdp2()
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "step": 3}, checkpoint_id=folder + "/saved")
    dcp.async_save({"model": weights}, checkpoint_id=folder + "/saved_async").result()
    return train(model, optimizer, range(3, STEPS))


def check_load(rank: int, folder: str, expected: list[float]) -> None:
    model = fsdp2(Model(seed=5))
    optimizer = adamw(model)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=folder + "/saved")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert state["step"] == 3
    other = {"model": get_model_state_dict(fsdp2(Model(seed=6)))}
    dcp.load(other, checkpoint_id=folder + "/saved_async")
    for name, p in other["model"].items():
        assert_close(p.full_tensor(), weights[name].full_tensor(), rtol=0, atol=0, msg=name)
    assert_close(train(model, optimizer, range(3, STEPS)), expected, rtol=1e-5, atol=1e-5)


def check_load_only(rank: int, folder: str) -> None:
    weights = get_model_state_dict(fsdp2(Model(seed=7)))
    dcp.load({"model": weights}, checkpoint_id=folder + "/saved")
    reference = Model()
    train_alone(reference, adamw(reference), range(3))
    for name, p in weights.items():
        assert_close(p.full_tensor(), reference.get_parameter(name), rtol=1e-5, atol=1e-5, msg=name)


class Checkpoints(unittest.TestCase):
    def test_full_state(self) -> None:
        run_ranks(4, check_full_state)

    def test_training_goes_on_with_another_number_of_ranks(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            losses = run_ranks(4, check_save, folder)
            run_ranks(2, check_load, folder, losses[0])
            run_ranks(3, check_load_only, folder)


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

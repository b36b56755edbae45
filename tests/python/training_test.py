#!/usr/bin/env python3
"""Trains small models on the backend rondo with FSDP2, FSDP1 and DDP, and saves and loads them.

    build/torch/venv/bin/python -B tests/python/training_test.py [-v] [-k PATTERN]

Losses, gradients and parameters are compared with one process (models.py). Functions named check_... run on all ranks.
"""

from __future__ import annotations

import copy
import tempfile
import unittest
from unittest import mock

from models import STEPS, Model, adamw, assert_parameters_equal, assert_trains_like_one_process, batch_of, cpu_mesh
from models import ddp, fsdp1, fsdp2, loss_of, mean_of_ranks, part_of, plain_sgd, sgd, train, train_alone
from models import whole_parameters
from ranks import init_group, run_ranks

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
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
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

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


if __name__ == "__main__":
    unittest.main()

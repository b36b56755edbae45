"""Small models for the tests of training, how they are distributed, and what they are compared with: one process.

Each rank gets an equal part of each batch, so the mean of the ranks' losses is the loss of one process. Each rank
computes that reference too, without communication.

Thread safety: functions that take a distributed model, or return one, communicate. All ranks must call them.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
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

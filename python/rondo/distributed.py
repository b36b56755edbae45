"""The backend `rondo` of torch.distributed, and functions that show what it does.

torch loads this module through its entry point when a process group asks for `rondo`. If torch is already imported,
`import rondo` loads it too.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import datetime
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _DistributedBackendOptions


def _load_adapter() -> Any:
    try:
        from ._built_for import TORCH_VERSION
    except ModuleNotFoundError:
        raise ImportError(
            "this rondo was built without torch: build it again with `pip install --no-build-isolation ./python` in "
            "rondo's sources"
        ) from None
    minor = ".".join(TORCH_VERSION.split(".")[:2])
    # The interface of c10d's backends changes with each minor release. Another one would crash.
    if torch.__version__.split("+")[0].split(".")[:2] != minor.split("."):
        raise ImportError(
            f"this rondo is built for torch {minor}, but torch {torch.__version__} is installed: "
            "build it again with `pip install --no-build-isolation ./python` in rondo's sources"
        )
    from . import _c10d

    return _c10d


_c10d = _load_adapter()


class Options(_c10d.Options):
    """Options of a process group: `init_process_group("rondo", pg_options=rondo.Options(...))`.

    timeout: longest time of a call, also of making the group; None: the timeout of init_process_group.
    settings: lines "key = value" of docs/settings.md, such as "message_bytes = 64K".
    accumulator: type in which float16 and bfloat16 are added; torch.float32 is the default.
    promises: RONDO_PROMISE_* of rondo.h, such as 2 for sums in rank order.
    """

    def __init__(
        self,
        timeout: datetime.timedelta | None = None,
        settings: str = "",
        accumulator: torch.dtype | None = None,
        promises: int = 0,
    ) -> None:
        super().__init__(timeout or dist.default_pg_timeout, settings, accumulator, promises)
        self.timeout = timeout

    def __copy__(self) -> Options:
        return Options(self.timeout, self.settings, self.accumulator, self.promises)

    def __deepcopy__(self, memo: dict[int, Any]) -> Options:
        return copy.copy(self)


def _create(options: _DistributedBackendOptions, group_options: Options | None) -> Any:
    if group_options is None:
        group_options = Options()
    elif not isinstance(group_options, Options):
        raise TypeError(f"pg_options must be a rondo.Options, not a {type(group_options).__name__}")
    group_options = copy.copy(group_options)  # set_timeout of one group must not change another one
    if group_options.timeout is None:
        group_options._timeout = options.timeout
    elif options.timeout not in (group_options.timeout, dist.default_pg_timeout):
        raise ValueError(f"timeout is {options.timeout}, but that of pg_options is {group_options.timeout}: give one")
    group_options.global_ranks_in_group = options.global_ranks_in_group
    group_options.group_name = options.group_id
    return _c10d.create(options.store, options.group_rank, options.group_size, group_options)


def register() -> None:
    """Registers the backend with torch.distributed. A second call does nothing."""
    if "RONDO" not in dist.Backend._plugins:
        dist.Backend.register_backend("rondo", _create, extended_api=True, devices=["cpu"])
        atexit.register(_close_groups)


def _close_groups() -> None:
    # The program has not destroyed its groups. Their threads must not run when Python has ended.
    for group in list(dist.distributed_c10d._world.pg_map):
        with contextlib.suppress(RuntimeError):  # a group without a backend for the CPU
            backend = group._get_backend(torch.device("cpu"))
            if _c10d.is_rondo(backend):
                _c10d.close(backend, 1.0)


def _backend_of(group: dist.ProcessGroup | None) -> Any:
    if group is None:
        group = dist.group.WORLD
    if group is None:
        raise ValueError("there is no default process group: call init_process_group first")
    backend = group._get_backend(torch.device("cpu"))
    if not _c10d.is_rondo(backend):
        raise ValueError(f"the process group's backend for CPU tensors is {backend.name()}, not rondo")
    return backend


def explain(
    collective: str,
    count: int,
    dtype: torch.dtype = torch.float32,
    op: dist.ReduceOp = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> str:
    """Returns the plan of such a call in one line, and why it was chosen.

    collective: all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, gather, scatter or barrier.
    count: elements, as in rondo.h: of the whole tensor for all_reduce, of one rank's part for reduce_scatter and
    all_gather.
    """
    return _c10d.explain(_backend_of(group), collective, count, dtype, op)


def forecast_us(
    collective: str,
    count: int,
    dtype: torch.dtype = torch.float32,
    op: dist.ReduceOp = dist.ReduceOp.SUM,
    root: int = 0,
    group: dist.ProcessGroup | None = None,
) -> float:
    """Returns the expected time of such a call in microseconds, in a sequence of calls without a pause.

    collective, count: as for explain.
    """
    return _c10d.forecast_us(_backend_of(group), collective, count, dtype, op, root)


def transport(group: dist.ProcessGroup | None = None) -> str:
    """Returns how the ranks are connected: "shm" for processes on one host, "shm+tcp" for several hosts."""
    return _c10d.transport(_backend_of(group))


@contextlib.contextmanager
def trace(
    path: str | os.PathLike[str], records: int = 0, group: dist.ProcessGroup | None = None
) -> Iterator[None]:
    """Records every step of every call of the block. Writes path/rank-R-comm-C.rtrace on each rank.

    `rondo trace export path -o trace.json` makes one file of them for Perfetto.
    records: how many of the newest steps are kept; 0 for 65536.
    """
    backend = _backend_of(group)
    os.makedirs(path, exist_ok=True)
    _c10d.start_trace(backend, os.fspath(path), records)
    try:
        yield
    finally:
        _c10d.stop_trace(backend)


def flight_record(path: str | os.PathLike[str], group: dist.ProcessGroup | None = None) -> None:
    """Writes this rank's current state to path/rank-R-comm-C.flight.json, for diagnose().

    Any thread may call it while another one waits in a call.
    """
    os.makedirs(path, exist_ok=True)
    _c10d.flight_record(_backend_of(group), os.fspath(path))

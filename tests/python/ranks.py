"""Runs a function on several new processes, the ranks of one process group.

    def check(rank: int, size: int) -> float: ...            # a function of a module: processes import it by its name

    sums = run_ranks(4, check, 1000)                         # [check(0, 1000), ..., check(3, 1000)]

The processes are forks of one server that has imported torch, so starting one takes milliseconds. They have one thread
each and see no GPU. An error of any rank is raised in the caller, with the rank and its traceback.

Thread safety: calls may not overlap.
"""

from __future__ import annotations

import datetime
import multiprocessing as mp
import multiprocessing.connection
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from typing import Any

# The server of processes takes these when it starts; later changes of this process's environment do not reach ranks.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["RONDO_PROBE"] = "off"  # plans do not depend on the machine

import torch.distributed as dist  # noqa: E402: after CUDA_VISIBLE_DEVICES

# After an error, the other ranks have this long to report theirs.
GRACE_S = 10.0

PRELOADED = [
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
]

_context = mp.get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)


class RankError(AssertionError):
    """One rank or more failed. `errors` has the text of each by its rank."""

    def __init__(self, errors: dict[int, str]) -> None:
        self.errors = errors
        super().__init__("\n".join(f"rank {rank}: {text}" for rank, text in sorted(errors.items())))


class _Place:
    """Where this process is, if it is a rank."""

    rank: int
    size: int
    store_path: str
    timeout_s: float


_place = _Place()


def init_group(backend: str | None = "rondo", **options: Any) -> None:
    """Makes the default process group of this rank: for functions that run_ranks calls with init=False.

    options: of init_process_group.
    """
    options.setdefault("timeout", datetime.timedelta(seconds=_place.timeout_s))
    store = dist.FileStore(_place.store_path, _place.size)
    dist.init_process_group(backend, store=store, rank=_place.rank, world_size=_place.size, **options)


def run_ranks(
    n: int,
    function: Callable[..., Any],
    *args: Any,
    backend: str = "rondo",
    timeout: float = 120,
    init: bool = True,
    may_die: Collection[int] = (),
) -> list[Any]:
    """Calls function(rank, *args) on each of n new processes and returns the results in the order of ranks.

    function, args and results are pickled, so function must be one of a module. The call runs between
    init_process_group(backend) and destroy_process_group, or without both if init is False.
    timeout: seconds for everything; then all processes are killed. Calls of the group time out after half of it, so
    that a hang usually ends with the backend's own error.
    may_die: ranks that may end without a result, such as one that kills itself. Their result is then None.
    Raises RankError if a rank raises an exception, dies, does not end in time, or does not exit with status 0.
    """
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryDirectory(prefix="rondo_ranks_") as folder:
        processes, readers = [], []
        for rank in range(n):
            reader, writer = _context.Pipe(duplex=False)
            place = (rank, n, os.path.join(folder, "store"), timeout / 2)
            call = pickle.dumps((function, args))
            process = _context.Process(target=_serve, args=(writer, place, backend if init else None, call))
            process.start()
            writer.close()
            processes.append(process)
            readers.append(reader)
        try:
            return _collect(processes, readers, may_die, deadline)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
            for reader in readers:
                reader.close()


def _collect(processes: list[Any], readers: list[Any], may_die: Collection[int], deadline: float) -> list[Any]:
    results: list[Any] = [None] * len(processes)
    errors: dict[int, str] = {}
    open_ranks = {reader: rank for rank, reader in enumerate(readers)}
    while open_ranks:
        left_s = deadline - time.monotonic()
        ready = mp.connection.wait(list(open_ranks), max(0.0, left_s))
        if not ready:
            for rank in open_ranks.values():
                errors.setdefault(rank, "did not end in time; killed")
            break
        for reader in ready:
            rank = open_ranks.pop(reader)
            try:
                ok, value = pickle.loads(reader.recv_bytes())
            except EOFError:
                processes[rank].join(GRACE_S)
                ok, value = rank in may_die, None
                if not ok:
                    value = f"died, exit status {processes[rank].exitcode}"
            if ok:
                results[rank] = value
            else:
                errors[rank] = value
                deadline = min(deadline, time.monotonic() + GRACE_S)
    for rank, process in enumerate(processes):
        if rank in errors or rank in may_die:
            continue
        process.join(GRACE_S)
        if process.exitcode != 0:
            errors[rank] = f"has returned, but its exit status is {process.exitcode}"
    if errors:
        raise RankError(errors)
    return results


def _serve(writer: Any, place: tuple[int, int, str, float], backend: str | None, call: bytes) -> None:
    """The main function of a rank."""
    _place.rank, _place.size, _place.store_path, _place.timeout_s = place
    os.environ.update(RANK=str(_place.rank), LOCAL_RANK=str(_place.rank), WORLD_SIZE=str(_place.size))
    try:
        function, args = pickle.loads(call)
        if backend is not None:
            init_group(backend)
        result = function(_place.rank, *args)
        if backend is not None:
            dist.destroy_process_group()
        writer.send_bytes(pickle.dumps((True, result)))
        writer.close()
    except BaseException:
        writer.send_bytes(pickle.dumps((False, traceback.format_exc())))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # a group in an unknown state is not destroyed

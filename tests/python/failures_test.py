#!/usr/bin/env python3
"""Errors of backend rondo: each names the rank, the call and the remedy, and nothing hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist
from ranks import init_group, run_ranks

import rondo


def error_of(kind: type, *words: str):
    """Returns a context that expects an error with these words."""

    class Expect:
        def __enter__(self) -> None:
            pass

        def __exit__(self, found, error, trace) -> bool:
            assert found is not None and issubclass(found, kind), f"expected {kind}, got {found}: {error}"
            for word in words:
                assert word in str(error), f"'{word}' is not in: {error}"
            return True

    return Expect()


def refusals(rank: int, n: int) -> None:
    here = f"rank {rank}: "
    with error_of(TypeError, here, "all_reduce", "no SUM of Short"):
        dist.all_reduce(torch.ones(3, dtype=torch.int16))
    with error_of(TypeError, here, "no BAND of Float"):
        dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)
    with error_of(TypeError, here, "no AVG of Bool"):
        dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG)
    with error_of(ValueError, here, "needs", str(3 * n)):
        dist.all_gather_into_tensor(torch.empty(3 * n + 1), torch.ones(3))
    with error_of(ValueError, here, "needs", "reduce_scatter"):
        dist.reduce_scatter_tensor(torch.empty(3), torch.ones(3 * n + 1))
    with error_of(ValueError, here, "one for each"):
        dist.all_gather([torch.empty(2)] * (n + 1), torch.ones(2))
    with error_of(ValueError, here, "same type"):
        dist.group.WORLD.allgather([[torch.empty(2, dtype=torch.int32)] * n], [torch.ones(2)])
    with error_of(ValueError, "overlap"):
        whole = torch.ones(n * 4 + 1)
        dist.all_gather_into_tensor(whole[1:], whole[:4])
    with error_of(ValueError, here, "meta"):
        dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([torch.ones(2, device="meta")])
    t = torch.ones(2)  # nothing is left behind
    dist.all_reduce(t)
    assert (t == n).all()


def different_calls(rank: int, n: int) -> None:
    with error_of(dist.DistBackendError, "rank 0", "rank 1", "count_elems"):
        dist.all_reduce(torch.ones(3 + rank))


def late_peer(rank: int, n: int) -> None:
    dist.distributed_c10d.set_timeout(timedelta(seconds=1))
    store = dist.distributed_c10d._get_default_store()
    begin = time.monotonic()
    if rank == 0:
        with error_of(dist.DistBackendError, "rank 0", "all_reduce", "rank 1"):
            dist.all_reduce(torch.ones(3))
        assert 0.9 < time.monotonic() - begin < 20
        store.set("rank 0 has its error", "1")
    else:
        store.wait(["rank 0 has its error"], timedelta(seconds=60))


def killed_peer(rank: int, n: int, async_op: bool) -> None:
    dist.barrier()
    if rank == n - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with error_of(dist.DistBackendError, f"rank {n - 1}"):
        while True:
            work = dist.all_reduce(torch.ones(1000), async_op=async_op)
            if async_op:
                work.wait()
    with error_of(dist.DistBackendError, f"rank {n - 1}"):  # later calls say it too
        dist.all_reduce(torch.ones(2))


def future_of_a_failure(rank: int, n: int) -> None:
    dist.barrier()
    if rank == n - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    future = dist.all_reduce(torch.ones(1000), async_op=True).get_future()
    with error_of(RuntimeError, f"rank {n - 1}"):
        while True:
            future.wait()
            future = dist.all_reduce(torch.ones(1000), async_op=True).get_future()


def aborts(rank: int, n: int) -> None:
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    seen = []
    backend.register_abort_hook(1, lambda: seen.append(rank))
    if rank == 0:
        threading.Timer(0.2, backend.abort).start()
        with error_of(dist.DistBackendError, "abort"):
            dist.recv(torch.empty(3), 1)
    else:
        with error_of(dist.DistBackendError, "rank 0", "abort"):
            while True:
                dist.all_reduce(torch.ones(3))
    assert seen, "the hook was not called"


def raising_hook(rank: int, n: int) -> None:
    """A hook that fails changes no error, and a refused call runs none."""
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    seen = []

    def hook() -> None:
        seen.append(rank)
        raise KeyError("in a hook")

    backend.register_abort_hook(7, hook)
    with error_of(ValueError, "overlap"):
        whole = torch.ones(9)
        dist.all_gather_into_tensor(whole[1:], whole[:4])
    assert not seen
    for async_op in (False, True):
        with error_of(dist.DistBackendError, "count_elems" if not async_op else "rank"):
            work = dist.all_reduce(torch.ones(3 + rank), async_op=async_op)
            if async_op:
                work.wait()
        assert seen
    backend.unregister_abort_hook(7)


def again(rank: int, n: int, port: int) -> None:
    """A second group in a store that has the keys of the first one."""
    store = dist.TCPStore("127.0.0.1", port, n, rank == 0)
    for _ in range(3):
        dist.init_process_group("rondo", store=store, rank=rank, world_size=n)
        dist.monitored_barrier()
        t = torch.ones(3)
        dist.all_reduce(t)
        assert (t == n).all()
        dist.destroy_process_group()


def after_shutdown(rank: int, n: int) -> None:
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    backend.shutdown()
    with error_of(dist.DistBackendError, f"rank {rank}", "shut down"):
        dist.all_reduce(torch.ones(3))


def survivors(rank: int, n: int) -> str:
    """After a death, shrink makes a group of the others."""
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with error_of(dist.DistBackendError, "rank 1"):
        while True:
            dist.all_reduce(torch.ones(10))
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    smaller = backend.shrink([])
    assert (smaller.rank(), smaller.size()) == ([0, -1, 1][rank], 2)
    t = torch.ones(5)
    smaller.allreduce([t]).wait()
    assert (t == 2).all()
    smaller.monitored_barrier(timedelta(seconds=20), True)
    smaller.shutdown()
    dist.destroy_process_group()
    return "alive"


def monitored(rank: int, n: int) -> None:
    dist.monitored_barrier()
    if rank == 0:
        with error_of(RuntimeError, "Ranks 1, 2 failed to pass monitoredBarrier"):
            dist.monitored_barrier(timeout=timedelta(milliseconds=300), wait_all_ranks=True)
    dist.barrier()


class Tens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> int:
        return i


def data_loader_forks(rank: int, n: int) -> None:
    dist.all_reduce(torch.ones(1000), async_op=True).wait()
    loader = torch.utils.data.DataLoader(Tens(), num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        assert sum(int(x) for x in loader) == 45
        dist.all_reduce(torch.ones(10))


def wrong_options(rank: int) -> None:
    with error_of(TypeError, "rondo.Options"):
        init_group(pg_options=dist.ProcessGroup.BackendType.GLOO)
    with error_of(ValueError, "message_bytes = 4K"):
        init_group(pg_options=rondo.Options(settings="message_bytes = 4K"))
    with error_of(ValueError, "timeout is", "give one"):
        init_group(pg_options=rondo.Options(timedelta(seconds=1)))


def options(rank: int, n: int) -> None:
    import copy

    o = copy.deepcopy(rondo.Options(settings="algo = ring", accumulator=torch.float32))
    assert (o.settings, o.accumulator) == ("algo = ring", torch.float32)
    init_group(pg_options=o)
    t = torch.ones(100_000, dtype=torch.bfloat16)
    dist.all_reduce(t)
    assert (t == n).all()
    assert rondo.explain("all_reduce", 1 << 20).startswith("ring "), rondo.explain("all_reduce", 1 << 20)
    dist.destroy_process_group()


SCRIPT = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("rondo")
dist.all_reduce(torch.ones(10), async_op=True).wait()
print("ready", flush=True)
{}
"""


def run_script(body: str, n: int = 2, **kwargs) -> list[subprocess.Popen]:
    """Starts a script on n ranks, without torchrun, and waits until all are ready."""
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as f:
        f.write(SCRIPT.format(body))
    port = str(20000 + os.getpid() % 20000)
    ranks = []
    for r in range(n):
        env = dict(os.environ, RANK=str(r), WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        ranks.append(subprocess.Popen([sys.executable, f.name], env=env, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, **kwargs))
    for p in ranks:
        line = p.stdout.readline()
        assert line == "ready\n", line + p.communicate()[1]
    os.unlink(f.name)
    return ranks


class Failures(unittest.TestCase):
    def test_refusals(self) -> None:
        run_ranks(2, refusals, 2)

    def test_different_calls(self) -> None:
        run_ranks(2, quietly, different_calls, 2, init=False)

    def test_late_peer(self) -> None:
        run_ranks(2, quietly, late_peer, 2, init=False)

    def test_killed_peer(self) -> None:
        for async_op in (False, True):
            run_ranks(3, quietly, killed_peer, 3, async_op, init=False, may_die=(2,))
        run_ranks(2, quietly, future_of_a_failure, 2, init=False, may_die=(1,))

    def test_abort_and_shutdown(self) -> None:
        run_ranks(2, quietly, aborts, 2, init=False)
        run_ranks(2, quietly, after_shutdown, 2, init=False)

    def test_survivors(self) -> None:
        found = run_ranks(3, quietly, survivors, 3, init=False, may_die=(1,))
        self.assertEqual(found, ["alive", None, "alive"])

    def test_monitored_barrier(self) -> None:
        run_ranks(3, monitored, 3)

    def test_fork(self) -> None:
        run_ranks(2, data_loader_forks, 2)

    def test_options(self) -> None:
        run_ranks(2, options, 2, init=False)
        run_ranks(1, wrong_options, init=False)

    def test_exit_without_destroy(self) -> None:
        for p in run_script("dist.all_reduce(torch.ones(10), async_op=True)"):
            out, err = p.communicate(timeout=60)
            self.assertEqual(p.returncode, 0, err)

    def test_exit_with_calls_that_nobody_answers(self) -> None:
        """The process waits a little, and then leaves. The other rank has not made the call and learns that."""
        body = "w = dist.irecv(torch.ones(10), 1 - dist.get_rank())\nv = dist.barrier(async_op=dist.get_rank() == 0)"
        begin = time.monotonic()
        for p in run_script(body):
            _, err = p.communicate(timeout=90)
            self.assertIn(p.returncode, (0, 1), err)
        self.assertLess(time.monotonic() - begin, 80)

    def test_the_same_store_again(self) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        run_ranks(2, again, 2, port, init=False)

    def test_raising_hook(self) -> None:
        run_ranks(2, quietly, raising_hook, 2, init=False)

    def test_interrupt(self) -> None:
        """Ctrl-C reaches all processes of the terminal's group, and all end."""
        for p in run_script("while True: dist.all_reduce(torch.ones(10))") :
            p.send_signal(signal.SIGINT)
            self.assertNotEqual(p.wait(60), 0)
            p.communicate()

    def test_other_torch(self) -> None:
        code = ("import rondo._built_for as b; b.TORCH_VERSION = '1.2.3'\n"
                "import rondo\ntry: rondo.Options\nexcept ImportError as e: print(e)")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        out = done.stdout
        self.assertIn("built for torch 1.2", out)
        self.assertIn("pip install", out)


def quietly(rank: int, function, *args):
    """Runs a function whose group is broken at the end, and is therefore not destroyed."""
    init_group()
    return function(rank, *args)


if __name__ == "__main__":
    unittest.main()

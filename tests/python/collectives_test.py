#!/usr/bin/env python3
"""Every call of torch.distributed on backend rondo: results, types, layouts, and what a Work promises."""

from __future__ import annotations

import datetime
import itertools
import os
import pathlib
import tempfile
import threading
import unittest

import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.distributed.distributed_c10d import _coalescing_manager

import rondo

SIZES = (0, 1, 7, 1031, 100_003)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
REDUCED = (*FLOATS, torch.int8, torch.uint8, torch.int32, torch.int64)
COPIED = (*REDUCED, torch.int16, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn)


def values(rank: int, n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers that differ between ranks, so that sums are exact in every type."""
    return ((torch.arange(n) * 7 + rank * 3) % 5).to(dtype)


def in_both_ways(call, outputs: list[torch.Tensor] | torch.Tensor | None, correct) -> None:
    """Runs call(async_op) synchronously and asynchronously, and asserts correct() after each. Outputs begin as 0."""
    for async_op in (False, True):
        for out in [outputs] if isinstance(outputs, torch.Tensor) else outputs or []:
            out.zero_()
        work = call(async_op)
        if async_op:
            work.wait()
        assert correct(), f"async_op={async_op}"


def all_reduce(rank: int, n: int) -> None:
    for dtype, size in itertools.product(REDUCED, SIZES):
        expected = sum(values(r, size, torch.int64) for r in range(n)).to(dtype)
        t = values(rank, size, dtype)
        dist.all_reduce(t)
        torch.testing.assert_close(t, expected, rtol=0, atol=0)
        t = values(rank, size, dtype)
        dist.all_reduce(t, async_op=True).wait()
        torch.testing.assert_close(t, expected, rtol=0, atol=0)


def operators(rank: int, n: int) -> None:
    op = dist.ReduceOp
    parts = [values(r, 50, torch.int64) for r in range(n)]
    stacked = torch.stack(parts)
    bits = {op.BAND: lambda a, b: a & b, op.BOR: lambda a, b: a | b, op.BXOR: lambda a, b: a ^ b}
    expected = {op.MIN: stacked.amin(0), op.MAX: stacked.amax(0), op.PRODUCT: stacked.prod(0)}
    for o, f in bits.items():
        whole = parts[0]
        for p in parts[1:]:
            whole = f(whole, p)
        expected[o] = whole
    for o, e in expected.items():
        t = parts[rank].clone()
        dist.all_reduce(t, o)
        assert torch.equal(t, e), (o, t, e)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64):
        t = parts[rank].to(dtype)
        dist.all_reduce(t, op.AVG)
        torch.testing.assert_close(t, (stacked.sum(0).to(torch.complex128) / n).to(dtype))
        t = parts[rank].to(dtype)
        dist.all_reduce(t, dist._make_nccl_premul_sum(0.5))
        torch.testing.assert_close(t, (stacked.sum(0) * 0.5).to(dtype))
    flags = torch.tensor([True, False, rank == 0, rank != 0])
    for o, e in ((op.SUM, [True, False, True, n > 1]), (op.PRODUCT, [True, False, n == 1, False]),
                 (op.MAX, [True, False, True, n > 1]), (op.MIN, [True, False, n == 1, False])):
        t = flags.clone()
        dist.all_reduce(t, o)
        assert t.tolist() == e, (o, t, e)


def fp8(rank: int, n: int) -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        t = torch.full((100,), float(rank + 1)).to(dtype)
        dist.all_reduce(t)
        assert (t.float() == torch.tensor(n * (n + 1) / 2).to(dtype).float()).all(), t


def narrow_sums(rank: int, n: int) -> None:
    """bfloat16 is added in float: 1 + many small numbers is not lost."""
    t = torch.full((64,), 1.0 if rank == 0 else 2.0**-8, dtype=torch.bfloat16)
    dist.all_reduce(t)
    exact = torch.tensor(1.0 + (n - 1) * 2.0**-8).to(torch.bfloat16)
    assert (t.float() - exact.float()).abs().max() <= 2.0**-7, (t[0], exact)


def layouts(rank: int, n: int) -> None:
    """Tensors of any strides; ranks may differ in theirs."""
    whole = values(rank, 24).view(4, 6)
    expected = sum(values(r, 24) for r in range(n)).view(4, 6)
    forms = [whole.clone(), whole.t().contiguous().t(), torch.cat([whole, whole], 1)[:, :6],
             whole.repeat_interleave(2, 1)[:, ::2]]
    for shift in range(len(forms)):
        t = forms[(rank + shift) % len(forms)].detach()
        t.copy_(whole)
        dist.all_reduce(t)
        assert torch.equal(t, expected), (shift, t, expected)
    image = torch.empty(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    image.fill_(rank + 1)
    dist.all_reduce(image)
    assert (image == n * (n + 1) / 2).all()
    out = torch.zeros(n * 4, 12)[:, ::2]
    dist.all_gather_into_tensor(out, whole.t().contiguous().t())
    assert torch.equal(out, torch.cat([values(r, 24).view(4, 6) for r in range(n)]))


def copies(rank: int, n: int) -> None:
    for dtype, size in itertools.product(COPIED, SIZES):
        def mine(r: int, size: int = size, dtype: torch.dtype = dtype) -> torch.Tensor:
            return values(r, size, torch.float32).to(dtype)

        root = size % n
        for async_op in (False, True):
            t = mine(rank)
            work = dist.broadcast(t, root, async_op=async_op)
            if async_op:
                work.wait()
            assert equal(t, mine(root))
        out = torch.empty(n * size, dtype=dtype)
        every = torch.cat([mine(r) for r in range(n)])
        in_both_ways(lambda a: dist.all_gather_into_tensor(out, mine(rank), async_op=a), out, lambda: equal(out, every))
        outs = [torch.empty(size, dtype=dtype) for _ in range(n)]

        def all_are(of_rank) -> bool:
            return all(equal(outs[r], of_rank(r)) for r in range(n))

        in_both_ways(lambda a: dist.all_gather(outs, mine(rank), async_op=a), outs, lambda: all_are(mine))
        on_root = outs if rank == root else None
        in_both_ways(lambda a: dist.gather(mine(rank), on_root, root, async_op=a), outs,
                     lambda: on_root is None or all_are(mine))
        t = torch.empty(size, dtype=dtype)
        scattered = [mine(r + 1) for r in range(n)] if rank == root else None
        in_both_ways(lambda a: dist.scatter(t, scattered, root, async_op=a), t, lambda: equal(t, mine(rank + 1)))
        inputs = [mine(rank * n + p) for p in range(n)]
        in_both_ways(lambda a: dist.all_to_all(outs, inputs, async_op=a), outs,
                     lambda: all_are(lambda p: mine(p * n + rank)))


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and (a.numel() == 0 or torch.equal(a.view(torch.uint8), b.view(torch.uint8)))


def reductions(rank: int, n: int) -> None:
    for size in SIZES:
        part = sum(values(r, n * size) for r in range(n))[rank * size : (rank + 1) * size]
        out = torch.empty(size)
        in_both_ways(lambda a: dist.reduce_scatter_tensor(out, values(rank, n * size), async_op=a), out,
                     lambda: torch.equal(out, part))
        inputs = [values(rank, n * size)[r * size : (r + 1) * size].clone() for r in range(n)]
        in_both_ways(lambda a: dist.reduce_scatter(out, inputs, async_op=a), out, lambda: torch.equal(out, part))
        t = values(rank, size)
        root = size % n
        dist.reduce(t, root)
        if rank == root:
            assert torch.equal(t, sum(values(r, size) for r in range(n)))
    # The output is a slice of the input or of the output, as FSDP2 passes it.
    mine = slice(rank * 11, (rank + 1) * 11)
    whole = values(rank, n * 11)
    dist.reduce_scatter_tensor(whole[mine], whole)
    assert torch.equal(whole[mine], sum(values(r, n * 11) for r in range(n))[mine])
    whole = torch.zeros(n * 11)
    whole[mine] = rank + 1
    dist.all_gather_into_tensor(whole, whole[mine])
    assert torch.equal(whole, torch.arange(1.0, n + 1).repeat_interleave(11))


def uneven(rank: int, n: int) -> None:
    sizes = [(3 * r) % 5 for r in range(n)]
    outs = [torch.empty(s) for s in sizes]
    in_both_ways(lambda a: dist.all_gather(outs, values(rank, sizes[rank]), async_op=a), outs,
                 lambda: all(torch.equal(outs[r], values(r, sizes[r])) for r in range(n)))
    out = torch.empty(sizes[rank])
    in_both_ways(lambda a: dist.reduce_scatter(out, [values(rank, s) for s in sizes], async_op=a), out,
                 lambda: torch.equal(out, sum(values(r, sizes[rank]) for r in range(n))))
    # Rank r sends r + p + 1 rows to rank p.
    rows_in = [rank + p + 1 for p in range(n)]
    t = torch.cat([torch.full((k, 3), float(rank * 10 + p)) for p, k in enumerate(rows_in)])
    rows_out = [p + rank + 1 for p in range(n)]
    rows = torch.empty(sum(rows_out), 3)
    expected = torch.cat([torch.full((k, 3), float(p * 10 + rank)) for p, k in enumerate(rows_out)])
    in_both_ways(lambda a: dist.all_to_all_single(rows, t, rows_out, rows_in, async_op=a), rows,
                 lambda: torch.equal(rows, expected))
    out = torch.empty(n, 2)
    dist.all_to_all_single(out, torch.full((n, 2), float(rank)))
    assert torch.equal(out[:, 0], torch.arange(float(n)))
    outs = [torch.empty(p + 1) for p in range(n)]
    dist.all_to_all(outs, [torch.full((rank + 1,), float(p)) for p in range(n)])
    assert all((o == rank).all() for o in outs)


def coalesced(rank: int, n: int) -> None:
    expected = n * (n + 1) / 2
    for async_ops in (False, True):
        tensors = [torch.full((k,), float(rank + 1)) for k in (1, 1000, 0, 5)]
        with _coalescing_manager(async_ops=async_ops) as cm:
            for t in tensors:
                dist.all_reduce(t)
        if async_ops:
            cm.wait()
        assert all((t == expected).all() for t in tensors)
        outs = [torch.empty(n * k) for k in (3, 4)]
        with _coalescing_manager(async_ops=async_ops) as cm:
            for o in outs:
                dist.all_gather_into_tensor(o, torch.full((o.numel() // n,), float(rank)))
        if async_ops:
            cm.wait()
        assert all(torch.equal(o, torch.arange(float(n)).repeat_interleave(o.numel() // n)) for o in outs)
    # A block that an exception leaves neither hangs nor hides later calls.
    try:
        with _coalescing_manager(device=torch.device("cpu")):
            raise KeyError("left")
    except KeyError:
        dist.distributed_c10d._world.pg_coalesce_state.clear()  # torch keeps its own state after an exception
    t = torch.ones(4)
    dist.all_reduce(t)
    assert (t == n).all()
    t = torch.ones(4)
    peers = [dist.P2POp(dist.isend, torch.full((9,), float(rank)), (rank + 1) % n)]
    received = torch.empty(9)
    peers.append(dist.P2POp(dist.irecv, received, (rank - 1) % n))
    if n > 1:
        for w in dist.batch_isend_irecv(peers):
            w.wait()
        assert (received == (rank - 1) % n).all()


def messages(rank: int, n: int) -> None:
    """Tags match in any order, and a receive from any rank tells the source."""
    if n == 1:
        return
    if rank == 0:
        sizes = {1: 5, 2: 300_000, 3: 0}
        for w in [dist.isend(torch.full((size,), float(tag)), 1, tag=tag) for tag, size in sizes.items()]:
            w.wait()
    elif rank == 1:
        for tag, size in ((3, 0), (2, 300_000), (1, 5)):
            t = torch.zeros(size)
            assert dist.recv(t, 0, tag=tag) == 0
            assert (t == tag).all()
    got = []
    if rank == 0:
        for _ in range(n - 1):
            t = torch.zeros(3, dtype=torch.int64)
            source = dist.recv(t, tag=7)
            assert (t == source).all()
            got.append(source)
        assert sorted(got) == list(range(1, n))
        work = dist.irecv(torch.zeros(2), tag=8)
        dist.send(torch.ones(1), 1)
        work.wait()
        assert work.source_rank() == 1
    else:
        dist.send(torch.full((3,), rank), 0, tag=7)
        if rank == 1:
            dist.recv(torch.zeros(1), 0)
            dist.send(torch.ones(2), 0, tag=8)
    # Everybody sends to everybody before anybody receives.
    sent = [dist.isend(torch.full((50_000,), float(rank)), p, tag=rank) for p in range(n) if p != rank]
    for p in reversed([p for p in range(n) if p != rank]):
        t = torch.zeros(50_000)
        dist.recv(t, p, tag=p)
        assert (t == p).all()
    for w in sent:
        w.wait()
    strided = torch.zeros(10, 2)[:, 0]
    if rank == 0:
        dist.send(torch.arange(20.0)[::2], 1)
    elif rank == 1:
        dist.recv(strided, 0)
        assert torch.equal(strided, torch.arange(0.0, 20.0, 2))


def sparse(rank: int, n: int) -> None:
    t = torch.sparse_coo_tensor([[rank, n, n]], [1.0, 2.0, 3.0], (n + 1,), check_invariants=True)
    dist.all_reduce(t)
    assert t.to_dense().tolist() == [1.0] * n + [5.0 * n]
    rows = torch.sparse_coo_tensor([[rank]], torch.full((1, 3), 2.0), (n, 3), check_invariants=True)
    dist.all_reduce(rows)
    assert (rows.to_dense() == 2).all()
    empty = torch.sparse_coo_tensor(torch.empty(1, 0), torch.empty(0), (4,), check_invariants=True)
    if rank == n - 1:
        empty = torch.sparse_coo_tensor([[2]], [7.0], (4,), check_invariants=True)
    dist.all_reduce(empty)
    assert empty.to_dense().tolist() == [0, 0, 7, 0]


def futures(rank: int, n: int) -> None:
    """A future completes though nobody waits; its callbacks may start and wait for collectives."""
    t = torch.ones(1000)
    work = dist.all_reduce(t, async_op=True)
    done = threading.Event()

    def again(f):
        second = f.value()[0]
        dist.all_reduce(second, async_op=True).wait()
        done.set()
        return second * 2

    last = work.get_future().then(again)
    assert done.wait(60)
    assert (last.wait() == 2 * n * n).all()
    assert work.is_completed() and work.is_success() and (work.result()[0] == n * n).all()
    # Tensors live until the peers are done, even if the Work is dropped: the last rank comes late and sees the sums.
    store = dist.distributed_c10d._get_default_store()
    if n > 1 and rank == n - 1:
        store.wait([f"dropped{n}/{r}" for r in range(n - 1)])
    kept = []
    for i in range(50):
        t = torch.full((20_000,), float(i))
        dist.all_reduce(t, async_op=True)
        if rank == n - 1:
            kept.append(t)
        del t
    if rank < n - 1:
        store.set(f"dropped{n}/{rank}", "1")
    dist.barrier()
    assert all((t == i * n).all() for i, t in enumerate(kept))
    works = [dist.all_reduce(torch.full((3,), float(i)), async_op=True) for i in range(20)]
    for i, w in enumerate(reversed(works)):
        w.wait()
        assert w.result()[0][0] == (19 - i) * n


def wait_timeout(rank: int, n: int) -> None:
    """The timeout of wait() does not end the work."""
    t = torch.ones(3)
    store = dist.distributed_c10d._get_default_store()
    if rank == 0 and n > 1:
        work = dist.all_reduce(t, async_op=True)
        try:
            work.wait(datetime.timedelta(milliseconds=50))
            raise AssertionError("the peers had not called")
        except dist.DistBackendError as e:
            assert "not done after 50 ms" in str(e), e
        store.set(f"late{n}", "1")
        work.wait()
    else:
        store.wait([f"late{n}"]) if n > 1 else None
        dist.all_reduce(t)
    assert (t == n).all()


def groups(rank: int, n: int) -> None:
    pairs = [dist.new_group([a, b]) for a, b in itertools.combinations(range(n), 2)]
    for (a, b), g in zip(itertools.combinations(range(n), 2), pairs):
        if rank in (a, b):
            t = torch.full((3,), float(rank))
            dist.all_reduce(t, group=g)
            assert (t == a + b).all()
            t = torch.full((3,), float(rank))
            dist.broadcast(t, b, group=g)
            assert (t == b).all()
    halves = dist.new_group([r for r in range(n) if r % 2 == rank % 2], use_local_synchronization=True)
    t = torch.ones(2)
    dist.all_reduce(t, group=halves)
    assert (t == len([r for r in range(n) if r % 2 == rank % 2])).all()
    for g in pairs:
        if g is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(g)


def objects(rank: int, n: int) -> None:
    every: list = [None] * n
    dist.all_gather_object(every, {"rank": rank, "text": "x" * rank * 1000})
    assert [e["rank"] for e in every] == list(range(n))
    box = [("from", 1 % n)] if rank == 1 % n else [None]
    dist.broadcast_object_list(box, 1 % n)
    assert box == [("from", 1 % n)]
    got: list = [None]
    dist.scatter_object_list(got, [f"to {r}" for r in range(n)] if rank == 0 else None, 0)
    assert got == [f"to {rank}"]


def views(rank: int, n: int, folder: str) -> None:
    """What a process group shows."""
    assert rondo.transport() == "shm"
    assert "forecast" in rondo.explain("all_reduce", 1 << 16)
    assert 0 < rondo.forecast_us("all_gather", 1 << 10, torch.bfloat16) < 1e6
    with rondo.trace(folder):
        dist.all_reduce(torch.ones(1000))
    dist.barrier()
    assert len(list(pathlib.Path(folder).glob(f"rank-{rank}-*.rtrace"))) == 1
    rondo.flight_record(folder)
    dist.barrier()
    if rank == 0:
        rondo.command("trace", "export", folder, "-o", os.path.join(folder, "all.json"))
        assert os.path.getsize(os.path.join(folder, "all.json")) > 1000
        assert "rank" in rondo.diagnose(folder)


def profile(rank: int, n: int) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
        dist.all_reduce(torch.ones(10))
        dist.all_gather_into_tensor(torch.empty(n), torch.ones(1), async_op=True).wait()
    names = {e.key for e in p.key_averages()}
    assert {"rondo:all_reduce", "rondo:_all_gather_base"} <= names, names


CASES = (all_reduce, operators, fp8, narrow_sums, layouts, copies, reductions, uneven, coalesced, messages, sparse,
         futures, wait_timeout, groups, objects, profile)


def all_cases(rank: int, n: int, folder: str) -> None:
    for case in CASES:
        try:
            case(rank, n)
        except Exception as e:
            raise AssertionError(f"case {case.__name__} with {n} ranks") from e
        dist.barrier()
    views(rank, n, folder)


class Collectives(unittest.TestCase):
    def test_ranks(self) -> None:
        for n in (1, 2, 3, 4):
            with self.subTest(ranks=n), tempfile.TemporaryDirectory() as folder:
                run_ranks(n, all_cases, n, folder)


if __name__ == "__main__":
    unittest.main()

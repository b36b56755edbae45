#!/usr/bin/env python3
"""Exchanges checkpoints between rondo and PyTorch: each reads the files that the other has written.

Needs torch, numpy, fsspec and safetensors, and the two programs of the build, but no GPU and no network:
  PYTHON tests/fsdp/torch_checkpoint.py [--build build/release]

HuggingFaceStorageReader loads rondo's shards: parameters and optimizer state. PyTorch's consolidation makes the same
model of them as save_full. safetensors and PyTorch load the full file. `rondo fsdp checkpoint` merges the shards of
FSDP2's DTensors, which two processes write. The exit status is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files

RANKS = (1, 3, 4)  # as Checkpoint.FilesAreThoseOfOtherReaders writes them
Tensors = dict[str, torch.Tensor]


def expect_equal(what: str, found: Tensors, expected: Tensors) -> None:
    if found.keys() != expected.keys():
        sys.exit(f"{what}: tensors {sorted(found.keys() ^ expected.keys())} are not in both")
    for name, tensor in expected.items():
        if found[name].dtype != tensor.dtype or not torch.equal(found[name], tensor):
            sys.exit(f"{what}: {name} differs")
    print(f"ok: {what}, {len(expected)} tensors")


def read_shards(folder: Path) -> Tensors:
    """Reads the shards with PyTorch's reader, which gets only names and shapes."""
    reader = HuggingFaceStorageReader(str(folder))
    described = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.full(tuple(t.size), float("nan"), dtype=t.properties.dtype) for name, t in described.items()}
    dcp.load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def merge(rondo: Path, folder: Path, to: Path) -> Tensors:
    subprocess.run([rondo, "fsdp", "checkpoint", folder, "--full", to], check=True, stdout=subprocess.DEVNULL)
    return load_file(to)


def check_rondo_to_torch(rondo: Path, folder: Path, scratch: Path) -> None:
    for ranks in RANKS:
        what = f"rondo's checkpoint of {ranks} ranks"
        full = load_file(folder / f"of{ranks}.safetensors")
        expect_equal(f"{what}, by PyTorch's reader", read_shards(folder / f"of{ranks}"), full)
        merged = scratch / f"merged{ranks}"
        merged.mkdir()
        consolidate_safetensors_files(str(folder / f"of{ranks}"), str(merged), dict.fromkeys(full, 1))
        expect_equal(f"{what}, consolidated by PyTorch", load_file(next(merged.glob("*.safetensors"))), full)
        states = merge(rondo, folder / f"of{ranks}" / "optimizer", scratch / f"states{ranks}.safetensors")
        if states.keys() != {f"{name}.{state}" for name in full for state in ("exp_avg", "exp_avg_sq")}:
            sys.exit(f"{what}: its optimizer state is not whole")
        expect_equal(f"{what}, optimizer state", read_shards(folder / f"of{ranks}" / "optimizer"), states)


def make_module() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(13, 7), torch.nn.Linear(7, 3, bias=False))


def save_sharded(rank: int, ranks: int, folder: str) -> None:
    from torch.distributed.fsdp import fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}.store", rank=rank, world_size=ranks)
    from torch.distributed.device_mesh import init_device_mesh

    module = fully_shard(make_module(), mesh=init_device_mesh("cpu", (ranks,)))
    dcp.save(module.state_dict(), storage_writer=HuggingFaceStorageWriter(folder, save_distributed=True))
    dist.destroy_process_group()
    # The mesh keeps Gloo's threads alive. If such a thread takes the GIL while Python shuts down, Python unwinds it
    # through noexcept C++ code, and the process aborts. The shards are on disk: exit without a shutdown.
    sys.stdout.flush()
    os._exit(0)


def check_torch_to_rondo(rondo: Path, scratch: Path) -> None:
    folder = scratch / "fsdp2"
    mp.spawn(save_sharded, args=(2, str(folder)), nprocs=2)
    merged = merge(rondo, folder, scratch / "fsdp2.safetensors")
    expect_equal("FSDP2's shards, merged by rondo", merged, dict(make_module().state_dict()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build/release"), help="the build's folder")
    build: Path = parser.parse_args().build.resolve()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder = scratch / "rondo"
        folder.mkdir()
        subprocess.run(
            [build / "tests/fsdp_tests", "--gtest_filter=Checkpoint.FilesAreThoseOfOtherReaders"],
            check=True,
            env={**os.environ, "RONDO_TEST_CHECKPOINTS": str(folder)},
            stdout=subprocess.DEVNULL,
        )
        rondo = build / "tools/rondo"
        check_rondo_to_torch(rondo, folder, scratch)
        check_torch_to_rondo(rondo, scratch)


if __name__ == "__main__":
    main()

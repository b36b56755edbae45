"""rondo: a collective communication library in which users can see every step.

With PyTorch, rondo is a backend of torch.distributed::

    import torch.distributed as dist

    dist.init_process_group("rondo")

Everything else of torch.distributed stays the same: DDP, FSDP, DTensor, pipelines, checkpoints. These functions show
what a process group does. `group` is None for the default group::

    rondo.explain("all_reduce", 1 << 20)         # the algorithm of such a call, and why it was chosen
    rondo.forecast_us("all_reduce", 1 << 20)     # its expected time
    with rondo.trace("traces"):                  # every step of every call, for Perfetto
        train_step()
    rondo.flight_record("records")               # what each rank is doing now: for a hang
    print(rondo.diagnose("records"))             # who waits for whom

Without PyTorch, the package has the library (`rondo.library()`) and the command line `rondo`. docs/torch.md in the
sources has more.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
from typing import TYPE_CHECKING, Any

__all__ = [
    "Options",
    "command",
    "diagnose",
    "explain",
    "flight_record",
    "forecast_us",
    "library",
    "trace",
    "transport",
]

_FOLDER = pathlib.Path(__file__).parent

if TYPE_CHECKING:
    from .distributed import Options, explain, flight_record, forecast_us, trace, transport

_OF_TORCH = ("Options", "explain", "flight_record", "forecast_us", "trace", "transport")


def library() -> pathlib.Path:
    """Returns the path of the package's librondo, for C programs and ctypes."""
    return next((_FOLDER / "lib").glob("librondo.so.*"))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line `rondo` with these arguments and returns its output as text.

    Raises RuntimeError, with the command's error text, if it fails.
    """
    done = subprocess.run([str(_FOLDER / "bin" / "rondo"), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"rondo {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
    return done


def diagnose(path: str | os.PathLike[str]) -> str:
    """Explains the flight records in a folder.

    Names who waits for whom, in which call, and the rank that is the likely cause.
    """
    return command("diagnose", os.fspath(path)).stdout


def __getattr__(name: str) -> Any:
    # Only these names need torch.
    if name in _OF_TORCH:
        from . import distributed

        return getattr(distributed, name)
    raise AttributeError(f"module 'rondo' has no attribute {name!r}")


def _register() -> None:
    # `import rondo` registers the backend if torch is already there. Otherwise torch finds it by its entry point.
    import sys

    if "torch.distributed" in sys.modules:
        try:
            from . import distributed
        except ImportError:
            return  # the names that need torch, and init_process_group, raise it
        distributed.register()


_register()

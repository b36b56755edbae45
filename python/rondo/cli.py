"""The command `rondo` of the package."""

import os
import sys

from . import _FOLDER


def main() -> None:
    """Runs the command line with this process's arguments."""
    program = os.fspath(_FOLDER / "bin" / "rondo")
    os.execv(program, ["rondo", *sys.argv[1:]])

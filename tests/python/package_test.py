#!/usr/bin/env python3
"""The package as installed: the library and the command line work without torch, and torch finds the backend."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import unittest

import rondo


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Package(unittest.TestCase):
    def test_library(self) -> None:
        library = ctypes.CDLL(os.fspath(rondo.library()))
        library.rondo_version.restype = ctypes.c_char_p
        self.assertEqual(library.rondo_version().decode(), importlib.metadata.version("rondo"))

    def test_command_line(self) -> None:
        script = pathlib.Path(sys.executable).with_name("rondo")
        command = [script, "check", "all_reduce", "--max-ranks", "4"]
        out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        self.assertIn(" 0 failed", out)
        self.assertIn("rondo", rondo.command("--help").stdout)
        with self.assertRaisesRegex(RuntimeError, "rondo explain nothing"):
            rondo.command("explain", "nothing")

    def test_without_torch(self) -> None:
        out = run("import sys; sys.modules['torch'] = None\nimport rondo; print(rondo.library().name)\n"
                  "try: rondo.Options\nexcept ImportError: print('no torch')")
        self.assertEqual(out.splitlines()[1:], ["no torch"])

    def test_torch_finds_the_backend(self) -> None:
        out = run("import torch.distributed as dist\n"
                  "dist.init_process_group('rondo', store=dist.HashStore(), rank=0, world_size=1)\n"
                  "print(dist.get_backend(), dist.is_initialized())\ndist.destroy_process_group()")
        self.assertEqual(out.strip(), "rondo True")
        out = run("import torch.distributed as dist, rondo\nprint('RONDO' in dist.Backend._plugins)")
        self.assertEqual(out.strip(), "True")

    def test_dependency(self) -> None:
        import torch

        minor = ".".join(torch.__version__.split("+")[0].split(".")[:2])
        self.assertEqual(importlib.metadata.requires("rondo"), [f"torch=={minor}.*"])

    def test_help(self) -> None:
        text = run("import rondo; help(rondo)")
        for word in ("init_process_group", "explain", "flight_record"):
            self.assertIn(word, text)


if __name__ == "__main__":
    unittest.main()

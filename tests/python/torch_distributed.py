#!/usr/bin/env python3
"""Runs torch's own DistributedTest on rondo, or on Gloo for comparison. Not part of the usual tests: it takes 10
minutes or more for each number of ranks.

    build/torch/venv/bin/python tests/python/torch_distributed.py --backend rondo --ranks 3 [-k PATTERN]

--backend gloo_by_rondo gives torch's tests a backend named gloo that rondo serves, because many of them run only for
known names. Each test runs in as many new processes as there are ranks.
"""

import argparse
import os
import sys
import tempfile
import unittest

BY_RONDO = "gloo_by_rondo"


def serve_gloo_by_rondo() -> None:
    """Replaces torch's Gloo by rondo in this process. Its processes import this file and do it too."""
    import torch.distributed as dist
    from rondo import distributed as rondo

    def create(options, group_options):
        backend = rondo._create(options, group_options if isinstance(group_options, rondo.Options) else None)
        rondo._c10d.set_title(backend, "gloo")
        return backend

    # Not GLOO: torch's C++ code takes a backend of this type for its own class.
    dist.Backend.backend_type_map["gloo"] = dist.ProcessGroup.BackendType.CUSTOM
    dist.Backend._plugins["GLOO"] = dist.Backend._BackendPlugin(create, True)


def in_environment(environment: dict, target, args: tuple, **options) -> None:
    os.environ.update(environment)
    target(*args, **options)


def load_tests_of_torch() -> type:
    import torch
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    class TestDistBackendWithSpawn(TestDistBackend, DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            # Forks of a server that has imported torch start much faster than torch's own way, spawn.
            context = torch.multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["torch.testing._internal.distributed.distributed_test"])

            def process(target, args, **options):
                return context.Process(target=in_environment, args=(dict(os.environ), target, args), **options)

            self._start_processes(process)

    TestDistBackendWithSpawn.__module__ = __name__
    TestDistBackendWithSpawn.__qualname__ = "TestDistBackendWithSpawn"
    return TestDistBackendWithSpawn


if os.environ.get("SERVE_GLOO_BY_RONDO"):
    serve_gloo_by_rondo()
if "BACKEND" in os.environ:
    TestDistBackendWithSpawn = load_tests_of_torch()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["rondo", BY_RONDO, "gloo"], default="rondo")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("-k", dest="patterns", action="append", help="only tests whose names contain this")
    args = parser.parse_args()
    if args.backend == BY_RONDO:
        os.environ["SERVE_GLOO_BY_RONDO"] = "1"
        serve_gloo_by_rondo()
    os.environ["BACKEND"] = "gloo" if args.backend == BY_RONDO else args.backend
    os.environ["WORLD_SIZE"] = str(args.ranks)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TEMP_DIR"] = folder
        global TestDistBackendWithSpawn
        TestDistBackendWithSpawn = load_tests_of_torch()
        loader = unittest.TestLoader()
        if args.patterns:
            loader.testNamePatterns = [f"*{p}*" for p in args.patterns]
        result = unittest.TextTestRunner(verbosity=2).run(loader.loadTestsFromTestCase(TestDistBackendWithSpawn))
    print(f"{args.backend}, {args.ranks} ranks: {result.testsRun} run, {len(result.skipped)} skipped, "
          f"{len(result.failures)} failed, {len(result.errors)} errors")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())

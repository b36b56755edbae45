"""check_dependencies.py on small trees made for the purpose: every rule finds what it must and nothing else."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_dependencies.py"
SPEC = importlib.util.spec_from_file_location("check_dependencies", SCRIPT)
assert SPEC is not None and SPEC.loader is not None
rules = importlib.util.module_from_spec(SPEC)
sys.modules["check_dependencies"] = rules
SPEC.loader.exec_module(rules)

CLEAN = {
    "include/rondo/types.h": "#pragma once\n",
    "include/rondo/schedule.h": '#include "rondo/types.h"\n',
    "src/schedule/extent.h": '#include "rondo/schedule.h"\n',
    "src/algorithms/ring.h": '#include "rondo/schedule.h"\n',
    "src/algorithms/registry.h": '#include <vector>\n#include "algorithms/ring.h"\n',
    "src/schedule/checker.cc": '#include "algorithms/registry.h"\n',
    "src/protocol/fifo.h": '#include "rondo/types.h"\n',
    "src/transport/transport.h": '#include "protocol/fifo.h"\n',
    "src/engine/engine.cc": '#include "transport/transport.h"\n#include "schedule/extent.h"\n',
    "src/core/communicator.cc": '#include "engine/engine.h"\n',
    "src/engine/engine.h": "#pragma once\n",
    "tools/main.cc": '#include "args.h"\n#include "core/launch.h"\n',
    "tools/args.h": "#pragma once\n",
    "src/core/launch.h": "#pragma once\n",
    "tests/core/launch_test.cc": '#include "core/launch.h"\n#include "support/spawn.h"\n',
    "tests/support/spawn.h": "#pragma once\n",
    "examples/01_hello.cc": "#include <rondo/types.h>\n",
}


class CheckDependencies(unittest.TestCase):
    def findings(self, changes: dict[str, str]) -> list[str]:
        """`path:line rule` of every finding in the clean tree with `changes` laid over it."""
        with tempfile.TemporaryDirectory() as folder:
            top = Path(folder)
            for name, text in {**CLEAN, **changes}.items():
                path = top / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return [f"{f.path.as_posix()}:{f.line} {f.rule}" for f in rules.check_tree(top)]

    def test_clean_tree_has_no_findings(self) -> None:
        self.assertEqual(self.findings({}), [])

    def test_lower_room_must_not_include_higher(self) -> None:
        changed = {"src/protocol/fifo.h": '#pragma once\n#include "engine/engine.h"\n'}
        self.assertEqual(self.findings(changed), ["src/protocol/fifo.h:2 order"])

    def test_rooms_of_one_level_do_not_know_each_other(self) -> None:
        changed = {"src/trace/record.h": '#include "protocol/fifo.h"\n'}
        self.assertEqual(self.findings(changed), ["src/trace/record.h:1 order"])

    def test_public_headers_include_public_headers_only(self) -> None:
        changed = {"include/rondo/types.h": '#include "protocol/fifo.h"\n'}
        self.assertEqual(self.findings(changed), ["include/rondo/types.h:1 order"])

    def test_algorithms_know_nothing_of_schedule(self) -> None:
        changed = {"src/algorithms/ring.h": '#include "rondo/schedule.h"\n#include "schedule/extent.h"\n'}
        self.assertEqual(self.findings(changed), ["src/algorithms/ring.h:2 order"])

    def test_fsdp_and_examples_use_public_headers_only(self) -> None:
        changed = {"src/fsdp/plan.cc": '#include "rondo/types.h"\n#include "core/launch.h"\n',
                   "examples/01_hello.cc": '#include "engine/engine.h"\n'}
        self.assertEqual(self.findings(changed), ["src/fsdp/plan.cc:2 order", "examples/01_hello.cc:1 order"])

    def test_adapters_use_public_headers_and_have_some_for_examples(self) -> None:
        changed = {"adapters/torch/include/rondo/torch/shard.h": '#include "rondo/types.h"\n',
                   "adapters/torch/src/core.h": "#pragma once\n",
                   "adapters/torch/src/core.cc": '#include "core.h"\n#include "rondo/torch/shard.h"\n'
                                                 '#include "core/launch.h"\n',
                   "examples/03_net.cc": "#include <rondo/torch/shard.h>\n",
                   "tests/torch/shard_test.cc": '#include "rondo/torch/shard.h"\n',
                   "src/fsdp/plan.cc": '#include "rondo/torch/shard.h"\n',
                   "src/core/launch.cc": '#include "rondo/torch/shard.h"\n'}
        self.assertEqual(self.findings(changed), ["src/core/launch.cc:1 order", "src/fsdp/plan.cc:1 order",
                                                  "adapters/torch/src/core.cc:3 order"])

    def test_relative_includes_are_refused(self) -> None:
        changed = {"src/engine/engine.cc": '#include "engine.h"\n'}
        self.assertEqual(self.findings(changed), ["src/engine/engine.cc:1 paths"])

    def test_examples_may_include_a_file_beside_them_and_tests_may_include_theirs(self) -> None:
        changed = {"examples/02_star/star.h": "#include <rondo/types.h>\n",
                   "examples/02_star/main.cc": '#include "star.h"\n#include "other.h"\n',
                   "tests/tools/star_test.cc": '#include "02_star/star.h"\n'}
        self.assertEqual(self.findings(changed), ["examples/02_star/main.cc:2 paths"])

    def test_tests_may_include_a_file_beside_them(self) -> None:
        changed = {"tests/core/launch_test.cc": '#include "harness.h"\n#include "missing.h"\n', "tests/core/harness.h": ""}
        self.assertEqual(self.findings(changed), ["tests/core/launch_test.cc:2 paths"])

    def test_cuda_headers_only_in_cuda_files(self) -> None:
        text = "#include <cuda_runtime.h>\n#include <cuda/atomic>\n#include <nvml.h>\n#include <cudaless.h>\n"
        changed = {"src/kernels/reduce.cu": text, "src/kernels/reduce.cuh": text, "src/kernels/reduce.cc": text}
        self.assertEqual(self.findings(changed), [f"src/kernels/reduce.cc:{n} cuda" for n in (1, 2, 3)])

    def test_our_own_cuda_room_is_no_cuda_header(self) -> None:
        changed = {"src/cuda/driver.h": "",
                   "src/transport/link.cc": '#include "cuda/driver.h"\n#include <cuda/driver.h>\n',
                   "src/transport/other.cc": '#include "cuda/atomic"\n'}
        self.assertEqual(self.findings(changed), ["src/transport/link.cc:2 cuda", "src/transport/other.cc:1 cuda"])

    def test_exceptions_and_rtti_are_refused_in_src(self) -> None:
        text = "int f() {\n  try { throw 1; }\n  catch (int) {}\n  return typeid(int) == dynamic_cast<B*>(a);\n}\n"
        expected = [f"src/core/a.cc:{n} language" for n in (2, 2, 3, 4, 4)]
        self.assertEqual(self.findings({"src/core/a.cc": text, "tools/a.cc": text}), expected)

    def test_words_in_comments_and_literals_do_not_count(self) -> None:
        text = '// try again, never throw\n/* catch\n throw */ const char* s = "try \\" throw";\nauto r = R"(try)";\n' \
               "int retry = 0;  // typeid\nchar c = '\"';\n"
        self.assertEqual(self.findings({"src/core/a.cc": text}), [])

    def test_line_numbers_survive_comments(self) -> None:
        self.assertEqual(self.findings({"src/core/a.cc": "/* one\ntwo */\nthrow 1;\n"}), ["src/core/a.cc:3 language"])

    def test_unknown_room_is_refused(self) -> None:
        self.assertEqual(self.findings({"src/misc/a.h": ""}), ["src/misc/a.h:1 order"])
        self.assertEqual(self.findings({"src/a.h": ""}), ["src/a.h:1 order"])

    def test_long_file_warns_but_passes(self) -> None:
        self.assertEqual(self.findings({"src/core/a.cc": "\n" * 500}), [])
        self.assertEqual(self.findings({"src/core/a.cc": "\n" * 501}), ["src/core/a.cc:501 size"])
        self.assertEqual(self.exit_status("\n" * 501), 0)

    def test_exit_status(self) -> None:
        self.assertEqual(self.exit_status(""), 0)
        self.assertEqual(self.exit_status("throw 1;\n"), 1)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(rules.main([folder]), 2)

    def exit_status(self, text: str) -> int:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "src" / "core").mkdir(parents=True)
            (Path(folder) / "src" / "core" / "a.cc").write_text(text, encoding="utf-8")
            with contextlib.redirect_stdout(io.StringIO()):
                return int(rules.main([folder]))


if __name__ == "__main__":
    unittest.main()

"""check_dependencies.py on small trees made for the tests: every rule finds the violations and nothing else."""

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

ROOMS = "device/driver 2, protocol 3, algorithms 3, kernels 3, trace 3, schedule 4, transport 5, engine 6, api 7, fsdp 8, tools 8"
CLEAN = {
    "docs/map.md": "# Map\n" + "".join(f"| {row.split()[1]} | `{row.split()[0]}` | Is there | `a.h` | 1 |\n"
                                       for row in ROOMS.split(", ")),
    **{f"{'' if room == 'tools' else 'src/'}{room}/a.h": "" for room in (row.split()[0] for row in ROOMS.split(", "))},
    "include/rondo/types.h": "#pragma once\n",
    "include/rondo/schedule.h": '#include "rondo/types.h"\n',
    "src/schedule/extent.h": '#include "rondo/schedule.h"\n',
    "src/algorithms/ring.h": '#include "rondo/schedule.h"\n',
    "src/algorithms/registry.h": '#include <vector>\n#include "algorithms/ring.h"\n',
    "src/schedule/checker.cc": '#include "algorithms/registry.h"\n',
    "src/protocol/fifo.h": '#include "rondo/types.h"\n',
    "src/transport/transport.h": '#include "protocol/fifo.h"\n',
    "src/engine/engine.cc": '#include "transport/transport.h"\n#include "schedule/extent.h"\n',
    "src/api/communicator.cc": '#include "engine/engine.h"\n',
    "src/engine/engine.h": "#pragma once\n",
    "tools/main.cc": '#include "args.h"\n#include "api/launch.h"\n',
    "tools/args.h": "#pragma once\n",
    "src/api/launch.h": "#pragma once\n",
    "tests/api/launch_test.cc": '#include "api/launch.h"\n#include "support/spawn.h"\n',
    "tests/support/spawn.h": "#pragma once\n",
    "examples/01_hello.cc": "#include <rondo/types.h>\n",
}


class CheckDependencies(unittest.TestCase):
    def findings(self, changes: dict[str, str]) -> list[str]:
        """`path:line rule` of every finding in the clean tree with `changes` applied."""
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
        changed = {"src/fsdp/plan.cc": '#include "rondo/types.h"\n#include "api/launch.h"\n',
                   "examples/01_hello.cc": '#include "engine/engine.h"\n'}
        self.assertEqual(self.findings(changed), ["src/fsdp/plan.cc:2 order", "examples/01_hello.cc:1 order"])

    def test_adapters_use_public_headers_and_have_some_for_examples(self) -> None:
        changed = {"adapters/torch/include/rondo/torch/shard.h": '#include "rondo/types.h"\n',
                   "adapters/torch/src/core.h": "#pragma once\n",
                   "adapters/torch/src/core.cc": '#include "core.h"\n#include "rondo/torch/shard.h"\n'
                                                 '#include "api/launch.h"\n',
                   "examples/03_net.cc": "#include <rondo/torch/shard.h>\n",
                   "tests/torch/shard_test.cc": '#include "rondo/torch/shard.h"\n',
                   "src/fsdp/plan.cc": '#include "rondo/torch/shard.h"\n',
                   "src/api/launch.cc": '#include "rondo/torch/shard.h"\n'}
        self.assertEqual(self.findings(changed), ["src/api/launch.cc:1 order", "src/fsdp/plan.cc:1 order",
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
        changed = {"tests/api/launch_test.cc": '#include "harness.h"\n#include "missing.h"\n', "tests/api/harness.h": ""}
        self.assertEqual(self.findings(changed), ["tests/api/launch_test.cc:2 paths"])

    def test_cuda_headers_only_in_cuda_files(self) -> None:
        text = "#include <cuda_runtime.h>\n#include <cuda/atomic>\n#include <nvml.h>\n#include <cudaless.h>\n"
        changed = {"src/kernels/reduce.cu": text, "src/kernels/reduce.cuh": text, "src/kernels/reduce.cc": text}
        self.assertEqual(self.findings(changed), [f"src/kernels/reduce.cc:{n} cuda" for n in (1, 2, 3)])

    def test_a_room_within_a_room_has_a_level_of_its_own(self) -> None:
        changed = {"src/device/driver/driver.h": '#include "protocol/fifo.h"\n',
                   "src/transport/link.cc": '#include "device/driver/driver.h"\n'}
        self.assertEqual(self.findings(changed), ["src/device/driver/driver.h:1 order"])

    def test_fsdp_may_use_a_few_rooms(self) -> None:
        changed = {"src/fsdp/plan.cc": '#include "kernels/a.h"\n#include "device/driver/a.h"\n#include "schedule/extent.h"\n'}
        self.assertEqual(self.findings(changed), ["src/fsdp/plan.cc:3 order"])

    def test_the_map_must_say_what_is_there(self) -> None:
        changed = {"docs/map.md": CLEAN["docs/map.md"].replace("`engine` | Is there | `a.h` | 1", "`engine` | Is there | `b.h` | 1"),
                   "src/trace/long.cc": "\n" * 110}
        self.assertEqual(self.findings(changed), ["docs/map.md:6 map", "docs/map.md:9 map"])

    def test_exceptions_and_rtti_are_refused_in_src(self) -> None:
        text = "int f() {\n  try { throw 1; }\n  catch (int) {}\n  return typeid(int) == dynamic_cast<B*>(a);\n}\n"
        expected = [f"src/engine/b.cc:{n} language" for n in (2, 2, 3, 4, 4)]
        self.assertEqual(self.findings({"src/engine/b.cc": text, "tools/a.cc": text}), expected)

    def test_words_in_comments_and_literals_do_not_count(self) -> None:
        text = '// try again, never throw\n/* catch\n throw */ const char* s = "try \\" throw";\nauto r = R"(try)";\n' \
               "int retry = 0;  // typeid\nchar c = '\"';\n"
        self.assertEqual(self.findings({"src/engine/b.cc": text}), [])

    def test_line_numbers_survive_comments(self) -> None:
        self.assertEqual(self.findings({"src/engine/b.cc": "/* one\ntwo */\nthrow 1;\n"}), ["src/engine/b.cc:3 language"])

    def test_unknown_room_is_refused(self) -> None:
        self.assertEqual(self.findings({"src/misc/a.h": ""}), ["src/misc/a.h:1 order"])
        self.assertEqual(self.findings({"src/a.h": ""}), ["src/a.h:1 order"])

    def sizes(self, path: str, text: str) -> list[str]:
        return [finding for finding in self.findings({path: text}) if finding.endswith(" size")]

    def test_files_have_at_most_500_lines(self) -> None:
        self.assertEqual(self.sizes("src/engine/b.cc", "\n" * 500), [])
        self.assertEqual(self.sizes("src/engine/b.cc", "\n" * 501), ["src/engine/b.cc:501 size"])
        self.assertEqual(self.sizes("tools/b.cc", "\n" * 501), [])

    def test_functions_have_at_most_60_lines(self) -> None:
        def function(lines: int, head: str = "int f(int a) {") -> str:
            return "\n" + head + "\n" + "  g();\n" * (lines - 2) + "}\n"

        self.assertEqual(self.sizes("src/engine/b.cc", function(60) * 2), [])
        self.assertEqual(self.sizes("tests/engine/b.cc", function(99)), [])
        for head in ("int f(int a) {", "A::A(int a)\n    : a_{a}, b_(1) {", "struct B f() const {",
                     "Expected<int> f() noexcept override {", "auto f = [](int a) {", "extern struct B* f(int a) {"):
            text = "namespace a {\nclass A {" + function(61 - head.count("\n"), head) + "};\n}\n"
            self.assertEqual(self.sizes("src/engine/b.cc", text), ["src/engine/b.cc:3 size"], head)
        self.assertEqual(self.sizes("tools/b.cc", function(61)), ["tools/b.cc:2 size"])

    def test_tables_types_and_macros_are_no_functions(self) -> None:
        rows = "  {1, \"}\"},\n" * 99
        text = f"constexpr Row kRows[] = {{\n{rows}}};\nstruct S {{\n" + "  int a;\n" * 99 + "};\n"
        text += "#define M(x) \\\n" + "  { x; \\\n" * 70 + "  x\nenum class E : int {\n" + "  kA,\n" * 99 + "};\n"
        text += "int a = 1'000'000; char b = '{'; const char* c = \"{\";  // {\n"
        self.assertEqual(self.sizes("src/engine/b.cc", text), [])

    def test_braces_that_do_not_match_are_reported(self) -> None:
        self.assertEqual(self.sizes("src/engine/b.cc", "void f() {\n"), ["src/engine/b.cc:2 size"])
        self.assertEqual(self.sizes("src/engine/b.cc", "void f() {}\n}\n"), ["src/engine/b.cc:2 size"])

    def test_exit_status(self) -> None:
        self.assertEqual(self.exit_status(""), 0)
        self.assertEqual(self.exit_status("throw 1;\n"), 1)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(rules.main([folder]), 2)

    def exit_status(self, text: str) -> int:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in {"docs/map.md": "| 1 | `engine` | Is there | `a.cc` | 1 |\n", "src/engine/a.cc": text}.items():
                (Path(folder) / name).parent.mkdir(parents=True)
                (Path(folder) / name).write_text(content, encoding="utf-8")
            with contextlib.redirect_stdout(io.StringIO()):
                return int(rules.main([folder]))


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Runs docs/first-hour.md: writes its files, runs its commands in order in one shell, in a scratch folder with a
separate home folder, and compares their output with the page.

    first_hour_test.py --source SOURCE --build BUILD --work WORK [--torch VENV]

In the page, an indented block contains commands. ```cpp and ```cmake blocks are files, named by their first line.
The lines of a ```text block must be in the output of the commands before it. "..." matches any text.

Commands that run differently:
  cmake --build rondo-build   a dry run of the configured build. BUILD then replaces it
  sudo apt-get install        the packages are compared with those of scripts/lib.sh
  torchrun                    if it is not installed, a shell function starts the ranks with torchrun's variables
  the section on libtorch     only with --torch, in that virtual environment with its torchrun. Of the other sections
                              only the required ones run
Exit status: 0, 1 (a difference; the reason is printed), 77 (this machine lacks a program that the page needs).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

TORCH = "Sharded training with libtorch"
WITH_TORCH = ("Install", "One program", TORCH)
NCCL = "A program for NCCL"
TIMEOUT_S = 1200


@dataclass
class Block:
    line: int
    section: str
    commands: str
    printed: list[str] = field(default_factory=list)


@dataclass
class Page:
    files: dict[str, str] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)


def fail(why: str) -> None:
    print(f"first_hour: {why}")
    sys.exit(1)


def skip(why: str) -> None:
    print(f"first_hour: skipped: {why}")
    sys.exit(77)


def read_page(text: str) -> Page:
    page, section = Page(), ""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif line.startswith("```"):
            end = lines.index("```", at + 1)
            body = lines[at + 1:end]
            if line in ("```cpp", "```cmake"):
                page.files[body[0].split()[1]] = "\n".join(body) + "\n"
            elif line == "```text":
                page.blocks[-1].printed += body
            else:
                fail(f"line {at + 1}: a block '{line}' is neither a file nor the output of commands")
            at = end
        elif line.startswith("    "):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end]):
                end += 1
            body = "\n".join(each[4:] for each in lines[at:end]).rstrip("\n")
            page.blocks.append(Block(at + 1, section, body))
            at = end - 1
        at += 1
    return page


PRELUDE = r"""
set -euo pipefail
sudo() {
  [ "$1 $2" = "apt-get install" ] || { echo "not a command of the page: sudo $*"; return 1; }
  printf 'apt:'; printf ' %s' "${@:3}"; echo
}
cmake() {
  case "$*" in
    "--build rondo-build")
      command cmake --build rondo-build -- -n >/dev/null
      mv rondo-build rondo-configured
      ln -s "$BUILD" rondo-build ;;
    *"-B rondo-build"*)
      if [ -L rondo-build ]; then rm rondo-build; mv rondo-configured rondo-build; fi
      command cmake "$@" ;;
    *) command cmake "$@" ;;
  esac
}
play_torchrun() {
  [ "$1 $2" = "--no-python --nproc-per-node" ] || { echo "unsupported arguments of torchrun: $*"; return 1; }
  local nranks=$3 rank pids=()
  shift 3
  for ((rank = 0; rank < nranks; ++rank)); do
    RANK=$rank WORLD_SIZE=$nranks LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$nranks MASTER_ADDR=127.0.0.1 \
      MASTER_PORT=$FREE_PORT TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=False RONDO_PORT=$FREE_PORT "$@" &
    pids+=($!)
  done
  for rank in "${pids[@]}"; do wait "$rank" || return 1; done
}
command -v torchrun >/dev/null || torchrun() { play_torchrun "$@"; }
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def environment(args: argparse.Namespace, home: Path) -> dict[str, str]:
    """The environment of a new shell, without variables of launchers, rondo or CUDA toolkits."""
    path = os.environ["PATH"]
    if args.torch:
        path = f"{args.torch}/bin:{path}"
    env = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "BUILD": str(args.build),
           "FREE_PORT": str(free_port()),
           "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMP_NUM_THREADS": "1",
           "CMAKE_BUILD_TYPE": "Debug",  # compiles faster
           # If CMake looks for a CUDA compiler, it finds one that fails.
           "CUDACXX": "/bin/false"}
    if shutil.which("ccache"):  # keeps its cache
        env["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
        env["CCACHE_DIR"] = subprocess.run(["ccache", "-k", "cache_dir"], capture_output=True, text=True,
                                           check=True).stdout.strip()
    for folder in sorted(args.source.glob("build/nccl_abi/*/include")):  # if the system has no nccl.h
        env["CPLUS_INCLUDE_PATH"] = str(folder)
    return env


def has_nccl_header(env: dict[str, str]) -> bool:
    found = subprocess.run(["g++", "-E", "-x", "c++", "-I/usr/local/cuda/include", "-"], input="#include <nccl.h>\n",
                           env=env, capture_output=True, text=True)
    return found.returncode == 0


def run(blocks: list[Block], env: dict[str, str], folder: Path) -> list[str]:
    """Returns the output of each block."""
    mark = "@@@ block"
    script = PRELUDE
    for number, block in enumerate(blocks):
        script += f"echo '{mark} {number}'\n{block.commands}\n"
    script += f"echo '{mark} end'\n"
    (folder / "commands.sh").write_text(script)
    try:
        done = subprocess.run(["bash", "commands.sh"], cwd=folder, env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as late:
        fail(f"the commands took more than {TIMEOUT_S} s:\n{(late.stdout or b'').decode()}")
    printed = re.split(f"^{mark} .*\n", done.stdout, flags=re.M)[1:]
    if done.returncode != 0:
        block = blocks[min(len(printed), len(blocks)) - 1]
        fail(f"line {block.line} of the page, exit status {done.returncode}:\n{block.commands}\n\n{printed[-1]}")
    return printed


def compare(block: Block, printed: str) -> None:
    lines = printed.split("\n")
    for expected in block.printed:
        pattern = re.compile(".*".join(re.escape(part) for part in expected.split("...")))
        if not any(pattern.fullmatch(line) for line in lines):
            fail(f"line {block.line} of the page: '{expected}' is not in the output of\n{block.commands}\n\n"
                 f"{printed}")


def check_packages(printed: str, source: Path) -> None:
    lists = re.findall(r"^(?:BUILD|TEST)_PACKAGES=\(([^)]*)\)", (source / "scripts/lib.sh").read_text(), flags=re.M)
    build, tests = (set(each.split()) for each in lists)
    named = [set(line.split()[1:]) for line in printed.split("\n") if line.startswith("apt:")]
    if not named or named[0] != build:
        fail(f"the page's packages are {named[:1]}, those of scripts/lib.sh {build}")
    for more in named[1:]:
        if not more <= tests:
            fail(f"the page names packages that no test uses: {more - tests}")


def check_no_cuda(folder: Path, prefix: Path) -> None:
    """A build with RONDO_CUDA=OFF compiles no kernel, and the installed package does not search for CUDA."""
    if "fatbin" in (folder / "rondo-configured/build.ninja").read_text():
        fail("with RONDO_CUDA=OFF the build still compiles CUDA kernels")
    for cache in folder.glob("**/CMakeCache.txt"):
        if "CMAKE_CUDA_COMPILER:" in cache.read_text():
            fail(f"{cache} has a CUDA compiler")
    for package in prefix.glob("lib/cmake/rondo/*.cmake"):
        code = re.sub(r"#.*", "", package.read_text())
        if re.search(r"CUDA|nvcc", code):
            fail(f"{package} searches for CUDA")


def check_links(source: Path, prefix: Path) -> None:
    doc = prefix / "share/doc/rondo"
    page = doc / "docs/first-hour.md"
    if page.read_text() != (source / "docs/first-hour.md").read_text():
        fail(f"{page} is not the page")
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", prose):
        if not (page.parent / target).exists():
            fail(f"{page} links to {target}, but that is not installed")


def check_trace(file: Path) -> None:
    events = json.loads(file.read_text())["traceEvents"]
    ranks = {event["pid"] for event in events}
    names = json.dumps([event for event in events if event.get("ph") == "M"])
    if len(ranks) != 2 or "fsdp compute" not in names or "fsdp waits" not in names:
        fail(f"{file} has {len(ranks)} processes, or lacks the rows of sharded training")


def check_examples(source: Path, build: Path) -> None:
    """The build has all examples in the part of the examples' CMakeLists.txt without libtorch."""
    text, _, torch = (source / "examples/CMakeLists.txt").read_text().partition("if(TARGET rondo::torch)")
    for name in re.findall(r"add_(?:executable|library)\(((?:example|own)\w+)", text):
        built = [build / name, build / f"lib{name}.so"]
        if not any(path.exists() for path in built) and name != "example_02_mpi_comm":
            fail(f"the installed example {name} was not built")
    if not torch:
        fail("examples/CMakeLists.txt has no part for libtorch")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--torch", type=Path)
    args = parser.parse_args()
    for program in ("g++", "pkg-config", "ninja", "mpirun"):
        if not shutil.which(program):
            skip(f"there is no {program}")
    shutil.rmtree(args.work, ignore_errors=True)
    folder, home = args.work / "here", args.work / "home"
    prefix = home / "opt/rondo"
    folder.mkdir(parents=True)
    home.mkdir()
    (folder / "rondo").symlink_to(args.source)

    page = read_page((args.source / "docs/first-hour.md").read_text())
    for name, text in page.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    env = environment(args, home)
    blocks = [b for b in page.blocks if (b.section in WITH_TORCH if args.torch else b.section != TORCH)]
    if not has_nccl_header(env):
        print(f"first_hour: there is no nccl.h: '{NCCL}' is not run")
        blocks = [b for b in blocks if b.section != NCCL]
    if not any(b.section == TORCH for b in page.blocks) or {b.section for b in blocks} < set(WITH_TORCH[:2]):
        fail("the page lacks a section that this test uses by name")

    printed = run(blocks, env, folder)
    for block, text in zip(blocks, printed):
        compare(block, text)
    check_packages("".join(printed), args.source)
    check_no_cuda(folder, prefix)
    check_links(args.source, prefix)
    if not args.torch:
        check_trace(folder / "trace.json")
        check_examples(args.source, folder / "examples-build")
    print(f"first_hour: {sum(len(b.commands.splitlines()) for b in blocks)} lines of commands, {len(blocks)} blocks")


if __name__ == "__main__":
    main()

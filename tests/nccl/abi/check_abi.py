#!/usr/bin/env python3
"""Compares rondo's libnccl.so.2 with one version of NVIDIA's NCCL, fetched by scripts/fetch_nccl.sh.

  symbols   our library exports all nccl* and pnccl* names of NVIDIA's, equally weak or strong, and no other names
  facts     src/nccl/abi.h has the numbers, layouts and prototypes of NVIDIA's header (facts.cc, compiled twice)
  program   program.cc, compiled with NVIDIA's header and linked with our library, runs with threads and processes

Exit status: 0 no differences, 1 differences, 77 a requirement is missing (the reason is printed). If
REQUIRE_NVIDIA_NCCL is set, as on CI, a missing requirement is an error, too.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SKIP = 77
# Exported, but in no public header of that version.
UNDECLARED = {"ncclResetDebugInitInternal", "ncclGinOutboxCreateRequirement", "ncclGinInboxA2ACreateRequirement"}
TEAMS = {"ncclTeamWorld", "ncclTeamLsa", "ncclTeamRail"}  # overloaded in C++
TEAM_RANKS = {"ncclTeamRankToWorld", "ncclTeamRankToLsa"}


def skip(reason: str) -> int:
    print(f"skipped: {reason}")
    return 1 if os.environ.get("REQUIRE_NVIDIA_NCCL") else SKIP


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return done.stdout


def exports(library: Path) -> dict[str, str]:
    """Maps each exported name to W or T."""
    found = {}
    for line in run(["nm", "-D", "--defined-only", str(library)]).splitlines():
        kind, name = line.split()[1:3]
        found[name] = kind
    return found


def is_nccl(name: str) -> bool:
    return re.match(r"p?nccl[A-Z]", name) is not None


def check_symbols(ours: Path, theirs: Path) -> list[str]:
    mine, nvidia = exports(ours), exports(theirs)
    wanted = {name: kind for name, kind in nvidia.items() if is_nccl(name)}
    wrong = [f"{name} is missing" for name in wanted.keys() - mine.keys()]
    both = sorted(wanted.keys() & mine.keys())
    wrong += [f"{name} is {mine[name]} here, {wanted[name]} there" for name in both if mine[name] != wanted[name]]
    wrong += [f"{name} is exported, but it is not a name of NCCL" for name in mine if not is_nccl(name)]
    dynamic = run(["readelf", "-d", str(ours)])
    if "[libnccl.so.2]" not in next((line for line in dynamic.splitlines() if "SONAME" in line), ""):
        wrong.append("the SONAME is not libnccl.so.2")
    if re.search(r"Version definition section", run(["readelf", "-V", str(ours)])):
        wrong.append("the library defines symbol versions, but NVIDIA's does not")
    print(f"symbols: {len(mine)} here, {len(wanted)} of NCCL's there, {len(wrong)} differences")
    return wrong


def function_lines(library: Path) -> str:
    lines = []
    for name in sorted(exports(library)):
        if not name.startswith("nccl") or name in UNDECLARED:
            continue
        macro = "TEAM" if name in TEAMS else "TEAM_RANK" if name in TEAM_RANKS else "FUNCTION"
        lines.append(f"{macro}({name})")
    return "\n".join(lines) + "\n"


def facts(compiler: list[str], program: Path, definitions: dict[str, str], includes: list[Path]) -> dict[str, str]:
    command = compiler + [f"-D{name}={value}" for name, value in definitions.items()]
    command += [argument for folder in includes for argument in ("-I", str(folder))]
    # The program calls no function of the library, so it is linked without it.
    run(command + ["-O2", "-Wno-invalid-offsetof", "-o", str(program), str(HERE / "facts.cc")])
    return dict(line.split(" = ", 1) for line in run([str(program)]).splitlines())


def check_facts(options: argparse.Namespace, nccl: Path, work: Path) -> list[str]:
    listing = work / "functions.inc"
    listing.write_text(function_lines(nccl / "lib/libnccl.so.2"), encoding="utf-8")
    common = {"FACTS_FUNCTIONS": f'"{listing}"', "NCCL_OS_LINUX": "1"}
    code = version_code(options.version)
    theirs = facts(
        options.cxx,
        work / "facts_theirs",
        common | {"FACTS_HEADER": "<nccl.h>", "FACTS_DEVICE_HEADER": "<nccl_device.h>", "FACTS_VERSION": str(code)},
        [nccl / "include", options.cuda_include],
    )
    ours = facts(
        options.cxx,
        work / "facts_ours",
        common | {"FACTS_HEADER": '"nccl/abi.h"', "FACTS_VERSION": "23203"},
        [options.source / "src", options.source / "include"],
    )
    wrong = [f"{name}: {ours.get(name)} here, {fact} there" for name, fact in theirs.items() if ours.get(name) != fact]
    print(f"facts: {len(theirs)} compared, {len(wrong)} differences")
    return wrong + (["there are hardly any facts"] if len(theirs) < 100 else [])


def version_code(version: str) -> int:
    major, minor, patch = (int(part) for part in version.split("."))
    return major * 10000 + minor * 100 + patch


def check_program(options: argparse.Namespace, nccl: Path, work: Path) -> list[str]:
    program = work / "program"
    folder = options.library.parent
    run(
        options.cxx
        + ["-O2", "-DNCCL_HEADER=<nccl.h>", "-I", str(nccl / "include"), "-I", str(options.cuda_include)]
        + ["-o", str(program), str(HERE / "program.cc"), "-L", str(folder), "-l:libnccl.so.2", "-pthread"]
        + [f"-Wl,-rpath,{folder}", "-Wl,-z,now"]
    )
    wrong = []
    for world in ("threads", "processes"):
        done = subprocess.run([str(program), world], capture_output=True, text=True, check=False, timeout=50)
        print(done.stdout.rstrip())
        if done.returncode != 0:
            wrong.append(f"the program with ranks as {world} failed ({done.returncode}) {done.stderr}")
    return wrong


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("symbols", "facts", "program"))
    parser.add_argument("--version", required=True, help="Version of NVIDIA's NCCL, for example 2.30.7.")
    parser.add_argument("--nccl", required=True, type=Path, help="Folder with the downloads of scripts/fetch_nccl.sh.")
    parser.add_argument("--library", required=True, type=Path, help="Path of rondo's libnccl.so.2.")
    parser.add_argument("--source", required=True, type=Path, help="Top folder of rondo's sources.")
    parser.add_argument("--work", required=True, type=Path, help="Folder for compiled programs.")
    parser.add_argument("--cxx", required=True, help="C++ compiler.")
    parser.add_argument("--cuda-include", type=Path, help="Folder of cuda_runtime.h, which NVIDIA's header includes.")
    options = parser.parse_args(arguments)
    options.library = options.library.resolve()
    options.cxx = [options.cxx, "-std=c++20"]

    nccl = options.nccl / options.version
    if not (nccl / "complete").exists():
        return skip(f"{nccl} is not there: scripts/fetch_nccl.sh could not fetch NCCL {options.version} from PyPI")
    if options.what != "symbols" and not (options.cuda_include and (options.cuda_include / "cuda_runtime.h").exists()):
        return skip("no CUDA toolkit was found when the build was configured: nccl.h needs cuda_runtime.h")
    work = options.work / f"{options.what}_{options.version}"
    work.mkdir(parents=True, exist_ok=True)
    if options.what == "symbols":
        wrong = check_symbols(options.library, nccl / "lib/libnccl.so.2")
    else:
        wrong = (check_facts if options.what == "facts" else check_program)(options, nccl, work)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Resources of the CUDA kernels: registers, stack and spills of every kernel for every architecture, from the
assembler's log (cmake/cuda.cmake keeps it next to the images).

Prints a table. Fails if a kernel is missing, if it uses more registers than a block of 512 threads can have, or if a
hot kernel (sums of float, half and bfloat16, copies, optimizers) of an optimised image uses local memory. Exit
status 77: no images.

    cuda_resources_test.py FOLDER HAVE_CUDA WHY_NOT [UNOPTIMISED_IMAGE ...]
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

MAX_REGISTERS = 128  # 65536 of a multiprocessor for 512 threads
TYPES_H = Path(__file__).parents[2] / "include/rondo/types.h"
DTYPES = re.findall(r'X\(k\w+, \d+, "(\w+)", \d+, k', TYPES_H.read_text())
HOT = {f"rondo_{what}_{dtype}_sum" for what in ("interpret", "reduce") for dtype in ("float", "half", "bfloat16")}
HOT |= {"rondo_interpret_copy", "rondo_copy"}
OPTIMIZER = {f"rondo_optimizer_{rule}" for rule in ("sgd", "momentum", "adam", "adadelta")}
OPTIMIZER |= {"rondo_floats_add", "rondo_floats_scale", "rondo_add_squares"}
HOT |= OPTIMIZER
EXPECTED = {"copy": {"rondo_interpret_copy", "rondo_copy", "rondo_clock"}, "optimizer": OPTIMIZER}
OPS = ("sum", "prod", "max", "min")
for image in (*DTYPES, "mixed"):
    EXPECTED[image] = {f"rondo_{what}_{image}_{op}" for what in ("interpret", "reduce") for op in OPS}

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes cumulative stack size)?(?:.*?(\d+) bytes smem)?")


@dataclass
class Usage:
    kernel: str
    arch: str
    registers: int = 0
    stack: int = 0
    spills: int = 0
    shared: int = 0


def usages(log: str) -> list[Usage]:
    """One entry for each kernel and architecture."""
    found: list[Usage] = []
    for line in log.splitlines():
        if entry := ENTRY.search(line):
            found.append(Usage(entry.group(1), entry.group(2)))
        elif (stack := STACK.search(line)) and found:
            found[-1].stack = max(found[-1].stack, int(stack.group(1)))
            found[-1].spills += int(stack.group(2)) + int(stack.group(3))
        elif (used := USED.search(line)) and found:
            found[-1].registers = int(used.group(1))
            found[-1].stack = max(found[-1].stack, int(used.group(2) or 0))
            found[-1].shared = int(used.group(3) or 0)
    return found


def faults_of(image: str, found: list[Usage], optimised: bool = True) -> list[str]:
    faults = []
    archs = sorted({u.arch for u in found})
    for arch in archs or ["any architecture"]:
        missing = EXPECTED[image] - {u.kernel for u in found if u.arch == arch}
        faults += [f"{image}: {kernel} is missing for {arch}" for kernel in sorted(missing)]
    for u in found:
        if not 0 < u.registers <= MAX_REGISTERS:
            faults.append(f"{u.kernel}, {u.arch}: {u.registers} registers of {MAX_REGISTERS}")
        if optimised and u.kernel in HOT and (u.stack or u.spills):
            faults.append(f"{u.kernel}, {u.arch}: {u.stack} bytes of stack, {u.spills} of spills; it is hot")
    return faults


def check_the_checker() -> None:
    """Uses a log with every fault, to detect a pattern that no longer matches."""
    log = (
        "ptxas info    : Compiling entry function 'rondo_copy' for 'sm_90'\n"
        "    32 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 129 registers, used 1 barriers, 32 bytes cumulative stack size, 29088 bytes smem\n"
    )
    found = usages(log)
    assert found == [Usage("rondo_copy", "sm_90", 129, 32, 12, 29088)], found
    faults = faults_of("copy", found)
    missing = [f"copy: {kernel} is missing for sm_90" for kernel in sorted(EXPECTED["copy"] - {"rondo_copy"})]
    assert missing and faults[: len(missing)] == missing, faults
    assert ["129 registers" in fault for fault in faults[len(missing):]] == [True, False], faults
    assert "12 of spills" in faults[-1], faults
    assert faults_of("copy", found, optimised=False) == faults[:-1]
    assert len(faults_of("copy", [])) == len(EXPECTED["copy"])


def main(arguments: list[str]) -> int:
    folder, have_cuda, why_not = Path(arguments[0]), arguments[1] == "ON", arguments[2]
    unoptimised = arguments[3:]
    check_the_checker()
    if not have_cuda:
        print(f"skipped: this build has no CUDA images: {why_not}")
        return 77
    faults: list[str] = []
    print(f"{'kernel':36} {'arch':8} {'registers':>9} {'stack':>6} {'spills':>6} {'shared':>7}")
    for image in EXPECTED:
        log = folder / f"{image}.ptxas"
        if not log.is_file():
            faults.append(f"{log} is missing: build the target rondo_cuda_images")
            continue
        found = usages(log.read_text(encoding="utf-8"))
        for u in sorted(found, key=lambda u: (u.kernel, len(u.arch), u.arch)):
            print(f"{u.kernel:36} {u.arch:8} {u.registers:9} {u.stack:6} {u.spills:6} {u.shared:7}")
        faults += faults_of(image, found, image not in unoptimised)
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

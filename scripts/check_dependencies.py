#!/usr/bin/env python3
"""Checks what the compiler does not: who may include whom, and what src/ may contain.

Rules (docs/architecture.md, "Rooms"):
  order     a room includes itself and rooms of lower levels only; rooms of one level do not know each other
  public    src/fsdp, adapters/ and examples/ use the public headers only; adapters/X/include holds public headers too,
            for all that stands right of adapters
  paths     an include in quotes names a file from src/, include/ or the own top folder; only tests, benchmarks,
            examples and adapters may also name a file beside them
  cuda      no CUDA header outside *.cu and *.cuh
  language  no exceptions and no RTTI in src/
  size      a file of src/ with more than 500 lines is reported, which does not fail the check

Prints one line per finding, `path:line: rule: what is wrong`. Exit status: 0 clean, 1 findings, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LEVELS: tuple[tuple[str, ...], ...] = (
    ("include",),
    ("os",),
    ("cuda",),
    ("algorithms", "kernels", "protocol", "topology", "trace"),
    ("schedule",),
    ("transport",),
    ("engine",),
    ("core",),
    ("nccl", "fsdp", "tools"),
    ("adapters",),
)
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
PUBLIC_ONLY = {"fsdp", "adapters", "examples"}
UNRESTRICTED = {"tests", "bench"}  # they look everywhere; the rules on paths and CUDA hold for them too
TOP_FOLDERS = ("include", "src", "tools", "adapters", "examples", "tests", "bench")
SUFFIXES = {".h", ".hpp", ".cc", ".cpp", ".c", ".cu", ".cuh"}
CUDA_SUFFIXES = {".cu", ".cuh"}
MAX_LINES = 500

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CUDA_HEADER = re.compile(
    r"^(cuda|cuda_\w+|cuda/.*|cub/.*|thrust/.*|cooperative_groups(/.*)?|cooperative_groups\.h|"
    r"device_launch_parameters\.h|driver_types\.h|nvml\.h|nccl\.h|nvtx3/.*)$"
)
CUDA_NAMES = re.compile(r"^cuda(_\w+)?(\.h|\.hpp)?$")
FORBIDDEN_WORD = re.compile(r"\b(throw|try|catch|dynamic_cast|typeid)\b")
NOISE = re.compile(
    r'R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"' r'|"(?:\\.|[^"\\\n])*"' r"|'(?:\\.|[^'\\\n])+'" r"|//[^\n]*" r"|/\*.*?\*/",
    re.DOTALL,
)


@dataclass(frozen=True)
class Finding:
    path: Path
    line: int
    rule: str
    text: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {'warning: ' if self.warning else ''}{self.rule}: {self.text}"


def room_of(path: Path) -> str | None:
    """The room of a file by its path from the top, None for src/x.cc, which lies in no room."""
    if path.parts[0] != "src":
        return path.parts[0]
    return path.parts[1] if len(path.parts) > 2 else None


def without_noise(text: str) -> str:
    """Comments and literals blanked out, lines kept."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    return NOISE.sub(blank, text)


def is_cuda_header(name: str) -> bool:
    return bool(CUDA_HEADER.match(name) or CUDA_NAMES.match(name))


def room_of_include(top: Path, own: str, name: str) -> str | None:
    """The room of an include in quotes, None when no such file exists."""
    if (top / "include" / name).is_file():
        return "include"
    if (top / "src" / name).is_file():
        return room_of(Path("src") / name)
    if any((adapter / "include" / name).is_file() for adapter in (top / "adapters").glob("*")):
        return "adapters"
    for other in ("tools", "examples", "tests"):  # tests and benchmarks of their parts
        if own in UNRESTRICTED and (top / other / name).is_file():
            return other
    return own if own not in LEVELS[0] and (top / own / name).is_file() else None


def may_include(room: str, name: str, target: str) -> str | None:
    """Why `room` may not include `name` of room `target`; None when it may."""
    if target == room or room in UNRESTRICTED or target == "include":
        return None
    if room == "examples" and target == "adapters":
        return None
    if room in PUBLIC_ONLY:
        return f"{room} uses the public headers only, not {name}"
    if target not in LEVEL_OF:
        return f"{name} lies in {target}, which is no room of src/"
    if LEVEL_OF[target] < LEVEL_OF[room]:
        return None
    return f"{room} (level {LEVEL_OF[room]}) must not include {name} of {target} (level {LEVEL_OF[target]})"


def check_includes(top: Path, path: Path, room: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, name = match.groups()
        ours = quote == '"' and (top / "src" / name).is_file()  # the room cuda/ has no header of CUDA's
        if is_cuda_header(name) and not ours and path.suffix not in CUDA_SUFFIXES:
            yield Finding(path, number, "cuda", f"<{name}> outside *.cu and *.cuh")
        if quote == "<" and not name.startswith("rondo/"):
            continue
        target = room_of_include(top, path.parts[0], name)
        if target is None:
            beside = room in UNRESTRICTED | {"examples", "adapters"} and (top / path.parent / name).is_file()
            if not beside and not is_cuda_header(name):
                yield Finding(path, number, "paths", f'"{name}" is no file of src/, include/ or {path.parts[0]}/')
            continue
        reason = may_include(room, name, target)
        if reason is not None:
            yield Finding(path, number, "order", reason)


def check_language(path: Path, text: str) -> Iterator[Finding]:
    for number, line in enumerate(without_noise(text).splitlines(), 1):
        for match in FORBIDDEN_WORD.finditer(line):
            yield Finding(path, number, "language", f"'{match.group()}' in src/ (no exceptions, no RTTI)")


def check_file(top: Path, path: Path) -> Iterator[Finding]:
    text = (top / path).read_text(encoding="utf-8")
    room = room_of(path)
    known = room in LEVEL_OF or room in UNRESTRICTED or room in PUBLIC_ONLY
    if room is None or not known:
        yield Finding(path, 1, "order", "lies in no known room (scripts/check_dependencies.py lists them)")
        return
    yield from check_includes(top, path, room, text)
    if path.parts[0] == "src":
        yield from check_language(path, text)
        lines = len(text.splitlines())
        if lines > MAX_LINES:
            yield Finding(path, lines, "size", f"{lines} lines: do two ideas share a room?", warning=True)


def check_tree(top: Path) -> list[Finding]:
    """All findings below `top`, in the order of paths."""
    findings: list[Finding] = []
    for folder in TOP_FOLDERS:
        for file in sorted((top / folder).rglob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                findings += check_file(top, file.relative_to(top))
    return findings


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("top", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    top: Path = parser.parse_args(arguments).top
    if not (top / "src").is_dir():
        print(f"{top} has no src/", file=sys.stderr)
        return 2
    findings = check_tree(top)
    for finding in findings:
        print(finding)
    errors = sum(not finding.warning for finding in findings)
    print(f"check_dependencies: {errors} errors, {len(findings) - errors} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""Checks rules that the compiler does not: allowed includes, and the contents of src/.

Rules (docs/map.md has the rooms and their levels; this script reads them there):
  order     a room includes itself and rooms of lower levels only, not rooms of its own level. adapters/ and
            examples/ use the public headers only, src/fsdp these and a few rooms
  map       the table of docs/map.md names each room of src/ with a file that exists and its lines, within 10 % or 100
  paths     an include in quotes names a file from src/, include/ or the own top folder; only tests, benchmarks,
            examples and adapters may also name a file beside them
  cuda      no CUDA header outside *.cu and *.cuh
  language  no exceptions and no RTTI in src/
  size      a file of src/ has at most 500 lines, a function of src/ and tools/ at most 60; a table (`= {...}`) is no
            function

Prints one line per finding, `path:line: rule: what is wrong`. Exit status: 0 clean, 1 findings, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAP = Path("docs/map.md")
MAP_ROW = re.compile(r"^\| (\d+) \| `([\w/]+)` \| .+ \| `([\w./]+)` \| ([\d,]+) \|$")
PUBLIC_ONLY: dict[str, set[str]] = {"adapters": set(), "examples": {"adapters"}, "fsdp": {"base", "kernels", "device/driver"}}
UNRESTRICTED = {"tests", "bench"}  # they may include everything; the rules on paths and CUDA apply to them too
TOP_FOLDERS = ("include", "src", "tools", "adapters", "examples", "tests", "bench")
SUFFIXES = {".h", ".hpp", ".cc", ".cpp", ".c", ".cu", ".cuh"}
CUDA_SUFFIXES = {".cu", ".cuh"}
MAX_LINES, MAX_FUNCTION_LINES = 500, 60

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
DIGIT_SEPARATOR = re.compile(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F]{3})")
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
TYPE_HEAD = re.compile(
    r"(?:(?:public|private|protected)\s*:\s*)*(?:template\s*<.*>\s*)?"
    r"(?:(?:inline|constexpr|static|typedef)\s+)*(?:namespace|class|struct|union|enum|extern)\b(?!.*\)\s*(?:const)?\s*$)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Finding:
    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


@dataclass(frozen=True)
class Room:
    level: int
    line: int  # of docs/map.md
    begin_with: str
    num_lines: int


def read_map(top: Path) -> dict[str, Room]:
    """The rooms of docs/map.md, and the folders beside src/."""
    rooms = {"include": Room(0, 0, "", 0), "adapters": Room(1000, 0, "", 0)}
    for number, line in enumerate((top / MAP).read_text(encoding="utf-8").splitlines(), 1):
        if match := MAP_ROW.match(line):
            rooms[match[2]] = Room(int(match[1]), number, match[3], int(match[4].replace(",", "")))
    return rooms


def room_of(rooms: dict[str, Room], path: Path) -> str | None:
    """The room of a file by its path from the top; None for src/x.cc, which is in no room."""
    if path.parts[0] != "src":
        return path.parts[0]
    if "/".join(path.parts[1:3]) in rooms:
        return "/".join(path.parts[1:3])
    return path.parts[1] if len(path.parts) > 2 else None


def without_noise(text: str) -> str:
    """The text with comments and literals blanked out and the same lines."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    return NOISE.sub(blank, text)


def is_cuda_header(name: str) -> bool:
    return bool(CUDA_HEADER.match(name) or CUDA_NAMES.match(name))


def room_of_include(rooms: dict[str, Room], top: Path, own: str, name: str) -> str | None:
    """The room of an include in quotes; None if no such file exists."""
    if (top / "include" / name).is_file():
        return "include"
    if (top / "src" / name).is_file():
        return room_of(rooms, Path("src") / name)
    if any((adapter / "include" / name).is_file() for adapter in (top / "adapters").glob("*")):
        return "adapters"
    for other in ("tools", "examples", "tests"):  # for the tests and benchmarks of their parts
        if own in UNRESTRICTED and (top / other / name).is_file():
            return other
    return own if own != "include" and (top / own / name).is_file() else None


def may_include(rooms: dict[str, Room], room: str, name: str, target: str) -> str | None:
    """The reason why `room` may not include `name` of room `target`; None if it may."""
    if target == room or room in UNRESTRICTED or target == "include":
        return None
    if room in PUBLIC_ONLY:
        allowed = PUBLIC_ONLY[room]
        beside = f" and {', '.join(sorted(allowed))}" if allowed else ""
        return None if target in allowed else f"{room} uses the public headers{beside} only, not {name}"
    if target not in rooms:
        return f"{name} lies in {target}, which is no room of {MAP}"
    if rooms[target].level < rooms[room].level:
        return None
    return f"{room} (level {rooms[room].level}) must not include {name} of {target} (level {rooms[target].level})"


def check_includes(rooms: dict[str, Room], top: Path, path: Path, room: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, name = match.groups()
        if is_cuda_header(name) and path.suffix not in CUDA_SUFFIXES:
            yield Finding(path, number, "cuda", f"<{name}> outside *.cu and *.cuh")
        if quote == "<" and not name.startswith("rondo/"):
            continue
        target = room_of_include(rooms, top, path.parts[0], name)
        if target is None:
            beside = room in UNRESTRICTED | {"examples", "adapters"} and (top / path.parent / name).is_file()
            if not beside and not is_cuda_header(name):
                yield Finding(path, number, "paths", f'"{name}" is no file of src/, include/ or {path.parts[0]}/')
            continue
        reason = may_include(rooms, room, name, target)
        if reason is not None:
            yield Finding(path, number, "order", reason)


def check_language(path: Path, text: str) -> Iterator[Finding]:
    for number, line in enumerate(without_noise(text).splitlines(), 1):
        for match in FORBIDDEN_WORD.finditer(line):
            yield Finding(path, number, "language", f"'{match.group()}' in src/ (no exceptions, no RTTI)")


def long_functions(text: str) -> Iterator[tuple[int, int]]:
    """(line, number of lines) of every function above the limit, and (line, 0) if braces do not match."""
    code = without_noise(DIGIT_SEPARATOR.sub("", text))
    code = DIRECTIVE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), code)
    open_braces: list[int | None] = []  # where a function begins; -1: an initialiser; None: a type, a table, a block
    head = 0  # start of the text before the next brace
    for at, char in enumerate(code):
        if char == "{":
            words = code[head:at].strip()
            inside = any(begin is not None for begin in open_braces)
            if words and not code[at - 1].isspace():
                open_braces.append(-1)
                continue
            is_function = not inside and words and not words.endswith("=") and not TYPE_HEAD.match(words)
            open_braces.append(at - len(code[head:at].lstrip()) if is_function else None)
        elif char == "}":
            if not open_braces:
                yield code.count("\n", 0, at) + 1, 0
                return
            begin = open_braces.pop()
            if begin == -1:
                continue
            if begin is not None:
                first, last = code.count("\n", 0, begin) + 1, code.count("\n", 0, at) + 1
                if last - first >= MAX_FUNCTION_LINES:
                    yield first, last - first + 1
        if char in "{};":
            head = at + 1
    if open_braces:
        yield code.count("\n") + 1, 0


def check_size(path: Path, text: str) -> Iterator[Finding]:
    lines = len(text.splitlines())
    if path.parts[0] == "src" and lines > MAX_LINES:
        yield Finding(path, lines, "size", f"{lines} lines: do two ideas share a room?")
    for line, length in long_functions(text):
        what = f"a function of {length} lines, limit {MAX_FUNCTION_LINES}" if length else "braces do not match"
        yield Finding(path, line, "size", what)


def check_file(rooms: dict[str, Room], top: Path, path: Path) -> Iterator[Finding]:
    text = (top / path).read_text(encoding="utf-8")
    room = room_of(rooms, path)
    if room is None or (room not in rooms and room not in UNRESTRICTED and room not in PUBLIC_ONLY):
        yield Finding(path, 1, "order", f"lies in no room of {MAP}")
        return
    yield from check_includes(rooms, top, path, room, text)
    if path.parts[0] == "src":
        yield from check_language(path, text)
    if path.parts[0] in {"src", "tools"}:
        yield from check_size(path, text)


def count_lines(rooms: dict[str, Room], top: Path) -> dict[str, int]:
    num_lines = dict.fromkeys(rooms, 0)
    for path in (path for folder in ("src", "tools") for path in (top / folder).rglob("*") if path.is_file()):
        room = room_of(rooms, path.relative_to(top))
        if room in num_lines:
            num_lines[room] += len(path.read_text(encoding="utf-8").splitlines())
    return num_lines


def check_map(rooms: dict[str, Room], top: Path) -> Iterator[Finding]:
    """Checks that docs/map.md matches the tree."""
    num_lines = count_lines(rooms, top)
    for name, room in rooms.items():
        if room.line == 0:
            continue
        folder = top / ("tools" if name == "tools" else f"src/{name}")
        if not (folder / room.begin_with).is_file():
            yield Finding(MAP, room.line, "map", f"{name} has no file {room.begin_with}")
        elif abs(num_lines[name] - room.num_lines) > max(100, num_lines[name] // 10):
            yield Finding(MAP, room.line, "map", f"{name} has {num_lines[name]} lines, not {room.num_lines} "
                                                 "(scripts/check_dependencies.py --update-map)")


def update_map(top: Path) -> None:
    """Writes the number of lines of each room into docs/map.md."""
    num_lines = count_lines(read_map(top), top)
    lines = (top / MAP).read_text(encoding="utf-8").splitlines()
    for i, line in enumerate(lines):
        if match := MAP_ROW.match(line):
            lines[i] = f"{line[: match.start(4)]}{num_lines[match[2]]:,} |"
    (top / MAP).write_text("\n".join(lines) + "\n", encoding="utf-8")


def check_tree(top: Path) -> list[Finding]:
    """All findings below `top`, in the order of paths."""
    rooms = read_map(top)
    findings = list(check_map(rooms, top))
    for folder in TOP_FOLDERS:
        for file in sorted((top / folder).rglob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                findings += check_file(rooms, top, file.relative_to(top))
    return findings


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("top", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--update-map", action="store_true", help=f"write the rooms' lines into {MAP}, then check")
    options = parser.parse_args(arguments)
    top: Path = options.top
    if not (top / MAP).is_file():
        print(f"{top} has no {MAP}", file=sys.stderr)
        return 2
    if options.update_map:
        update_map(top)
    findings = check_tree(top)
    for finding in findings:
        print(finding)
    print(f"check_dependencies: {len(findings)} errors")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

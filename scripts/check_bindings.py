#!/usr/bin/env python3
"""Checks in the log of LD_DEBUG=bindings that every nccl symbol used by other files comes from one library.

Prints the number of symbols that each file bound. Exit status: 0 all come from the library, 1 some do not or there is
none, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

BINDING = re.compile(
    r"binding file (?P<user>.+?) \[\d+\] to (?P<giver>.+?) \[\d+\]: "
    r"(?:normal|lazy|protected) symbol [`'](?P<name>[^']+)'"
)


def nccl_bindings(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """user file -> symbol -> file that defines it, for symbols named nccl* or pnccl*."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for line in lines:
        match = BINDING.search(line)
        if match and re.match(r"p?nccl[A-Z]", match["name"]):
            found[match["user"]][match["name"]] = match["giver"]
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="where the symbols have to come from")
    parser.add_argument("logs", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    wanted = os.path.realpath(options.library)
    num_bound, wrong = 0, []
    for log in options.logs:
        with log.open(encoding="utf-8", errors="replace") as lines:
            for user, symbols in sorted(nccl_bindings(lines).items()):
                if os.path.realpath(user) == wanted:
                    continue  # the library's own use
                num_bound += len(symbols)
                wrong += [(user, name, giver) for name, giver in symbols.items() if os.path.realpath(giver) != wanted]
                print(f"{user}: {len(symbols)} nccl symbols bound")
    for user, name, giver in wrong:
        print(f"{user} takes {name} from {giver}")
    if num_bound == 0:
        print("no nccl symbol was bound: was the log written with LD_DEBUG=bindings and LD_BIND_NOW=1?")
        return 1
    print(f"{num_bound} bindings, {len(wrong)} of them not to {options.library}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Jobs of several processes that live throughout a benchmark and compute in bursts, so that jobs can take turns. A line
of input starts a burst of one job while the others wait."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass

DEADLINE_S = 120.0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass(frozen=True)
class Burst:
    """The answers of the ranks: a list of numbers for each rank, the first of them its seconds."""

    ranks: list[list[float]]

    @property
    def seconds(self) -> float:
        return max(rank[0] for rank in self.ranks)

    def mean(self, column: int) -> float:
        return sum(rank[column] for rank in self.ranks) / len(self.ranks)


class Job:
    """Ranks with torchrun's variables, one thread each. They answer every line with `columns` numbers."""

    def __init__(self, name: str, command: list[str], nranks: int, columns: int) -> None:
        self.name, self.columns = name, columns
        self.errors = tempfile.TemporaryFile("w+")
        shared = {"WORLD_SIZE": str(nranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                  "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self.ranks = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                             env=os.environ | shared | {"RANK": str(r), "LOCAL_RANK": str(r)})
            for r in range(nranks)]

    def run(self, line: str) -> Burst:
        """Raises SystemExit with the ranks' error output if one has ended, or does not answer before the deadline."""
        watchdog = threading.Timer(DEADLINE_S, lambda: [rank.kill() for rank in self.ranks])
        watchdog.start()
        try:
            return self._run(line)
        except BrokenPipeError:
            raise SystemExit(self._last_words()) from None
        finally:
            watchdog.cancel()

    def _run(self, line: str) -> Burst:
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.write(line + "\n")
            rank.stdin.flush()
        answers = []
        for rank in self.ranks:
            assert rank.stdout is not None
            answer = rank.stdout.readline().split()
            if len(answer) != self.columns:
                raise SystemExit(self._last_words())
            answers.append([float(word) for word in answer])
        return Burst(answers)

    def _last_words(self) -> str:
        self.errors.seek(0)
        return f"{self.name}: a rank ended early, or was ended after {DEADLINE_S:.0f} s:\n{self.errors.read()[-2000:]}"

    def end(self) -> None:
        for rank in self.ranks:
            assert rank.stdin is not None
            try:
                rank.stdin.close()
            except BrokenPipeError:
                pass
        until = time.monotonic() + DEADLINE_S
        for rank in self.ranks:
            try:
                rank.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
            assert rank.stdout is not None
            rank.stdout.close()
        self.errors.close()

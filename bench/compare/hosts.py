"""Hosts on one machine: network namespaces that a bridge joins, with optional rate limits and delays.

Traffic between them is this machine's TCP over veth pairs, on cores that all hosts share. A rate limit (tbf) or a delay
(bench/hosts/frame_relay.cc) makes the link, not the cores, the bottleneck. Needs root.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path


CONGESTION_CONTROL = "cubic"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Hosts:
    """A context that makes the namespaces and removes them. names[i] has addresses[i]."""

    def __init__(self, count: int, relay_program: Path) -> None:
        mark = f"rondo{os.getpid()}"
        self.names = [f"{mark}h{i}" for i in range(count)]
        self.addresses = [f"10.78.0.{i + 1}" for i in range(count)]
        self._switch = f"{mark}s"
        self._relay_program = relay_program
        self._relay: subprocess.Popen[str] | None = None
        self._directory = tempfile.TemporaryDirectory(prefix="rondo-hosts-")

    def __enter__(self) -> Hosts:
        try:
            self._make()
        except subprocess.CalledProcessError as error:
            self.__exit__()
            raise SystemExit(f"cannot make network namespaces (needs root): {error.stderr.strip()}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_relay()
        for name in [*self.names, self._switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        self._directory.cleanup()

    def _make(self) -> None:
        _ip("netns", "add", self._switch)
        for name in self.names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        self._join("br0", "eth0", "port", self.addresses)

    def _join(self, bridge: str, device: str, port: str, addresses: list[str]) -> None:
        _ip("-n", self._switch, "link", "add", bridge, "type", "bridge")
        _ip("-n", self._switch, "link", "set", bridge, "up")
        for i, name in enumerate(self.names):
            end = ("type", "veth", "peer", "name", f"{port}{i}", "netns", self._switch)
            _ip("-n", name, "link", "add", device, *end)
            _ip("-n", self._switch, "link", "set", f"{port}{i}", "master", bridge, "up")
            _ip("-n", name, "addr", "add", f"{addresses[i]}/24", "dev", device)
            _ip("-n", name, "link", "set", device, "up")
            # Linux's own default, whatever this machine's is. BBR, for example, paces by timers, which costs bursty
            # senders a quarter of the time.
            subnet = addresses[i].rsplit(".", 1)[0] + ".0/24"
            route = ["route", "replace", subnet, "dev", device, "src", addresses[i]]
            _ip("-n", name, *route, "congctl", CONGESTION_CONTROL)

    def add_network(self, megabits_per_s: float) -> None:
        """Adds a second card, eth1, to each host, on its own switch, and limits both cards to this rate."""
        self._join("br1", "eth1", "other", [f"10.80.0.{i + 1}" for i in range(len(self.names))])
        for device, port in (("eth0", "port"), ("eth1", "other")):
            self.limit(megabits_per_s, device, port)

    def inside(self, host: int, *argv: str) -> list[str]:
        """The command line that runs argv on the host, with its own host name and IPC namespace. Without the latter UCX
        would use shared memory between hosts."""
        named = f'hostname {self.names[host]}; exec "$@"'
        return ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "--ipc", "sh", "-c", named, "sh", *argv]

    def limit(self, megabits_per_s: float, device: str = "eth0", port: str = "port") -> None:
        """Limits both directions of every host's link to this rate."""
        shape = ["root", "tbf", "rate", f"{megabits_per_s}mbit", "burst", "256kb", "latency", "100ms"]
        for i in range(len(self.names)):
            self._tc(i, "replace", *shape, device=device, port=port)

    def no_limit(self) -> None:
        for i in range(len(self.names)):
            self._tc(i, "del", "root")

    def _tc(self, host: int, what: str, *arguments: str, device: str = "eth0", port: str = "port") -> None:
        """Runs tc for both ends of the host's cable."""
        for namespace, end in ((self.names[host], device), (self._switch, f"{port}{host}")):
            argv = ["ip", "netns", "exec", namespace, "tc", "qdisc", what, "dev", end, *arguments]
            subprocess.run(argv, check=True)

    def delay(self, delay_ms: float) -> None:
        """Delays frames by this time one way. From now on frame_relay is the switch."""
        ports = [f"port{i}" for i in range(len(self.names))]
        for port in ports:
            _ip("-n", self._switch, "link", "set", port, "nomaster")
        argv = [str(self._relay_program), "--delay-ms", str(delay_ms), *ports]
        self._relay = subprocess.Popen(
            ["ip", "netns", "exec", self._switch, *argv], stdout=subprocess.PIPE, text=True
        )
        assert self._relay.stdout is not None
        if self._relay.stdout.read(1) != "r":
            raise SystemExit("frame_relay does not start")

    def no_delay(self) -> None:
        self._stop_relay()
        for i in range(len(self.names)):
            _ip("-n", self._switch, "link", "set", f"port{i}", "master", "br0")

    def _stop_relay(self) -> None:
        if self._relay is not None:
            self._relay.kill()
            self._relay.wait()
            self._relay = None

    def mpirun(self, nranks: int) -> list[str]:
        """Open MPI's mpirun on the first host, which starts ranks on the others through the script `agent`."""
        agent = Path(self._directory.name) / "agent"
        if not agent.exists():
            cases = "\n".join(f"{a}) ns={n};;" for a, n in zip(self.addresses, self.names))
            run = 'exec ip netns exec "$ns" unshare --uts --ipc sh -c "hostname $ns; $*"'
            agent.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}\n*) exit 1;;\nesac\nshift\n{run}\n')
            agent.chmod(0o755)
        each = nranks // len(self.names)
        return [
            *self.inside(0, "mpirun.openmpi"),
            *("-H", ",".join(f"{a}:{each}" for a in self.addresses)),
            *("--mca", "plm", "rsh", "--mca", "plm_rsh_agent", shlex.quote(str(agent))),
            *("--mca", "oob_tcp_if_include", "eth0", "--mca", "btl_tcp_if_include", "eth0"),
        ]

"""The table of contenders: program and command line. A setting is one row; names follow bench/README.md."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from .hosts import Hosts

CORE_COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")  # the speed targets name them one by one
CUT_COLLECTIVES = ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter")  # a block for each rank
COLLECTIVES = (*CORE_COLLECTIVES, "broadcast", "reduce", "all_to_all", "gather", "scatter", "barrier")
GLOO_COLLECTIVES = ("all_reduce", "all_gather", "broadcast", "reduce", "all_to_all", "barrier")
ALL_SIZES_BYTES = (8, 64, 256) + tuple(1024 * 4**k for k in range(10))

# Memory settings of the C library (+thp): its heap in huge pages, never given back, for libraries that allocate in
# every call. The benchmark's own buffers use huge pages with every contender.
THP_ENV = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "67108864",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


@dataclass(frozen=True)
class Contender:
    name: str
    family: str  # of PROGRAMS
    mca: tuple[tuple[str, str], ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    program_args: tuple[str, ...] = ()
    collectives: tuple[str, ...] = COLLECTIVES
    min_bytes: int = 0
    max_ranks: int = 64

    @property
    def is_peer(self) -> bool:
        return self.family != "rondo"

    def measures(self, nranks: int, collective: str, size_bytes: int) -> bool:
        return collective in self.collectives and size_bytes >= self.min_bytes and nranks <= self.max_ranks


def _openmpi(
    name: str,
    *mca: tuple[str, str],
    env: dict[str, str] | None = None,
    collectives: tuple[str, ...] = COLLECTIVES,
) -> Contender:
    return Contender(name, "openmpi", mca=mca, env=env or {}, collectives=collectives)


def _peers() -> list[Contender]:
    nocma = ("btl_vader_single_copy_mechanism", "none")
    ucx = (("pml", "ucx"), ("osc", "ucx"), ("pml_ucx_tls", "any"), ("pml_ucx_devices", "any"))
    posix = {"UCX_TLS": "posix,self", "UCX_POSIX_SEG_SIZE": "32768"}
    dynamic = ("coll_tuned_use_dynamic_rules", "1")
    only_all_reduce = ("all_reduce",)
    rows = [
        _openmpi("ompi"),
        _openmpi("ompi-yield", ("mpi_yield_when_idle", "1")),
        _openmpi("ompi-nocma", nocma),
        _openmpi("ompi-nocma-f131072", nocma, ("btl_vader_max_send_size", "131072")),
        _openmpi("ompi-ucx", *ucx, env={"UCX_TLS": "posix,cma,self"}),
        _openmpi("ompi-posix-seg32768", *ucx, env=posix),
        _openmpi("ompi-posix-seg61440", *ucx, env={**posix, "UCX_POSIX_SEG_SIZE": "61440"}),
        _openmpi(
            "ompi-posix-seg32768-ar4",
            *ucx,
            dynamic,
            ("coll_tuned_allreduce_algorithm", "4"),
            env=posix,
            collectives=only_all_reduce,
        ),
        _openmpi(
            "ompi-posix-seg32768-ar5",
            *ucx,
            dynamic,
            ("coll_tuned_allreduce_algorithm", "5"),
            env=posix,
            collectives=only_all_reduce,
        ),
        _openmpi("ompi-sm", ("coll_sm_priority", "95")),
        Contender("mpich", "mpich"),
        Contender("mpich-nocma", "mpich", env={"UCX_TLS": "posix,self"}),
        Contender("gloo", "gloo", collectives=GLOO_COLLECTIVES),
    ]
    with_thp = [replace(row, name=row.name + "+thp", env={**row.env, **THP_ENV}) for row in rows]
    return rows + with_thp


def _rondo() -> list[Contender]:
    return [
        Contender("rondo", "rondo"),
        Contender("rondo-registered", "rondo", program_args=("--registered",), collectives=("all_reduce",)),
        Contender(
            "rondo-ring", "rondo", env={"RONDO_ALGO": "ring"}, collectives=("all_reduce",), min_bytes=16 << 20
        ),
    ]


CONTENDERS: dict[str, Contender] = {row.name: row for row in _rondo() + _peers()}
# The best settings at most points of bench/results/peers_2cpu*.json, with 2, 4 or 8 processes.
QUICK_PEERS = (
    "ompi-yield+thp",
    "ompi-ucx+thp",
    "ompi-posix-seg61440+thp",
    "ompi-nocma-f131072+thp",
    "ompi-sm+thp",
    "mpich+thp",
)


def points_of(collectives: tuple[str, ...], sizes_bytes: tuple[int, ...], nranks: int) -> list[tuple[str, int]]:
    """All valid points: a cut collective needs an element for each rank, a barrier has no size."""
    return [
        (c, b)
        for c in collectives
        for b in ((0,) if c == "barrier" else sizes_bytes)
        if c not in CUT_COLLECTIVES or b // 4 >= nranks
    ]


def _between_hosts() -> list[Contender]:
    """Only one setting: waiting ranks yield the cores, which all hosts share."""
    yields = ("mpi_yield_when_idle", "1")
    ucx = (("pml", "ucx"), ("osc", "ucx"), ("pml_ucx_tls", "any"), ("pml_ucx_devices", "any"))
    own = ("ring", "hierarchical", "hierarchical_one_shot")
    return [
        Contender("rondo", "rondo"),
        *(Contender(f"rondo-{a}", "rondo", program_args=("--algorithm", a)) for a in own),
        Contender("rondo-ucx", "rondo", env={"RONDO_TRANSPORT": "shm+ucx"}),
        Contender("rondo-one-rail", "rondo", env={"RONDO_RAILS": "eth0"}),
        Contender("rondo-two-rails", "rondo", env={"RONDO_RAILS": "eth0,eth1"}),
        _openmpi("ompi-tcp", ("pml", "ob1"), ("btl", "self,vader,tcp"), yields),
        _openmpi("ompi-ucx", *ucx, yields),
    ]


HOST_CONTENDERS: dict[str, Contender] = {row.name: row for row in _between_hosts()}

PROGRAMS = {
    "rondo": "contender_rondo",
    "openmpi": "contender_mpi_openmpi",
    "mpich": "contender_mpi_mpich",
    "gloo": "contender_gloo",
}


def command(
    contender: Contender, program_dir: Path, nranks: int, control: Path, hosts: Hosts | None = None
) -> list[str]:
    """The command line up to the options of the timing loop. With hosts, the first ranks are on the first one."""
    program = str(program_dir / PROGRAMS[contender.family])
    if contender.family in ("rondo", "gloo"):  # they fork their ranks
        where = ["--netns", ",".join(hosts.names)] if hosts else []
        return [program, "--nranks", str(nranks), *where, *contender.program_args]
    if contender.family == "openmpi":
        launcher = [*(hosts.mpirun(nranks) if hosts else ["mpirun.openmpi"]), "-np", str(nranks)]
        launcher += ["--oversubscribe", "--bind-to", "none"]
        for key, value in contender.mca:
            launcher += ["--mca", key, value]
    else:
        launcher = ["mpirun.mpich", "-np", str(nranks)]
    return [*launcher, program, *contender.program_args, "--control", str(control)]


def environment(contender: Contender, base: dict[str, str]) -> dict[str, str]:
    env = {key: value for key, value in base.items() if not key.startswith(("RONDO_", "UCX_", "OMPI_"))}
    if contender.family == "openmpi":
        # Otherwise Open MPI refuses to run as root, and containers often have no other user.
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return env | contender.env

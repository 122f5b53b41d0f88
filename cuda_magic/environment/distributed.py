"""The variables of NCCL, torch.distributed and of what a program's launcher sets, as data (see variable.py)."""

from __future__ import annotations

from .variable import Variable, anything, integer, one_of

__all__ = ["DISTRIBUTED"]

_PREFIXES = "prefixes of names with commas; ^ excludes, = is exact"
_COMM = "the first communicator"
_GROUP = "torch.distributed.init_process_group"
_NCCL = "NCCL documentation, environment variables"
_TORCH = "ProcessGroupNCCL.hpp, getCvarInt and getCvarBool"
_RENDEZVOUS = "torch/distributed/rendezvous.py, _env_rendezvous_handler"


def _nccl(name: str, meaning: str, legal: str = "", values: tuple[str, ...] = (), check: str = "") -> Variable:
    legal = legal or "0 or 1"
    test = integer() if check or legal == "0 or 1" else anything
    return Variable(name, meaning, "use", test, values, legal, first_use=_COMM, documented=True, source=_NCCL)


def _torch(name: str, meaning: str, legal: str, values: tuple[str, ...] = (), default: str = "") -> Variable:
    return Variable(
        name,
        meaning,
        "use",
        integer()
        if legal[0] in "0s"
        else one_of("0", "1", "y", "n", "yes", "no", "t", "f", "true", "false", case=False),
        values,
        legal,
        default,
        first_use=_GROUP,
        documented=True,
        source=_TORCH,
    )


def _launcher(name: str, meaning: str, legal: str, whole: bool = True) -> Variable:
    return Variable(
        name,
        meaning,
        "use",
        integer() if whole else anything,
        legal=legal,
        first_use=_GROUP,
        documented=True,
        refuses=whole,
        source=f"{_RENDEZVOUS}{': int()' if whole else ''}",
    )


DISTRIBUTED: tuple[Variable, ...] = (
    Variable(
        "NCCL_DEBUG",
        "How much NCCL logs.",
        "use",
        one_of("NONE", "VERSION", "WARN", "ABORT", "INFO", "TRACE", case=False),
        ("WARN", "INFO"),
        "VERSION, WARN, INFO or TRACE, in any case",
        first_use=_COMM,
        documented=True,
        source="NCCL, src/debug.cc, ncclDebugInit: compared without regard to case",
    ),
    Variable(
        "NCCL_DEBUG_SUBSYS",
        "Of which parts NCCL logs at INFO.",
        "use",
        values=("INIT,GRAPH,ENV", "NET", "ALL"),
        legal="names with commas (INIT, COLL, P2P, SHM, NET, GRAPH, TUNING, ENV, ALLOC, ALL), ^ in front excludes",
        first_use=_COMM,
        documented=True,
        source="NCCL, src/debug.cc, ncclDebugInit",
    ),
    _nccl("NCCL_P2P_DISABLE", "1 keeps NCCL from direct copies between GPUs.", values=("1",)),
    _nccl(
        "NCCL_P2P_LEVEL",
        "Up to which distance GPUs copy to each other directly.",
        "LOC, NVL, PIX, PXB, PHB or SYS (older releases: a number)",
        ("NVL", "PIX", "PXB", "PHB", "SYS"),
    ),
    _nccl("NCCL_IB_DISABLE", "1 keeps NCCL from InfiniBand and RoCE: it takes IP sockets.", values=("1",)),
    _nccl("NCCL_IB_HCA", "Which InfiniBand adapters NCCL uses.", _PREFIXES),
    _nccl("NCCL_SHM_DISABLE", "1 keeps NCCL from shared memory between processes of a host.", values=("1",)),
    _nccl("NCCL_NVLS_ENABLE", "0 keeps NCCL from NVLink's multicast (NVLink SHARP).", "0, 1 or 2", ("0",), "number"),
    _nccl("NCCL_PXN_DISABLE", "1 keeps NCCL from reaching a network card by way of another GPU.", values=("1",)),
    _nccl("NCCL_SOCKET_IFNAME", "Which network interface NCCL uses.", _PREFIXES),
    _nccl("NCCL_CUMEM_ENABLE", "1 lets NCCL allocate with cuMem.", "0, 1 or -2", ("0", "1"), "number"),
    _torch(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "What a failed collective does to the process.",
        "0 to 3",
        ("0", "1", "2", "3"),
        "3",
    ),
    _torch("TORCH_NCCL_BLOCKING_WAIT", "1 makes waiting for a collective block.", "true: 1, false: 0", ("0", "1"), "0"),
    _torch(
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
        "After how long without a sign the watchdog ends the process.",
        "seconds, a whole number",
        ("1800",),
    ),
    _torch(
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "How many collectives the flight recorder keeps.",
        "0 is off; a whole number",
        ("2000",),
    ),
    _torch(
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "1 writes the flight recorder's trace when a collective times out.",
        "true: 1, false: 0",
        ("1",),
    ),
    _launcher("MASTER_ADDR", "The host of rank 0.", "a name or an address", whole=False),
    _launcher("MASTER_PORT", "The port on which rank 0 listens.", "a whole number"),
    _launcher("RANK", "The number of this process among all.", "a whole number from 0"),
    _launcher("WORLD_SIZE", "How many processes there are.", "a whole number"),
    Variable(
        "LOCAL_RANK",
        "The number of this process on its host, by which it chooses its GPU.",
        "always",
        integer(),
        legal="a whole number from 0",
        documented=True,
        source="torch/distributed/run.py sets it; programs read it",
    ),
)

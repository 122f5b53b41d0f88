"""Limits of the host: cuInit's "out of memory" speaks of them, never of video memory."""

from __future__ import annotations

from ...render.units import bytes_text
from ..facts import Facts
from ..finding import ERROR, INFO, Check, Finding
from ..places import admin, name_of
from .common import NO_START

GIB = 1 << 30
LITTLE_MEMORY = 2 * GIB
LITTLE_COMMIT = 16 * GIB
NOT_VIDEO = "The start of CUDA failed for want of host memory or address space. It is not about video memory."


_MORE = {
    "kubernetes": "for the pod (resources.limits.memory)",
    "docker": "for the container (docker run --memory)",
    "podman": "for the container (podman run --memory)",
    "slurm": "for the job (sbatch --mem)",
    "wsl": "for WSL (memory= in .wslconfig)",
}


def _short(facts: Facts) -> bool:
    """Code 2: at cuInit, or at a first allocation while the card has room."""
    return facts.startup.code == 2


def address_space(facts: Facts) -> Finding | None:
    """A limit on the address space of this process."""
    limit = facts.host.address_space
    if limit is None:
        return None
    if _short(facts):
        return Finding(
            ERROR,
            f"cuInit answers 2, out of memory; this process may use {bytes_text(limit)} of address space (ulimit -v).",
            f"{NOT_VIDEO} CUDA reserves wide ranges of addresses when it starts, and the limit forbids it.",
            "Lift the limit where the notebook server, job or login shell sets it, and start anew from there:\n"
            "$ ulimit -v unlimited\n"
            "A limit that the administrator sets (limits.conf, the batch system's memory per core) is theirs to lift.",
            "reproduced: one H200, driver 580; 12 GB fails so, 20 GB starts",
            unusable=True,
        )
    return Finding(
        INFO,
        f"The address space of this process is limited to {bytes_text(limit)} (ulimit -v).",
        "CUDA started under it. With more cards or larger models it may not: addresses count, not memory in use.",
        source="setrlimit(2), RLIMIT_AS",
    )


def cgroup(facts: Facts) -> Finding | None:
    """A control group (container, batch job) that is nearly full."""
    limit, used = facts.host.cgroup_limit, facts.host.cgroup_used
    if not _short(facts) or limit is None or used is None or limit - used >= LITTLE_MEMORY:
        return None
    return Finding(
        ERROR,
        f"cuInit answers 2, out of memory; the control group of this process holds {bytes_text(used)}"
        f" of the {bytes_text(limit)} it may.",
        NOT_VIDEO,
        f"Ask for more memory"
        f" {_MORE.get(name_of(facts), 'for this control group (a batch job, a service, a session)')},"
        " or end other processes in it.",
        "glotzerlab/hoomd-blue#356; cgroups(7)",
        unusable=True,
    )


def memory(facts: Facts) -> Finding | None:
    """Little free memory on the host."""
    free = facts.host.memory_available
    if not _short(facts) or free is None or free >= LITTLE_MEMORY:
        return None
    return Finding(
        ERROR,
        f"cuInit answers 2, out of memory; the host has {bytes_text(free)} of memory left.",
        NOT_VIDEO,
        "End processes that hold host memory, or add memory or swap; the more cards are visible, the more is needed.\n"
        "$ free -h",
        "NVIDIA/libnvidia-container#107",
        unusable=True,
    )


def overcommit(facts: Facts) -> Finding | None:
    """Strict accounting of reserved memory."""
    h = facts.host
    if not _short(facts) or h.overcommit != 2 or h.commit_limit is None or h.committed is None:
        return None
    if h.commit_limit - h.committed >= LITTLE_COMMIT:
        return None
    return Finding(
        ERROR,
        f"cuInit answers 2, out of memory; the host counts every reserved byte (vm.overcommit_memory=2), and"
        f" {bytes_text(max(0, h.commit_limit - h.committed))} may still be reserved.",
        NOT_VIDEO,
        admin(facts, "lift it.", "$ sudo sysctl vm.overcommit_memory=0"),
        "proc_sys_vm(5), overcommit_memory",
        unusable=True,
    )


CHECKS = (
    Check("host.address-space", address_space, (*NO_START, "host.", "wsl.many-gpus")),
    Check("host.cgroup-memory", cgroup, (*NO_START, "host.memory", "host.overcommit", "wsl.many-gpus")),
    Check("host.memory", memory, (*NO_START, "host.overcommit", "wsl.many-gpus")),
    Check("host.overcommit", overcommit, (*NO_START, "wsl.many-gpus")),
)

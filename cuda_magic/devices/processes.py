"""Who a process on a GPU is: its name, user and, for a Jupyter kernel, its notebook. Only what one may read."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

__all__ = ["Person", "describe", "own_namespace", "this_process"]

_CONNECTION = re.compile(r"kernel-([0-9a-zA-Z-]+)\.json\Z")
_HOST_PIDS = 0xEFFFFFFC
"""Inode of the machine's first pid namespace (Linux, PROC_PID_INIT_INO)."""
_BUSY = 0.02
"""Share of a core above which a process counts as busy: a waiting kernel uses some for its heartbeat."""

_looks: dict[tuple[int, float], tuple[float, float, float]] = {}
"""(pid, start) -> (time of the last look, its CPU seconds then, idle since)."""


@dataclass(frozen=True)
class Person:
    """One process. Unknown is None."""

    pid: int
    name: str | None = None
    user: str | None = None
    notebook: str | None = None
    """Path of the notebook, for a kernel that one may read."""
    kernel: str | None = None
    """Kernel id, from the connection file's name."""
    idle: float | None = None
    """Seconds without work on the CPU, since this kernel first looked; None at the first look."""
    started: float | None = None
    """Seconds since the epoch."""
    this: bool = False
    """Certainly this process."""
    mine: bool = False
    """A process of the same user."""
    outside: bool = False
    """No process of this pid namespace (a container) is known to use the GPU under this pid."""


def own_namespace() -> bool | None:
    """Whether pids here are the machine's own; False in a container, None where it cannot be known."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _HOST_PIDS  # noqa: PTH116 - the link's target has no path
    except OSError:
        return None


def this_process(listed: Mapping[int, int | None], reserved: int) -> int | None:
    """Which of the processes {pid: bytes} of a card is this one, whose allocator has `reserved` bytes there; or None.

    In a container the driver may tell the machine's pids (as on Kaggle and Colab), which say nothing here. This process
    is on the list all the same: it is taken to be the smallest that holds as much as its allocator has.
    """
    if os.getpid() in listed:
        return os.getpid()
    if own_namespace():
        return None
    large = [(used, pid) for pid, used in listed.items() if used is not None and used >= reserved]
    return min(large)[1] if large else None


def _uses_gpu(pid: int) -> bool | None:
    """Whether a process has NVIDIA's libraries or devices mapped; None where one may not look."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 - /proc
            return any("nvidia" in line or "libcuda" in line for line in maps)
    except OSError:
        return None


def describe(pid: int, this_is_known: bool = False, label: str = "") -> Person:
    """What is known of `pid`.

    Parameters
    ----------
    pid
        As NVML gives it: in some containers the machine's number, which says nothing of a process here.
    this_is_known
        Whether this process is known to use the GPU (its allocator is started).
    label
        ``PRACTICE`` for processes of the practice GPU, of which only this one is real.
    """
    if label:
        return Person(pid, this=True, mine=True) if pid == os.getpid() else Person(pid, label)
    hosts = own_namespace()
    if pid == os.getpid():
        certain = this_is_known or hosts is True or _uses_gpu(pid) is True
        return _read(pid, this=certain) if certain else Person(pid, outside=True)
    if hosts is not True and _uses_gpu(pid) is False:
        return Person(pid, outside=True)  # the same number by chance: that one has nothing of the driver's
    return _read(pid)


def _read(pid: int, this: bool = False) -> Person:
    try:
        process = psutil.Process(pid)
        started = process.create_time()
    except psutil.Error:
        return Person(pid, outside=True)
    user = _try(process.username)
    mine = this or user == _try(psutil.Process().username)
    words: list[str] = _try(process.cmdline) or []
    environment: dict[str, str] = (_try(process.environ) or {}) if mine else {}
    kernel = next((m[1] for m in map(_CONNECTION.search, words) if m), None)
    notebook = environment.get("JPY_SESSION_NAME") if kernel or this else None
    name = _try(process.name)
    return Person(pid, name, user, notebook, kernel, _idle(process, started), started, this, mine)


def _try(call: Any) -> Any:
    try:
        return call()
    except (psutil.Error, OSError, KeyError):
        return None


def _idle(process: psutil.Process, started: float) -> float | None:
    times = _try(process.cpu_times)
    if times is None:
        return None
    now, used = time.monotonic(), times.user + times.system
    key = (process.pid, started)
    before = _looks.get(key)
    if before is None:
        _looks[key] = (now, used, now)
        return None
    at, then, since = before
    if used - then > _BUSY * max(now - at, 0.05) + 0.02:
        since = now
    _looks[key] = (now, used, since)
    return now - since

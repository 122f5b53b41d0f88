"""How CUDA starts, tried in a child process, so that the user's kernel stays untouched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .codes import cuda_name

__all__ = ["Allocation", "StartedDevice", "Startup", "probe"]

QUICK_LIMIT = 15.0
"""Seconds. A healthy start takes 0.1 to 0.3 s; without persistence mode the driver wakes each card first."""
FULL_LIMIT = 120.0
"""Seconds, with the import of torch and a context on each device."""


@dataclass(frozen=True)
class StartedDevice:
    """One device as the CUDA driver numbers it. `total` in bytes."""

    index: int
    name: str | None = None
    total: int | None = None
    compute_capability: tuple[int, int] | None = None
    bus_id: str | None = None
    """``0000:17:00.0``, in sysfs's form."""
    integrated: bool | None = None
    """True where the GPU shares the system's memory."""
    compute_mode: str | None = None


@dataclass(frozen=True)
class Allocation:
    """A first allocation on one device (``--full``): by torch, or by the driver where torch is not installed."""

    index: int
    by: str
    ok: bool
    code: int | None = None
    error: str = ""


@dataclass(frozen=True)
class Startup:
    """What a child process saw. None is what it did not get to know."""

    code: int | None = None
    """cuInit's answer."""
    error: str = ""
    """The name of `code`: ``CUDA_ERROR_OUT_OF_MEMORY``."""
    device_count: int | None = None
    driver_api: int | None = None
    """The newest CUDA that the driver library supports, as 13000 for 13.0 (cuDriverGetVersion)."""
    devices: tuple[StartedDevice, ...] = ()
    no_peers: tuple[tuple[int, int], ...] = ()
    """Pairs of devices that cannot reach each other's memory."""
    load_error: str = ""
    """Why libcuda.so.1 could not be loaded."""
    timed_out: bool = False
    signal: int | None = None
    """The signal that ended the child, if one did."""
    seconds: float | None = None
    full: bool = False
    torch_error: str = ""
    """Why torch could not be imported (``--full``)."""
    torch_available: bool | None = None
    torch_device_count: int | None = None
    arch_list: tuple[str, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    sentence: str = ""

    @property
    def ok(self) -> bool:
        """cuInit answered 0 and there is a device."""
        return self.code == 0 and bool(self.device_count)

    @property
    def driver_cuda(self) -> str | None:
        """`driver_api` as people write it: ``13.0``."""
        return f"{self.driver_api // 1000}.{self.driver_api % 1000 // 10}" if self.driver_api else None


_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}


def probe(full: bool = False, limit: float | None = None, environment: dict[str, str] | None = None) -> Startup:
    """Start CUDA in a child process, which is killed after `limit` seconds.

    Parameters
    ----------
    full
        Also import torch there and make a tensor on each device (seconds instead of a fraction of one).
    limit
        Seconds; by default 15, with `full` 120.
    environment
        Variables of the child; by default those of this process as they are now.
    """
    limit = limit or (FULL_LIMIT if full else QUICK_LIMIT)
    if not sys.executable:
        return Startup(sentence="this Python does not know its own program, so CUDA could not be tried in a child")
    # -I: neither the working folder nor PYTHON* variables change what the child imports; -S: no site-packages needed
    words = [sys.executable, "-I", *([] if full else ["-S"]), str(Path(__file__).with_name("child.py"))]
    started = time.monotonic()
    try:
        child = subprocess.Popen(
            [*words, *(["full", json.dumps([p for p in sys.path if p])] if full else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=os.name == "posix",
        )
    except OSError as error:
        return Startup(sentence=f"no child process could be started: {error.strerror or error}")
    timed_out = False
    try:
        out, _ = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        timed_out = True
        out = _end(child)
    except BaseException:  # an interrupt: the child must not live on
        _end(child)
        raise
    return _read(out, child.returncode, timed_out, time.monotonic() - started, full)


def _end(child: subprocess.Popen[bytes]) -> bytes:
    """Kill the child and its children; gives what it had said. A child stuck in the driver is left to the system."""
    if os.name == "posix":
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    else:
        child.kill()
    try:
        return child.communicate(timeout=2)[0]
    except subprocess.TimeoutExpired as late:
        return late.stdout or b""


def _read(out: bytes, returncode: int | None, timed_out: bool, seconds: float, full: bool) -> Startup:
    told: dict[str, Any] = {}
    for line in out.decode("utf-8", "replace").splitlines():
        try:
            told.update(json.loads(line))
        except ValueError:
            continue  # a library of the user's printed something
    code = told.get("code")
    fields: dict[str, Any] = {
        "code": code,
        "error": (told.get("name") or cuda_name(code)) if code is not None else "",
        "device_count": told.get("device_count"),
        "driver_api": told.get("driver_api"),
        "devices": tuple(_device(d) for d in told.get("devices", ())),
        "no_peers": tuple((int(a), int(b)) for a, b in told.get("no_peers", ())),
        "load_error": told.get("load_error", ""),
        "timed_out": timed_out,
        "signal": -returncode if returncode is not None and returncode < 0 and not timed_out else None,
        "seconds": round(seconds, 3),
        "full": full,
        "torch_error": told.get("torch_error", ""),
        "torch_available": told.get("torch_available"),
        "torch_device_count": told.get("torch_device_count"),
        "arch_list": tuple(told.get("arch_list", ())),
        "allocations": tuple(Allocation(**a) for a in told.get("allocations", ())),
    }
    return Startup(**fields, sentence=_sentence(fields))


def _device(d: dict[str, Any]) -> StartedDevice:
    if "error" in d:
        return StartedDevice(index=d["index"])
    capability = (d["major"], d["minor"]) if d["major"] is not None and d["minor"] is not None else None
    place = (d["domain"], d["bus"], d["slot"])
    return StartedDevice(
        index=d["index"],
        name=d["name"] or None,
        total=d["total"],
        compute_capability=capability,
        bus_id=f"{place[0]:04x}:{place[1]:02x}:{place[2]:02x}.0" if None not in place else None,
        integrated=bool(d["integrated"]) if d["integrated"] is not None else None,
        compute_mode=_MODES.get(d["compute_mode"]) if d["compute_mode"] is not None else None,
    )


def _sentence(fields: dict[str, Any]) -> str:
    """What happened, in words."""
    code, count = fields["code"], fields["device_count"]
    if fields["timed_out"]:
        return "the start of CUDA did not come to an end"
    if fields["load_error"]:
        return "the driver library libcuda.so.1 could not be loaded"
    if fields["signal"] is not None:
        return f"the child process that started CUDA was ended by signal {fields['signal']}"
    if code is None:
        return "the child process ended without an answer"
    if code:
        return f"cuInit answered {code}, {fields['error']}"
    if not count:
        return "cuInit answered 0 and there is no device"
    return f"CUDA starts: {count} device{'s' if count != 1 else ''}"

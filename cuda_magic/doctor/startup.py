"""How CUDA starts, tried in a child process, so that the user's kernel stays untouched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..devices.apart import command
from .codes import cuda_name

__all__ = ["Allocation", "StartedDevice", "Startup", "doing", "probe"]

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
    step: str = ""
    """The last step that the child began: ``load``, ``init``, ``devices``, ``torch`` (its import), ``available``,
    ``allocate``, ``done``. Empty where it told nothing."""
    failed: str = ""
    """Why nothing is known: no child could be started, or it ended otherwise than by a signal without an answer."""
    errno: int | None = None
    """The system's number, where no child could be started."""
    returncode: int | None = None
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
        """cuInit answered 0, there is a device, and the child lived through it."""
        return self.code == 0 and bool(self.device_count) and not self.cut_off

    @property
    def cut_off(self) -> bool:
        """The child hung, died or failed in the driver's own steps: what it told before is not the whole."""
        ended = self.timed_out or self.signal is not None or bool(self.failed)
        return ended and self.step in ("", *DRIVER_STEPS) and not self.with_torch

    @property
    def with_torch(self) -> bool:
        """The driver had started and told its devices: whatever ended the child came with torch (``--full``)."""
        if self.step:
            return self.step in ("torch", "available", "allocate")
        return self.full and self.code == 0 and bool(self.device_count)

    @property
    def allocated(self) -> bool:
        """A first allocation was made on every device."""
        return (
            bool(self.allocations)
            and all(a.ok for a in self.allocations)
            and len(self.allocations) == (self.device_count or 0)
        )

    @property
    def driver_cuda(self) -> str | None:
        """`driver_api` as people write it: ``13.0``."""
        return f"{self.driver_api // 1000}.{self.driver_api % 1000 // 10}" if self.driver_api else None


DRIVER_STEPS = ("load", "init", "devices")
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
    # -I: neither the working folder nor PYTHON* variables change what the child imports; -S: no site-packages needed
    words = ["-I", *([] if full else ["-S"]), str(Path(__file__).with_name("child.py"))]
    started = time.monotonic()
    try:
        child = subprocess.Popen(
            command(*words, *(["full", json.dumps([str(p) for p in sys.path if p])] if full else [])),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=os.name == "posix",
        )
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
        return _untried(what, full, error.errno)
    except (ValueError, subprocess.SubprocessError, MemoryError) as error:
        return _untried(str(error) or type(error).__name__, full)
    child._sigint_wait_secs = 0.0  # type: ignore[attr-defined]  # an interrupt waits for no child that hangs
    timed_out = False
    try:
        out, said = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        timed_out = True
        _kill(child)
        try:
            out, said = child.communicate(timeout=2)
        except subprocess.TimeoutExpired as late:  # stuck in the driver: left to the system
            out, said = late.stdout or b"", late.stderr or b""
    except BaseException:  # an interrupt: the child must not live on, and is not waited for
        _kill(child)
        raise
    return _read(out, said, child.returncode, timed_out=timed_out, seconds=time.monotonic() - started, full=full)


def _untried(why: str, full: bool, number: int | None = None) -> Startup:
    sentence = f"CUDA could not be tried, since no child process could be started ({why})"
    return Startup(failed=why, errno=number, full=full, sentence=sentence)


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and its children."""
    if os.name == "posix":
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    else:
        child.kill()


def _told(out: bytes) -> dict[str, Any]:
    """What the child told; what is not of its kind (another program's words) is passed over."""
    told: dict[str, Any] = {}
    for line in out.decode("utf-8", "replace").splitlines():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        if isinstance(one, dict):
            told.update(one)
    return told


def _read(out: bytes, said: bytes, returncode: int | None, *, timed_out: bool, seconds: float, full: bool) -> Startup:
    told = _told(out)
    code = told.get("code")
    ended = returncode is not None and returncode < 0 and not timed_out
    common: dict[str, Any] = {
        "timed_out": timed_out,
        "signal": -returncode if ended and returncode is not None else None,
        "returncode": returncode,
        "seconds": round(seconds, 3),
        "full": full,
    }
    failed = str(told.get("failed", ""))
    if not failed and not timed_out and not ended and told.get("step") != "done":
        last = said.decode("utf-8", "replace").strip().splitlines()
        unread = ", and what it wrote is no answer" if out.strip() and not told else " without an answer"
        failed = f"it ended with exit code {returncode}{unread}" + (f" ({last[-1][:200]})" if last else "")
    try:
        fields: dict[str, Any] = {
            "code": None if code is None else int(code),
            "error": (told.get("name") or cuda_name(code)) if code is not None else "",
            "device_count": told.get("device_count"),
            "driver_api": told.get("driver_api"),
            "devices": tuple(_device(d) for d in told.get("devices", ())),
            "no_peers": tuple((int(a), int(b)) for a, b in told.get("no_peers", ())),
            "load_error": str(told.get("load_error", "")),
            "step": str(told.get("step", "")),
            "failed": failed,
            "torch_error": str(told.get("torch_error", "")),
            "torch_available": told.get("torch_available"),
            "torch_device_count": told.get("torch_device_count"),
            "arch_list": tuple(told.get("arch_list", ())),
            "allocations": tuple(Allocation(**a) for a in told.get("allocations", ())),
            **common,
        }
    except (TypeError, ValueError, KeyError):
        fields = {"failed": f"it ended with exit code {returncode}, and what it wrote is no answer", **common}
    found = Startup(**fields)
    return replace(found, sentence=_sentence(found))


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


_DOING = {
    "": "the start of Python",
    "load": "the loading of the driver's library",
    "init": "cuInit",
    "devices": "the questions to the driver after cuInit",
    "torch": "import torch",
    "available": "torch.cuda.is_available()",
    "allocate": "the first allocations",
}


def doing(step: str) -> str:
    """What the child was at, in words."""
    return _DOING.get(step, step)


def _sentence(s: Startup) -> str:
    """What happened, in words."""
    if s.timed_out:
        return f"the child process that started CUDA did not come to an end; it was at {doing(s.step)}"
    if s.signal is not None:
        return f"the child process that started CUDA was ended by signal {s.signal} in {doing(s.step)}"
    if s.load_error:
        return f"the driver library could not be loaded: {s.load_error}"
    if s.cut_off or s.code is None:
        return f"the child process that started CUDA gave no answer: {s.failed or 'nothing is known'}"
    if s.code:
        return f"cuInit answered {s.code}, {s.error}"
    if not s.device_count:
        return "cuInit answered 0 and there is no device"
    return f"CUDA starts: {s.device_count} device{'s' if s.device_count != 1 else ''}"

"""What an engine answers. The notebook sends the name of a question and its arguments as JSON, and gets JSON back.

Nothing but text crosses the wire, so notebook and engines may run different releases of Python.
"""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import CudaMagicError
from ..machine import RealMachine, machine

__all__ = ["PROTOCOL", "answer", "host", "snapshot"]

PROTOCOL = 1
"""Raised when an engine and a notebook of different releases would no longer understand each other."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def answer(question: str, arguments: str = "{}") -> str:
    """The answer to `question` as JSON: ``{"value": ...}``, or ``{"error": sentence, "kind": exception}``."""
    _practice()
    try:
        return json.dumps({"value": QUESTIONS[question](**json.loads(arguments))})
    except KeyError:
        return json.dumps({"error": f"its cuda_magic does not know {question!r}", "kind": "Refused"})
    except CudaMagicError as error:
        return json.dumps({"error": str(error), "kind": type(error).__name__})


def _practice() -> None:
    """An engine that was started with CUDA_MAGIC_PRACTICE=1 has the practice GPU from its first answer on."""
    if os.environ.get("CUDA_MAGIC_PRACTICE") == "1" and isinstance(machine(), RealMachine):
        from ..testing import gpu

        gpu()


def host() -> dict[str, str]:
    """The machine that this engine runs on: its name, and what tells it from another one of the same name.

    Containers of one machine share the boot id and have host names of their own; the cards' UUIDs settle the rest
    (see state.py).
    """
    played = getattr(machine(), "host", "")
    if played:
        return {"name": played, "boot": f"practice {played}"}
    name = socket.gethostname()
    try:
        return {"name": name, "boot": _BOOT.read_text(encoding="ascii").strip()}
    except OSError:
        return {"name": name, "boot": f"host {name}"}


def snapshot(alert: int = 95, unit: int = 1) -> dict[str, Any]:
    """All devices of this engine, sizes in `unit` bytes; the values are packed and joined (panel/wire.py)."""
    from ..devices.command import once
    from ..panel import wire

    table = once(alert)
    reading = table.reading
    uuids = [device.uuid for device in reading.devices]
    return {
        "protocol": PROTOCOL,
        "host": host(),
        "pid": os.getpid(),
        "label": reading.label,
        "driver": reading.driver_version,
        "cuda": reading.cuda_version,
        "none": "" if reading.devices else reading.status.sentence or "No GPU found.",
        "cards": [{**card, "uuid": uuid} for card, uuid in zip(wire.cards(table, unit), uuids, strict=True)],
        "values": wire.join([wire.pack(row) for row in wire.values(table, unit)]),
    }


def _diagnosis(full: bool = False, show_private: bool = False) -> dict[str, Any]:
    from importlib.metadata import distributions

    from .. import __version__
    from ..doctor.command import look

    found = look(full=full, show_private=show_private)
    reading = machine().devices().read(processes=False, slow=False)
    packages = {name.lower(): d.version for d in distributions() if (name := d.metadata["Name"])}
    return {
        "host": host(),
        "uuids": [d.uuid for d in reading.devices if d.uuid],
        "label": found.label,
        "verdict": found.verdict,
        "sentence": found.sentence,
        "findings": [asdict(one) for one in found.findings],
        "explained": [asdict(one) for one in found.explained],
        "cards": [d.name or "unknown device" for d in reading.devices if d.parent is None],
        "versions": {
            "driver": reading.driver_version,
            **{v.what: v.version for v in found.versions if not v.what.startswith("device ")},
            "Python": platform.python_version(),
            "cuda_magic": __version__,
        },
        "packages": packages,
    }


def _check(assignments: list[str], force: bool = False) -> dict[str, Any]:
    """Whether this engine would take all of `assignments`; sets nothing."""
    from ..environment import change
    from ..environment.command import situation

    at = situation()
    for name, value in change.parse(assignments).items():
        change.check(name, value, at, force)
    return {"host": host(), "moment": at.progress.words}


def _shown(result: Any) -> dict[str, Any]:
    return {"host": host(), "moment": result.moment, "rows": result.rows(), "label": result.label}


def _set(assignments: list[str], force: bool = False) -> dict[str, Any]:
    from ..environment.command import set_all

    return _shown(set_all(assignments, force))


def _unset(names: list[str]) -> dict[str, Any]:
    from ..environment.command import unset_all

    return _shown(unset_all(names))


def _undo() -> dict[str, Any]:
    from ..environment.command import undo

    return _shown(undo())


def _environment(name: str = "") -> dict[str, Any]:
    """The variables that are set, or the one that is asked for."""
    from ..environment.command import listing, situation
    from ..environment.verdict import verdict

    if not name:
        return _shown(listing())
    at = situation()
    return {
        "host": host(),
        "moment": at.progress.words,
        "rows": [asdict(verdict(name, at))],
        "label": machine().label,
    }


def _changed() -> dict[str, Any]:
    """The values that %cuda_env gave this engine since it started: what a restart has to give again."""
    from ..environment import change

    return {"host": host(), "set": {name: value for name, (value, _) in change.set_at.items()}}


def _start(key: str, interval: float, alert: int, lease: float) -> dict[str, Any]:
    from .sampler import start

    start(key, interval, alert, lease)
    return {}


def _stop(key: str) -> dict[str, Any]:
    from .sampler import stop

    return {"stopped": stop(key)}


QUESTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "snapshot": snapshot,
    "diagnosis": _diagnosis,
    "check": _check,
    "set": _set,
    "unset": _unset,
    "undo": _undo,
    "environment": _environment,
    "changed": _changed,
    "start": _start,
    "stop": _stop,
}

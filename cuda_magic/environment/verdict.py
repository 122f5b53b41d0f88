"""Whether a variable is in effect: from its row, its value, torch's release and how far this process has come."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..devices.model import Device
from .allocator_grammar import read
from .catalogue import Variable, find, near
from .release import Torch
from .secrets import shown
from .state import Progress
from .visible import resolve

__all__ = ["ALLOCATOR_NAMES", "Situation", "Verdict", "first_environment", "takes_effect", "verdict"]

ALLOCATOR_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""In the order in which torch takes them from 2.10 on: the first that is set, even where it is empty."""
FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
RESTART = "after a kernel restart"
REMEDY = "%cuda_env --restart"
"""A restart from the menu drops what was set here."""


@dataclass(frozen=True)
class Verdict:
    """One variable as it is: `state` is what product and documentation call its state."""

    name: str
    value: str | None
    state: str
    note: str = ""
    known: bool = True
    warn: bool = False
    """The value is legal, and something of it does not do what it says."""


@dataclass(frozen=True)
class Situation:
    """All that a verdict depends on, besides the row and the value."""

    environment: Mapping[str, str]
    progress: Progress
    torch: Torch
    started_with: Mapping[str, str] = field(default_factory=dict)
    """The environment of the process's start."""
    set_at: Mapping[str, tuple[str | None, Progress]] = field(default_factory=dict)
    """What %cuda_env set, and how far the process had come then."""
    devices: Sequence[Device] | None = None
    """The cards, None where they cannot be read."""
    live: Mapping[str, Any] = field(default_factory=dict)
    """torch's own account of its allocator's settings, where CUDA is up."""
    backend: str | None = None
    """The backend that torch has loaded."""


def takes_effect(variable: Variable, progress: Progress) -> tuple[str, str]:
    """(state, what to do about it) of a value that is set now."""
    late = {
        "import": (progress.imported, "from the next import of torch"),
        "init": (progress.initialised, "when CUDA starts"),
        "cuinit": (progress.started, "when CUDA starts"),
        "context": (progress.context, "when CUDA starts"),
    }
    if variable.read == "always":
        return "in effect", ""
    if variable.read == "never":
        return "no effect", variable.myth or "nothing reads it"
    if variable.read == "container":
        return "no effect", f"it was read when the container was created; {variable.late}"
    if variable.read == "process":
        return RESTART, f"it is read when a process starts; {REMEDY}"
    if variable.read == "use":
        remedy = f"{variable.late} or {REMEDY}" if variable.late else REMEDY
        return "at first use", f"it is read at {variable.first_use}; if that has happened, {remedy}"
    too_late, state = late[variable.read]
    if not too_late:
        return state, ""
    return RESTART, f"it was read before; {variable.late or REMEDY}"


def not_read(variable: Variable, torch: Torch) -> str:
    """Why the installed torch does not read it, or an empty string."""
    if variable.since and torch.version and torch.release < variable.since:
        return f"torch {torch.version} does not read it; {variable.since[0]}.{variable.since[1]} and newer do"
    if variable.read == "init" and torch.cpu_only:
        return f"torch {torch.version} is a build without CUDA"
    return ""


def faults(name: str, value: str, situation: Situation) -> tuple[str, tuple[str, ...]]:
    """(why `value` would be refused, what else there is to know) whether it is set already or not."""
    variable = find(name)
    if variable is None:
        return "", ("not in the catalogue",)
    if name == "CUDA_VISIBLE_DEVICES":
        return "", resolve(value, situation.devices).lost
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return "the quotes are part of the value; set it without them", ()
    if name in ALLOCATOR_NAMES:
        reading = read(value, situation.torch.release, loaded=situation.backend)
        return reading.refused, (*reading.notes, *_about_names(name, situation))
    notes = []
    if name == "PYTORCH_NO_CUDA_MEMORY_CACHING" and situation.torch.release <= (2, 6):
        notes.append("up to torch 2.6 any value switches caching off, even 0")
    other = next((o for o in FRACTIONS if name in FRACTIONS and o != name), None)
    if other is not None and value and situation.environment.get(other):
        return f"{other} is set too, and JAX raises where both are; unset one", ()
    wrong = variable.check(value)
    return (wrong, tuple(notes)) if variable.refuses else ("", (*filter(None, [wrong]), *notes))


def _about_names(name: str, situation: Situation) -> list[str]:
    notes = []
    if situation.torch.release == (2, 9):
        if name == "PYTORCH_CUDA_ALLOC_CONF":
            notes.append(
                "torch 2.9 prints that this name is deprecated, which is harmless: only this one works for CUDA there"
            )
        else:
            notes.append("torch 2.9 ignores this name for CUDA; use PYTORCH_CUDA_ALLOC_CONF")
    return notes


def verdict(name: str, situation: Situation) -> Verdict:
    """The verdict on `name` as it stands in the environment: a value that was set in time is in effect."""
    value = situation.environment.get(name)
    variable = find(name)
    if variable is None:
        note = "not in the catalogue"
        hint = near(name) if value is not None else ""
        state = "set" if value is not None else "not set"
        value = None if value is None else shown(name, value)
        return Verdict(name, value, state, f"{note}.{hint}" if hint else note, known=False, warn=bool(hint))
    if value is None:
        return Verdict(name, None, "not set")
    refused, notes = faults(name, value, situation)
    state, note = takes_effect(variable, situation.progress)
    fixed = variable.read == "container" and name not in situation.set_at
    if (fixed or state in (RESTART, "at first use")) and _in_time(variable, value, situation):
        state, note = "in effect", ""
    missing = not_read(variable, situation.torch)
    if refused:
        return Verdict(name, value, "invalid", refused)
    if missing:
        state, note = "not read by this torch", missing
    elif winner := _winner(name, situation):
        return Verdict(name, value, "no effect", f"shadowed by {winner}, which is set too")
    elif state == "in effect" and name in ALLOCATOR_NAMES:
        notes = (*notes, *inactive(value, situation))
    warn = bool(notes) and not (name == "CUDA_VISIBLE_DEVICES" and value.strip() in ("", "-1"))
    return Verdict(name, value, state, "; ".join(filter(None, [note, *notes])), warn=warn)


def _winner(name: str, situation: Situation) -> str:
    """The other name of the allocator's configuration that torch takes instead; empty where it takes this one."""
    if name not in ALLOCATOR_NAMES:
        return ""
    first = next(n for n in ALLOCATOR_NAMES if n in situation.environment)
    return "" if first == name else first


def _in_time(variable: Variable, value: str, situation: Situation) -> bool:
    if variable.name in situation.set_at:
        given, then = situation.set_at[variable.name]
        return given == value and takes_effect(variable, then)[0] not in (RESTART, "at first use")
    return situation.started_with.get(variable.name) == value


_LIVE: dict[str, Callable[[str], object]] = {
    "expandable_segments": lambda text: text == "True",
    "max_split_size_mb": lambda text: int(text) << 20,
    "garbage_collection_threshold": float,
}
"""Options whose live value torch tells under a key of the snapshot, and how the text is to be read."""
_LIVE_KEYS = {"max_split_size_mb": "max_split_size"}


def inactive(value: str, situation: Situation) -> list[str]:
    """What was asked for and is not so, as torch's own account of its settings says."""
    differ = []
    for key, text in read(value, situation.torch.release).options.items():
        told = situation.live.get(_LIVE_KEYS.get(key, key))
        if key not in _LIVE or told is None:
            continue
        try:
            same = _LIVE[key](text) == told
        except ValueError:
            continue
        if not same:
            differ.append(f"requested but inactive: {key} is {told} in the running allocator")
    return differ


def noted(verdict_: Verdict, note: str) -> Verdict:
    """The same verdict with `note` in front."""
    return replace(verdict_, note="; ".join(filter(None, [note, verdict_.note])))


def first_environment() -> dict[str, str]:
    """The environment with which this process was started, as far as the system tells."""
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - a pseudo file, read whole
            pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if entry)
            return {os.fsdecode(k): os.fsdecode(v) for k, _, v in pairs}
    except OSError:
        return {}

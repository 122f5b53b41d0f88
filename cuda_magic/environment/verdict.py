"""Whether a variable is in effect, from its row and from the moment that this process is at."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .catalogue import Variable, find
from .state import Moment

__all__ = ["Verdict", "takes_effect", "verdict"]

_UNTIL = {
    "import": (Moment.IMPORTED, "from the next import of torch"),
    "cuinit": (Moment.STARTED, "when CUDA starts"),
    "init": (Moment.CONTEXT, "when CUDA starts"),
    "context": (Moment.CONTEXT, "when CUDA starts"),
}
"""For each reading time: the first moment at which a change is too late, and the state before it."""


@dataclass(frozen=True)
class Verdict:
    """One variable as it is: `state` is what product and documentation call its state."""

    name: str
    value: str | None
    state: str
    note: str = ""
    known: bool = True


def takes_effect(variable: Variable, moment: Moment) -> tuple[str, str]:
    """(state, what to do about it) of a value that is set at `moment`."""
    if variable.read == "always":
        return "in effect", ""
    if variable.read == "never":
        return "no effect", variable.myth or "nothing reads it"
    if variable.read == "container":
        return "no effect", f"it was read when the container was created; {variable.late}"
    if variable.read == "use":
        return (
            f"until {variable.first_use}",
            "" if moment < Moment.CONTEXT else "if that has happened, restart the kernel",
        )
    late, state = _UNTIL[variable.read]
    if moment < late:
        return state, ""
    return "after a kernel restart", variable.late or "restart the kernel: it was read before"


def verdict(
    name: str,
    environment: Mapping[str, str],
    moment: Moment,
    started_with: Mapping[str, str],
    set_at: Mapping[str, tuple[str | None, Moment]],
) -> Verdict:
    """The verdict on `name` as it stands in `environment`.

    `started_with` is the environment of the process's start and `set_at` what %cuda_env set when: a value that has
    not changed since was read in time.
    """
    value = environment.get(name)
    variable = find(name)
    if variable is None:
        return Verdict(name, value, "set" if value is not None else "not set", "not in the catalogue", known=False)
    if value is None:
        return Verdict(name, None, "not set")
    wrong = variable.check(value)
    if wrong:
        return Verdict(name, value, "invalid", wrong)
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    if quoted:
        return Verdict(name, value, "invalid", "the quotes are part of the value; set it without them")
    state, note = takes_effect(variable, moment)
    if state == "after a kernel restart":
        given, when = set_at.get(name, (None, moment))
        in_time = given == value and takes_effect(variable, when)[0] != state
        if in_time or (name not in set_at and started_with.get(name) == value):
            state, note = "in effect", ""
    if name == "PYTORCH_ALLOC_CONF" and "PYTORCH_CUDA_ALLOC_CONF" in environment:
        return Verdict(name, value, "no effect", "shadowed by PYTORCH_CUDA_ALLOC_CONF, which is set too")
    return Verdict(name, value, state, note)


def first_environment() -> dict[str, str]:
    """The environment with which this process was started, as far as the system tells."""
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - a pseudo file, read whole
            pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if entry)
            return {os.fsdecode(k): os.fsdecode(v) for k, _, v in pairs}
    except OSError:
        return {}

"""`%cuda_env` and `cuda-magic env`: listing, explaining, setting."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..render.blocks import Block, Note, Table, Text, Title
from ..result import Result
from . import change
from .catalogue import CATALOGUE, Variable, find
from .state import Moment, now
from .verdict import Verdict, first_environment, takes_effect, verdict

__all__ = ["Environment", "Explanation", "env", "explain", "listing", "set_all", "undo", "unset_all"]

MOMENTS = {
    Moment.BEFORE_IMPORT: "torch is not imported yet.",
    Moment.IMPORTED: "torch is already imported; CUDA is not started.",
    Moment.STARTED: "torch may be imported, and CUDA is already started in this process (cuInit was called).",
    Moment.CONTEXT: "torch is already imported and uses CUDA in this process.",
}


@dataclass(frozen=True, repr=False)
class Environment(Result):
    """The variables that are set, or those that were just changed."""

    moment: str
    variables: tuple[Verdict, ...]
    title: str = "CUDA environment"

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"name": v.name, "value": v.value, "state": v.state, "note": v.note, "known": v.known}
            for v in self.variables
        ]

    def blocks(self) -> Sequence[Block]:
        blocks: list[Block] = [Title(self.title), Text(self.moment)]
        if not self.variables:
            return [*blocks, Text("None of the variables that CUDA or torch read is set; their defaults hold.")]
        blocks.append(
            Table(
                ("variable", "value", "state"),
                [(v.name, "(not set)" if v.value is None else v.value, v.state) for v in self.variables],
            )
        )
        for v in self.variables:
            if v.note:
                severity = "warning" if v.state in ("invalid", "no effect", "after a kernel restart") else "info"
                blocks.append(Note(severity, f"{v.name}: {v.note}"))
        return blocks


@dataclass(frozen=True, repr=False)
class Explanation(Result):
    """One variable, explained."""

    name: str
    meaning: str
    legal: str
    default: str
    read: str
    state: str
    value: str | None
    myth: str
    late: str
    source: str
    verified: bool

    def blocks(self) -> Sequence[Block]:
        rows = [
            ("now", "(not set)" if self.value is None else self.value),
            ("state", self.state),
            ("legal values", self.legal or "any"),
            ("default", self.default or "(none)"),
            ("read", self.read),
            ("if too late", self.late or "restart the kernel"),
            ("source", self.source + ("" if self.verified else " (documented, not tried by us)")),
        ]
        blocks: list[Block] = [Title(self.name), Text(self.meaning), Table(("", ""), rows)]
        if self.myth:
            blocks.append(Note("info", self.myth))
        return blocks


READ = {
    "always": "at each call",
    "import": "when torch is imported",
    "cuinit": "when CUDA starts (torch.cuda.is_available() is enough)",
    "init": "when torch initialises CUDA",
    "context": "when the first context is created",
    "container": "when the container is created",
    "never": "never",
}


def _verdicts(names: Sequence[str]) -> tuple[Verdict, ...]:
    moment, started = now(), first_environment()
    return tuple(verdict(name, os.environ, moment, started, change.set_at) for name in names)


def listing() -> Environment:
    """All variables of the catalogue that are set."""
    return Environment(MOMENTS[now()], _verdicts([v.name for v in CATALOGUE if v.name in os.environ]))


def explain(name: str) -> Result:
    """What one variable means, and how it stands.

    Raises
    ------
    UserError
        If the name is neither known nor set.
    """
    change.known(name)
    variable = find(name)
    if variable is None:
        return Environment(MOMENTS[now()], _verdicts([name]), name)
    return _explanation(variable)


def _explanation(variable: Variable) -> Explanation:
    current = _verdicts([variable.name])[0]
    state = current.state
    if current.value is None:
        state = f"not set; a value set now: {takes_effect(variable, now())[0]}"
    return Explanation(
        variable.name,
        variable.meaning,
        variable.legal,
        variable.default,
        READ.get(variable.read, variable.first_use),
        state,
        current.value,
        variable.myth,
        variable.late,
        variable.source,
        not variable.documented,
    )


def set_all(assignments: Sequence[str], force: bool = False) -> Environment:
    """Check all, then set all or none.

    Raises
    ------
    UserError
        At the first assignment that is not legal; nothing is set then.
    """
    wanted = change.parse(assignments)
    for name, value in wanted.items():
        change.check(name, value, force)
    change.apply(dict(wanted))
    return Environment(MOMENTS[now()], _verdicts(list(wanted)), "set")


def unset_all(names: Sequence[str]) -> Environment:
    """Unset all of `names`."""
    for name in names:
        change.known(name)
    change.apply(dict.fromkeys(names))
    moment = now()
    notes = []
    for name in names:
        variable = find(name)
        state, note = takes_effect(variable, moment) if variable else ("not set", "")
        notes.append(
            Verdict(name, None, "not set" if state == "in effect" else f"unset: {state}", note, bool(variable))
        )
    return Environment(MOMENTS[moment], tuple(notes), "unset")


def undo() -> Environment:
    """Back to what stood before the last change.

    Raises
    ------
    Refused
        If there was none.
    """
    names = change.undo()
    return Environment(MOMENTS[now()], _verdicts(names), "back to what stood before")


def env(words: list[str]) -> tuple[Result, int]:
    """`cuda-magic env [NAME]`: exit code 1 where a variable is invalid or without effect."""
    result = explain(words[0]) if words else listing()
    bad = isinstance(result, Environment) and any(v.state in ("invalid", "no effect") for v in result.variables)
    return result, 1 if bad else 0

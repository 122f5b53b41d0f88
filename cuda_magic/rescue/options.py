"""What a guard was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import UserError

__all__ = ["GONE", "NAMES", "RUNGS", "GuardOptions", "shrunk", "whole_number"]

RUNGS = (
    "holders",
    "collect",
    "caches",
    "compact",
    "expandable",
    "wait",
    "shrink",
    "else",
    "spill",
    "activations",
    "cudamalloc",
)
"""Ids of the rungs, in the order in which they are tried."""

NAMES = (*RUNGS, "retry")
"""What --only and --without may name; ``retry`` is the repeat of a single op at the call."""

GONE = {
    "--checkpoint": (
        "room is now made before the error and nothing is repeated; --repeat says that the statement may run again"
    ),
    "--repeat-anyway": "--repeat says that the statement may run again",
    "--retry-at-call": "room is now made where an operation asks for memory, in every guarded cell",
    "--reserve": "room is now made at the request that finds none, without memory that waits for it",
    "--park": "what has to wait waits on the host, at the speed of the link",
    "--move-anyway": "what makes room keeps every address, and where one is remembered elsewhere nothing moves",
}
"""Options of the release before, and what has taken their place."""


@dataclass(frozen=True)
class GuardOptions:
    """The options of one guarded cell. `wait` in seconds."""

    retries: int = 3
    wait: float = 0.0
    wait_is_set: bool = False
    """Whether `wait` is the setting's, so not named for this cell."""
    shrink: tuple[str, int] | None = None
    """(name, smallest value)"""
    grow: str | None = None
    otherwise: tuple[tuple[str, str], ...] = ()
    """(name, expression) of --else"""
    repeat: bool = False
    """The user knows that the statement can run again."""
    no_move: bool = False
    free_outputs: bool = False
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    report: str | None = None
    quiet: bool = False
    limit: int | None = None
    """Bytes that this process may have of the current device while the cell runs"""

    @property
    def names(self) -> bool:
        """Whether any variable of the user's is named."""
        return bool(self.otherwise or self.shrink or self.grow or self.report)

    @property
    def consent(self) -> bool:
        """Whether the user has said that a statement may run again: by --repeat, or by naming what needs it."""
        return bool(self.repeat or self.shrink or self.otherwise or (self.wait > 0 and not self.wait_is_set))

    def excluded(self, rung: str) -> str:
        """Why a rung is left out by the options, or an empty string."""
        if self.only and rung not in self.only:
            return "not in --only"
        return "excluded by --without" if rung in self.without else ""


def shrunk(text: str, asked: str) -> tuple[str, int]:
    """(name, smallest value) of ``batch_size`` or ``batch_size=8``.

    Raises
    ------
    UserError
        If the smallest value is none; `asked` begins the sentence.
    """
    name, equals, floor = text.partition("=")
    if equals and (not floor.isdecimal() or int(floor) < 1):
        raise UserError(f"{asked} {text}: the smallest value is an integer of 1 or more, as in {name or 'size'}=8.")
    return name, int(floor) if equals else 1


def whole_number(value: Any) -> bool:
    """Whether --shrink and --grow can work with it."""
    return isinstance(value, int) and not isinstance(value, bool)

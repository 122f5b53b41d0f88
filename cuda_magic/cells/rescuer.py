"""What a guard is told while a cell runs statement by statement, and what it may ask for.

The cells room knows how a cell runs and nothing of memory; a rescuer knows memory and nothing of IPython.
A cell that runs without one is the plain cell.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Protocol

__all__ = ["Rescuer", "Step"]


@dataclass(eq=False)
class Step:
    """One top-level statement of a cell."""

    index: int
    """Position in the cell, from 0."""
    source: str
    """Text of the statement, magics already translated."""
    first_line: int
    """Line of the notebook's cell on which it starts, from 1."""
    last_line: int
    names_bound: frozenset[str]
    """Names of the cell's namespace that the statement itself may bind or delete, from its code object."""
    awaits: bool
    """Whether other tasks may run while it runs."""
    node: ast.stmt = field(repr=False, compare=False)
    code: CodeType | None = field(default=None, repr=False, compare=False)
    """What runs; None where it is not known."""

    @property
    def names_perhaps_bound(self) -> Iterable[str]:
        """At least `names_bound`."""
        return self.names_bound


class Rescuer(Protocol):
    """Told of each attempt. An exception from any of these methods ends the rescue, never the user's error.

    Statements that only give constants a name cannot run out of memory: of them nothing is told.

    For one statement, in this order: ``before``, ``during`` (around the attempt); after a failure ``noticed``, and
    if that says True: the frames are forgotten, the names that the attempt bound are put back, then ``recover``; if
    that says True too: ``before`` and ``during`` again, around the repeat.
    """

    def before(self, step: Step, namespace: dict[str, Any]) -> None:
        """An attempt is about to begin. Called for each statement, so it must cost microseconds."""

    def during(self, step: Step) -> AbstractContextManager[Any] | None:
        """What is in force around an attempt; None for the first one, as a rule."""

    def noticed(self, error: BaseException, step: Step) -> bool:
        """Classify a failure, inside the ``except`` block. True: try to rescue. False: raised as in a plain cell.

        The error, its traceback and its frames may be looked at and may not be kept.
        """

    def recover(self, step: Step, namespace: dict[str, Any], lost: tuple[str, ...]) -> bool:
        """Make room, with the failed attempt's frames gone. True: repeat the statement.

        `lost` are the names that the failed attempt rebound, whose earlier value is gone, and which the statement
        may read before it binds them: a repeat would not start from the same values.
        False: the error of the statement's first attempt is raised.
        """

    def gave_up(self, error: BaseException, step: Step) -> Any:
        """The error of the statement is about to be raised; an object to display under its traceback.

        Called after ``noticed`` said False as well as after ``recover`` said False. None: nothing to add, and the
        traceback is that of the plain cell.
        """

    def finished(self) -> None:
        """The last statement succeeded."""

    def left(self) -> None:
        """The cell has ended by an error, which may have come between two of the calls above: nothing stays in force.

        Called after ``gave_up`` too.
        """

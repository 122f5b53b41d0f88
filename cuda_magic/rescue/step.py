"""One next step below a failure, and what the rules for them look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .classify import others_hold_it
from .libraries import HELD
from .situation import Situation
from .survey import Survey

__all__ = ["Case", "NextStep"]


@dataclass(frozen=True)
class NextStep:
    """Why, and the line to run."""

    why: str
    line: str


@dataclass(frozen=True)
class Case:
    """What the rules look at."""

    s: Situation
    where: Survey
    refused: Sequence[str] = ()
    """Why the statement was not repeated."""
    node_names: frozenset[str] = frozenset()
    """Names that the statement reads."""
    touched: frozenset[str] = frozenset()
    """Names that the statement binds, or an earlier one of the cell reads or binds."""

    @property
    def kind(self) -> str:
        return self.s.fault.kind.id

    @property
    def request(self) -> int:
        return self.s.request or 0

    @property
    def mine(self) -> int:
        return self.where.room.reserved if self.where.room else 0

    @property
    def libraries(self) -> int:
        """Bytes that other libraries of this kernel hold."""
        return sum(h.nbytes or 0 for h in self.where.holders if h.kind in (HELD, "library-pool"))

    @property
    def crowded(self) -> bool:
        """Whether others hold the card: then the batch is not to blame."""
        others = self.where.others or 0
        if self.kind in ("context", "other-process"):
            return others > self.libraries
        return others_hold_it(others, self.mine, self.request, self.where.capacity or 0)

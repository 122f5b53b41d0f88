"""Move live tensors together on the card itself, if a plan says that the request will fit afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...render.units import bytes_text
from ..situation import Situation
from . import Did, asked

if TYPE_CHECKING:
    from ...memory.compaction import Outcome

__all__ = ["RUNG"]


class _Compact:
    id = "compact"
    again = False
    changes = False

    def skip(self, s: Situation) -> str:
        if s.options.no_move:
            return "--no-move was given"
        found = asked(s)
        if isinstance(found, str):
            return found
        need = found.need(s)
        if found.room.total < need:
            return f"{bytes_text(found.room.total)} is free in all, {bytes_text(need)} is needed"
        return ""

    def run(self, s: Situation) -> Did:
        from ...memory.compaction import compact

        assert s.allocator is not None and s.device is not None and s.request is not None
        # the message rounds what was asked: first all that the statement took, then the request, rounded up and as said
        sizes = sorted({s.need or s.request, s.request + s.fault.sizes.precision, s.request}, reverse=True)
        outcome = compact(s.allocator, s.device, *sizes)
        if outcome.refused:  # not asked before: each look at all objects takes as long as the moves
            return Did("skipped", outcome.refused)
        if outcome.done:
            return Did(reason=_said(outcome), repeat=True, moved=outcome.moved)
        return Did("failed", outcome.reason, moved=outcome.moved)


def _said(outcome: Outcome) -> str:
    over = outcome.parked
    card = f"moved {bytes_text(outcome.moved - 2 * over)} on the card" if outcome.moved > 2 * over else ""
    host = f"{bytes_text(over)} went over the host and back" if over else ""
    return ", ".join(part for part in (card, host) if part) or "nothing had to move"


RUNG = _Compact()

"""What autograd saves for the backward pass waits elsewhere in between; same batch, bitwise the same numbers."""

from __future__ import annotations

from typing import Any

from ...errors import CudaMagicError
from ...render.units import bytes_text
from ..situation import Situation
from . import Did, asked

__all__ = ["RUNG"]

LEAST = 1 << 20
"""Bytes that the failed attempt must have taken for anything to be gained."""


class _Activations:
    id = "activations"
    again = False
    changes = False

    def skip(self, s: Situation) -> str:
        found = asked(s)
        if isinstance(found, str):
            return found
        recorded = s.memory.get("recorded")
        if recorded:
            return str(recorded)
        free, request = found.room.total, found.request
        if free < request:
            return f"{bytes_text(free)} is free in all, and the request alone is {bytes_text(request)}"
        taken = found.need(s) - request
        if taken < LEAST:
            return f"the failed attempt had taken {bytes_text(taken)} before: there is little to save"
        read, device = found.allocator.moving_refused, found.device
        return read(device, doing="save")

    def run(self, s: Situation) -> Did:
        assert s.allocator is not None and s.device is not None and s.request is not None
        assert s.enter is not None and s.after is not None
        try:
            hooks = s.allocator.activations(s.device, s.request)
            if hooks is None:
                return Did("failed", "there is no autograd here")
            s.after(lambda: _ended(hooks))
            s.enter(hooks)
        except (CudaMagicError, RuntimeError) as error:
            return Did("failed", str(error).split("\n", 1)[0])
        return Did("on", "what autograd saves waits on the host", repeat=True)


def _ended(hooks: Any) -> tuple[str, int]:
    """Ends the hooks; what they did in one sentence, and the out-of-memory errors that they met and went on from."""
    try:
        hooks.off()
    except RuntimeError as error:  # a lost context; the hooks themselves are off
        return f"activations: {str(error).splitlines()[0]}", 0
    moved = hooks.moved
    stayed = f", up to {bytes_text(hooks.most_kept)} stayed on the card" if hooks.most_kept else ""
    went = f"{bytes_text(moved['out'])} went to the host and {bytes_text(moved['in'])} came back"
    return f"activations: {went}{stayed}", moved["ooms"]


RUNG = _Activations()

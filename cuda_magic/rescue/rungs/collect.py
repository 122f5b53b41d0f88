"""The garbage collector, outside of ``except``: inside, what the error's frames hold in a cycle survives."""

from __future__ import annotations

import gc

from ...render.units import bytes_text
from ..owners import ANONYMOUS, BELOW, Cycles
from ..situation import Situation
from . import Did

__all__ = ["RUNG"]


_NOBODY = ANONYMOUS | {BELOW}
"""What tells nothing of whose the cycles are."""


class _Collect:
    id = "collect"
    again = True
    changes = False

    def skip(self, s: Situation) -> str:
        return ""

    def run(self, s: Situation) -> Did:
        known = s.allocator is not None and s.device is not None and s.device in s.allocator.devices()
        before = Cycles(s.allocator, s.device) if known and s.allocator and s.device is not None else None
        gc.collect()
        cycles = before.freed() if before is not None else {}
        if s.memory.get("collected"):  # what an earlier attempt made, or this one
            s.memory["cycles made"] = {name: size for name, size in cycles.items() if name not in _NOBODY}
        s.memory["collected"] = True
        found = sorted(cycles.items(), key=lambda c: -c[1])
        if s.memory.pop("let go", False):  # what the frames of an earlier failure led to went with it
            return Did(cycles=tuple(found))
        named = [f"{name} ({bytes_text(size)})" for name, size in found if name not in _NOBODY][:3]
        return Did(reason=f"reference cycles of {', '.join(named)}" if named else "", cycles=tuple(found))


RUNG = _Collect()

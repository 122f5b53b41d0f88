"""The garbage collector, outside of ``except``: inside, what the error's frames hold in a cycle survives."""

from __future__ import annotations

import gc

from ...render.units import bytes_text
from ..owners import owner_types
from ..situation import Situation
from . import Did

__all__ = ["RUNG"]


_NOBODY = ("unknown", "dict", "list", "tuple", "set", "defaultdict", "deque")
"""Types that tell nothing of whose they are."""


class _Collect:
    id = "collect"
    again = True
    changes = False

    def skip(self, s: Situation) -> str:
        return ""

    def run(self, s: Situation) -> Did:
        known = s.allocator is not None and s.device is not None and s.device in s.allocator.devices()
        before = owner_types(s.allocator, s.device) if known and s.allocator and s.device is not None else {}
        gc.collect()
        if not before or s.allocator is None or s.device is None:
            return Did()
        alive = {(where, key) for _, where, key, _ in s.allocator.owners()}
        cycles: dict[str, int] = {}
        for storage, (holder, nbytes) in before.items():
            if storage not in alive:
                cycles[holder] = cycles.get(holder, 0) + nbytes
        if s.memory.get("collected"):  # what an earlier attempt made, or this one
            s.memory["cycles made"] = {name: size for name, size in cycles.items() if name not in _NOBODY}
        s.memory["collected"] = True
        found = sorted(cycles.items(), key=lambda c: -c[1])
        if s.memory.pop("let go", False):  # what the frames of an earlier failure led to went with it
            return Did(cycles=tuple(found))
        named = [f"{name} ({bytes_text(size)})" for name, size in found if name not in _NOBODY][:3]
        return Did(reason=f"reference cycles of {', '.join(named)}" if named else "", cycles=tuple(found))


RUNG = _Collect()

"""Lower the named variable and repeat; ``--grow`` rises by the same factor, so that the product stays exact."""

from __future__ import annotations

from ...memory.torch import ranks
from ..situation import Situation
from . import Did

__all__ = ["RUNG", "next_value"]


def next_value(value: int, floor: int, need: int | None, free: int | None, divides: int | None = None) -> int | None:
    """The next value to try: what the sizes allow, at most half; a divisor of `divides`. None: no more."""
    target = value // 2
    if need and free is not None and need > free:
        target = min(target, value * free // need)
    target = max(target, floor)
    if divides is not None:
        target = next((v for v in range(target, 0, -1) if divides % v == 0), 0)
    return target if floor <= target < value else None


class _Shrink:
    id = "shrink"
    again = True
    changes = True

    def skip(self, s: Situation) -> str:
        if s.options.shrink is None:
            return "--shrink was not given"
        alone = ranks.alone()
        if alone:
            return alone
        name, floor = s.options.shrink
        names = [name, *([s.options.grow] if s.options.grow else [])]
        for one in names:
            value = s.namespace.get(one)
            if not isinstance(value, int) or isinstance(value, bool):
                return f"{one} is not an integer"
            if one in s.read_before:
                return f"an earlier statement of this cell already read {one}"
        if self._next(s) is None:
            return f"{name} is {s.namespace[name]} and may not be lower than {floor}"
        return ""

    def _next(self, s: Situation) -> int | None:
        assert s.options.shrink is not None
        name, floor = s.options.shrink
        value = s.namespace[name]
        start = s.memory.setdefault("shrink from", value)
        room = s.room()
        return next_value(value, floor, s.need, room.total if room else None, start if s.options.grow else None)

    def run(self, s: Situation) -> Did:
        assert s.options.shrink is not None
        name, _ = s.options.shrink
        old, new = s.namespace[name], self._next(s)
        assert new is not None
        s.namespace[name] = new
        said = f"{name} {old} -> {new}"
        if s.options.grow:
            before = s.namespace[s.options.grow]
            first = s.memory.setdefault("grow from", before)
            s.namespace[s.options.grow] = first * s.memory["shrink from"] // new
            said += f", {s.options.grow} {before} -> {s.namespace[s.options.grow]}"
        return Did("ran", said, repeat=True)


RUNG = _Shrink()

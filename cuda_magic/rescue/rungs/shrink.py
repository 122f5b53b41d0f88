"""Lower the named variable and repeat; ``--grow`` rises by the same factor, so that the product stays exact."""

from __future__ import annotations

from collections.abc import Sequence

from ...memory.torch import distributed
from ..options import whole_number
from ..situation import Situation
from . import Did

__all__ = ["RUNG", "next_value"]


EXACT = 3
"""Tries that aim at the largest value that fits; from then on each is at most half of the one before."""


def next_value(
    failed: Sequence[tuple[int, int | None, bool]], floor: int, free: int | None, divides: int | None = None
) -> int | None:
    """The next value to try: the largest that the failures so far let hope for. None: no more.

    A statement that succeeded has run, and is not repeated to look for more: the first value that fits is the end, so
    it is aimed at. Where one request alone was too large, its size tells what fits: first as if memory grew in
    proportion to the value, then along the line through the last two failures, which finds a fixed part too. Where
    many small requests filled the card, nobody knows how many would have followed: half, or less if the sizes say so.

    Parameters
    ----------
    failed
        (value, bytes that the statement needed at least, whether one request makes up most of them) of each failed
        attempt, the last one last.
    floor
        The smallest value.
    free
        Bytes that the statement may take.
    divides
        Only divisors of this are tried.
    """
    value, need, told = failed[-1]
    half = target = value // 2
    if need is not None and free is not None and need > free:
        fits = value * free // need
        target = min(half, fits)
        if told and len(failed) <= EXACT:
            target = max(fits, value // 4)  # a quarter at most: few things grow in proportion over so wide a range
            above, more, told_before = failed[-2] if len(failed) > 1 else (0, None, False)
            if told_before and more is not None and more > need:
                line = value - -((free - need) * (above - value) // (more - need))
                target = min(max(line, value // 4), value - 1)
    target = max(target, floor)
    if divides is not None:
        target = next((v for v in range(target, 0, -1) if divides % v == 0), 0)
    return target if floor <= target < value else None


def _failure(value: int, s: Situation) -> tuple[int, int | None, bool]:
    return value, s.need, s.need is not None and s.request is not None and 2 * s.request >= s.need


class _Shrink:
    id = "shrink"
    again = True
    changes = True

    def skip(self, s: Situation) -> str:
        if s.options.shrink is None:
            return "--shrink was not given"
        alone = distributed.alone()
        if alone:
            return alone
        name, floor = s.options.shrink
        names = [name, *([s.options.grow] if s.options.grow else [])]
        for one in names:
            if not whole_number(s.namespace.get(one)):
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
        failed = [*s.memory.get("shrink failed", ()), _failure(value, s)]
        return next_value(failed, floor, room.total if room else None, start if s.options.grow else None)

    def run(self, s: Situation) -> Did:
        assert s.options.shrink is not None
        name, _ = s.options.shrink
        old, new = s.namespace[name], self._next(s)
        assert new is not None
        s.memory.setdefault("shrink failed", []).append(_failure(old, s))
        s.namespace[name] = new
        said = f"{name} {old} -> {new}"
        if s.options.grow:
            before = s.namespace[s.options.grow]
            first = s.memory.setdefault("grow from", before)
            s.namespace[s.options.grow] = first * s.memory["shrink from"] // new
            said += f", {s.options.grow} {before} -> {s.namespace[s.options.grow]}"
        return Did("ran", said, repeat=True)


RUNG = _Shrink()

"""pyplot's figures: those that a failed attempt opened would be shown beside the repeat's, at the end of the cell."""

from __future__ import annotations

import contextlib
import sys

__all__ = ["close_new", "numbers"]


def numbers() -> frozenset[int]:
    """Numbers of the open figures; none where pyplot is not imported, and it is not imported for this."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    return frozenset(pyplot.get_fignums()) if pyplot is not None else frozenset()


def close_new(before: frozenset[int]) -> None:
    """Close the figures that were opened since `before`. What a figure's own callbacks raise ends no rescue."""
    for number in numbers() - before:
        with contextlib.suppress(Exception):
            sys.modules["matplotlib.pyplot"].close(number)

"""Random states of python, numpy and the allocator's library, so that a repeated statement draws the same numbers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..memory.allocator import Allocator

__all__ = ["put_back", "take"]


def take(allocator: Allocator | None) -> dict[str, Any]:
    """The states now. numpy's only where numpy.random is imported."""
    state: dict[str, Any] = {}
    if (python := sys.modules.get("random")) is not None:
        state["random"] = python.getstate()
    if (numpy := sys.modules.get("numpy.random")) is not None:
        state["numpy"] = numpy.get_state()
    if allocator is not None:
        state["allocator"] = allocator.random_state()
    return state


def put_back(state: Mapping[str, Any], allocator: Allocator | None) -> None:
    """Set the states that `take` gave."""
    if "random" in state:
        sys.modules["random"].setstate(state["random"])
    if "numpy" in state:
        sys.modules["numpy.random"].set_state(state["numpy"])
    if allocator is not None and "allocator" in state:
        allocator.set_random_state(state["allocator"])

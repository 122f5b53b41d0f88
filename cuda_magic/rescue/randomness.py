"""Random states of python, numpy and the allocator's library, so that a repeated statement draws the same numbers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..memory.allocator import Allocator

__all__ = ["put_back", "take"]


def _own(value: Any) -> tuple[str, Any] | None:
    """(how, state) of a generator object that the namespace holds."""
    kind = type(value)
    library = str(kind.__module__).split(".", 1)[0]
    if library == "numpy" and hasattr(kind, "bit_generator"):
        return "bit_generator", value.bit_generator.state
    if library == "numpy" and hasattr(kind, "set_state"):
        return "state", value.get_state()
    if library == "torch" and kind.__name__ == "Generator":
        return "state", value.get_state()
    if library == "random" and hasattr(kind, "setstate"):
        return "python", value.getstate()
    return None


def take(namespace: Mapping[str, Any], allocator: Allocator | None) -> dict[str, Any]:
    """The states now. numpy's only where numpy.random is imported; a few microseconds each."""
    state: dict[str, Any] = {}
    python = sys.modules.get("random")
    if python is not None:
        state["random"] = python.getstate()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        state["numpy"] = numpy.get_state()
    if allocator is not None:
        state["allocator"] = allocator.random_state()
    own = []
    for value in namespace.values():
        module = type(value).__module__
        if module[:5] == "numpy" or module[:5] == "torch" or module == "random":
            found = _own(value)
            if found is not None:
                own.append((value, *found))
    state["own"] = own
    return state


def put_back(state: Mapping[str, Any], allocator: Allocator | None) -> None:
    """Set the states that `take` gave."""
    if "random" in state:
        sys.modules["random"].setstate(state["random"])
    if "numpy" in state:
        sys.modules["numpy.random"].set_state(state["numpy"])
    if allocator is not None and "allocator" in state:
        allocator.set_random_state(state["allocator"])
    for value, how, saved in state["own"]:
        if how == "bit_generator":
            value.bit_generator.state = saved
        elif how == "state":
            value.set_state(saved)
        else:
            value.setstate(saved)

"""Random states of python, numpy and the allocator's library, so that a repeated statement draws the same numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import generators

if TYPE_CHECKING:
    from ..memory.allocator import Allocator

__all__ = ["may_draw", "put_back", "take"]

_module = vars(type)["__module__"].__get__
"""A class's module, past its metaclass."""


_LIBRARIES = frozenset(("numpy", "torch", "random"))


def may_draw(kind: type) -> bool:
    """Whether a value of this type may be a generator whose state `take` keeps."""
    module = _module(kind)
    return type(module) is str and module.split(".", 1)[0] in _LIBRARIES


def _own(value: Any) -> tuple[str, Any] | None:
    """(how, state) of a generator object."""
    kind = type(value)
    library = _module(kind).split(".", 1)[0]
    if library == "numpy" and hasattr(kind, "bit_generator"):
        return "bit_generator", value.bit_generator.state
    if library == "numpy" and hasattr(kind, "set_state"):
        return "state", value.get_state()
    if library == "torch" and kind.__name__ == "Generator":
        return "state", value.get_state()
    if library == "random" and hasattr(kind, "setstate"):
        return "python", value.getstate()
    return None


def take(values: Iterable[Any], allocator: Allocator | None) -> dict[str, Any]:
    """The states now, of those among `values` too that are generators. numpy's only where numpy.random is imported."""
    state: dict[str, Any] = {}
    python = sys.modules.get("random")
    if python is not None:
        state["random"] = generators.python_state(python)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        state["numpy"] = generators.numpy_state(numpy)
    if allocator is not None:
        state["allocator"] = allocator.random_state()
    state["own"] = [(value, *found) for value in values if (found := _own(value)) is not None]
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

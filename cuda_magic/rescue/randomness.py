"""Random states of python, numpy and the allocator's library, so that a repeated statement draws the same numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import generators

if TYPE_CHECKING:
    from ..memory.allocator import Allocator

__all__ = ["draws", "put_back", "take"]

_module = vars(type)["__module__"].__get__
"""A class's module, past its metaclass."""


def draws(kind: type) -> str:
    """How the state of a generator of this type is read; empty for any other type."""
    module = _module(kind)
    library = module.split(".", 1)[0] if type(module) is str else ""
    if library == "numpy":
        return "bit_generator" if hasattr(kind, "bit_generator") else "state" if hasattr(kind, "set_state") else ""
    if library == "torch":
        return "state" if kind.__name__ == "Generator" else ""
    return "python" if library == "random" and hasattr(kind, "setstate") and kind.__name__ != "SystemRandom" else ""


def _own(value: Any) -> tuple[str, Any]:
    """(how, state) of a generator object."""
    how = draws(type(value))
    if how == "bit_generator":
        return how, value.bit_generator.state
    return how, value.get_state() if how == "state" else value.getstate()


def take(values: Iterable[Any], allocator: Allocator | None) -> dict[str, Any]:
    """The states now, and those of the generators `values`. numpy's only where numpy.random is imported."""
    state: dict[str, Any] = {}
    python = sys.modules.get("random")
    if python is not None:
        state["random"] = generators.python_state(python)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        state["numpy"] = generators.numpy_state(numpy)
    if allocator is not None:
        state["allocator"] = allocator.random_state()
    state["own"] = [(value, *_own(value)) for value in values]
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

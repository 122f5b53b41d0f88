"""Lines to run that set a variable of the environment: not again what is set already, nor without what else is set."""

from __future__ import annotations

import os

__all__ = ["RESTART", "allocator_option", "variable"]

RESTART = "%cuda_env --restart"
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""In the order in which torch reads them."""


def variable(name: str, value: str) -> str:
    """The line that sets `name`; where it is set so already, the line that puts it in force."""
    return RESTART if os.environ.get(name) == value else f"%cuda_env {name}={value}"


def allocator_option(key: str, value: str) -> str:
    """The line that sets one option of torch's allocator and leaves the others as they are."""
    from ..environment.allocator_grammar import read

    name = next((n for n in _ALLOCATOR if os.environ.get(n)), _ALLOCATOR[0])
    options = read(os.environ.get(name, "")).options
    if options.get(key) == value:
        return RESTART
    return variable(name, ",".join(f"{k}:{v}" for k, v in {**options, key: value}.items()))

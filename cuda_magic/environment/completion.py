"""TAB behind ``%cuda_env``: names, and values where they are known."""

from __future__ import annotations

import os

from .allocator_options import OPTIONS, known
from .catalogue import CATALOGUE, find
from .release import installed
from .verdict import ALLOCATOR_NAMES

__all__ = ["complete"]


def complete(line: str, symbol: str) -> list[str]:
    """What may stand where `symbol` is being typed on `line`; matches begin with `symbol`.

    IPython cuts the line at ``=`` ``,`` and ``:``, so the last word of the line may begin before `symbol`.
    """
    word = "" if line[-1:].isspace() else line.rsplit(maxsplit=1)[-1]
    name, equals, typed = word.partition("=")
    if not equals:
        names = {v.name for v in CATALOGUE}
        if "--unset" in line.split():
            names = {n for n in names if n in os.environ}
        wanted = sorted(n for n in names if n.startswith(word))
    elif name in ALLOCATOR_NAMES:
        wanted = [f"{name}={value}" for value in _allocator(typed)]
    else:
        variable = find(name)
        wanted = [f"{name}={value}" for value in (variable.values if variable else ()) if value.startswith(typed)]
    cut = len(word) - len(symbol)
    return [found[cut:] for found in wanted] if word.endswith(symbol) else []


def _allocator(typed: str) -> list[str]:
    """Completions of an allocator configuration: options of the installed torch, then their values."""
    done, comma, last = typed.rpartition(",")
    key, colon, value = last.partition(":")
    if colon:
        option = known(key)
        ends = [f"{key}:{v}" for v in (option.values if option else ()) if v.startswith(value)]
    else:
        release = installed().release
        ends = [f"{o.key}:" for o in OPTIONS if o.key.startswith(key) and o.since <= release]
    return [done + comma + end for end in ends]

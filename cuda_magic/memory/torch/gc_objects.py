"""What the garbage collector can reach, in one pass: tensors, and the few kinds of objects that forbid moving them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["kinds_of", "reach", "referents"]


def kinds_of(base: type) -> Iterator[type]:
    """`base` and every class made from it, each once."""
    seen = {base}
    stack = [base]
    while stack:
        kind = stack.pop()
        yield kind
        # not kind.__subclasses__(): a metaclass of the user's must not run
        made: list[type] = type.__subclasses__(kind)
        for new in made:
            if new not in seen:
                seen.add(new)
                stack.append(new)


def _watched(torch: Any) -> Iterator[tuple[type, str]]:
    """(class, name) of what else is looked for; nothing is imported for it."""
    yield torch.cuda.Stream, "stream"
    for kind in kinds_of(torch.cuda.CUDAGraph):
        yield kind, "graph"
    rows = (("cupy.cuda.memory", "UnownedMemory", "cupy"), ("triton.runtime.jit", "JITFunction", "triton"))
    for module, name, label in rows:
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type):
            yield found, label
    for module in ("numba.cuda.cudadrv.driver", "numba_cuda.numba.cuda.cudadrv.driver"):
        found = getattr(sys.modules.get(module), "MemoryPointer", None)
        if isinstance(found, type):
            yield found, "numba"  # this class only: numba's own allocations are of classes made from it


def reach(torch: Any) -> tuple[list[Any], dict[str, list[Any]]]:
    """(tensors, other watched objects by name) that the collector tracks now; frozen ones (gc.freeze) are not seen.

    One pass: the classes are known beforehand, from torch's own.
    """
    tensors = set(kinds_of(torch.Tensor))
    names = dict(_watched(torch))
    wanted = tensors.union(names)
    everything = gc.get_objects()
    # type(), not isinstance(): a hostile __class__ property must not run
    found = [o for o in everything if type(o) in wanted]
    del everything
    others: dict[str, list[Any]] = {}
    kept = []
    for one in found:
        if type(one) in tensors:
            kept.append(one)
        else:
            others.setdefault(names[type(one)], []).append(one)
    return kept, others


def referents(view: Any) -> Iterator[Any]:
    """What an object refers to, its attributes included."""
    for one in gc.get_referents(view):
        if type(one) is dict:
            yield from list(one.values())
        else:
            yield one

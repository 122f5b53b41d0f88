"""Who holds which bytes of a device, for the guard's report: rows of the one search, and the types of cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from ..memory.parts import fields, type_name
from ..memory.variables import Held, Root, Search

if TYPE_CHECKING:
    from ..memory.allocator import Allocator

__all__ = ["Holder", "holders", "owner_types"]


@dataclass(frozen=True)
class Holder:
    """Bytes of one device that one thing holds.

    `kind` is ``variable``, ``output``, ``traceback``, ``unreached``, ``below-python``, ``private-pool``, ``cached``,
    ``fragmented``, ``library-pool``, ``process``, ``context``, ``driver``.
    """

    kind: str
    name: str
    nbytes: int | None
    device: int | None = None
    detail: str = ""


def holders(allocator: Allocator, namespace: Mapping[str, Any], roots: Iterable[Root], device: int) -> list[Holder]:
    """One row for each root that holds memory of `device`, then what no root reaches; largest first."""
    search = Search(allocator, namespace, device)
    found = [Holder(h.kind, h.name, h.nbytes, h.cuda, _detail(h)) for h in search.held(roots)]
    found += _unreached(search)
    return sorted(found, key=lambda h: -(h.nbytes or 0))


def _detail(held: Held) -> str:
    path = held.largest
    step, parenthesis, rest = path.removeprefix(held.name).removeprefix(" (").partition(")")
    if path.startswith(f"{held.name} (") and parenthesis:
        kind = "" if step.startswith("closure: ") or step in ("default", "key") else "local "
        path = f"{kind}{step.replace(': ', ' ')}{rest}"
    if held.tensors == 1:
        return path
    return f"{held.tensors} tensors, the largest {path or held.name}"


def _unreached(search: Search) -> list[Holder]:
    left = search.unreached()
    names = _holding_types(left, search)
    sums: dict[tuple[str, int], int] = {}
    for tensor in left:
        where, _, nbytes = search.of[id(tensor)]
        slot = (names.get(id(tensor), "unknown"), where)
        sums[slot] = sums.get(slot, 0) + nbytes
    return [
        Holder("unreached", name, nbytes, where, "reached by no variable: a reference cycle, or held by a library")
        for (name, where), nbytes in sums.items()
    ]


def _holding_types(tensors: list[Any], search: Search) -> dict[int, str]:
    """{id(tensor): name of the type that holds it}, of an instance if an instance's fields do.

    Each ``gc.get_referrers`` walks the whole heap, so all tensors are asked for at once: two walks, not one a tensor.
    """
    wanted = {id(tensor) for tensor in tensors}
    names: dict[int, str] = {}
    owned: dict[int, tuple[dict[Any, Any], list[int]]] = {}
    for holder in gc.get_referrers(*tensors) if tensors else ():
        if holder is search.tensors or holder is tensors or issubclass(type(holder), (FrameType, ModuleType)):
            continue
        held = [id(part) for part in gc.get_referents(holder) if id(part) in wanted]
        if type(holder) is dict:
            owned[id(holder)] = (holder, held)
        for one in held:
            names.setdefault(one, type_name(holder))
    for outer in gc.get_referrers(*(holder for holder, _ in owned.values())) if owned else ():
        for one in owned.get(id(fields(outer)), ({}, []))[1]:
            names[one] = type_name(outer)
    return names


def owner_types(allocator: Allocator, device: int) -> dict[tuple[int, int], tuple[str, int]]:
    """{(device, storage): (type that holds it, bytes)}: compared before and after a collection it names the cycles."""
    search = Search(allocator, {}, device)
    names = _holding_types(search.tensors, search)
    found = {}
    for tensor in search.tensors:
        where, key, nbytes = search.of[id(tensor)]
        found[(where, key)] = (names.get(id(tensor), "unknown"), nbytes)
    return found

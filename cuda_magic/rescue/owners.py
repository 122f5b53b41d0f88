"""Who holds which bytes of a device, for the guard's report: rows of the one search, and what cycles were."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, FunctionType, GeneratorType, ModuleType
from typing import TYPE_CHECKING, Any

from ..memory.parts import type_name
from ..memory.saved import SHOWN, Graphs, Kept, gathered, graphs, sizes_text, spoken
from ..memory.variables import Held, Root, Search
from .called import Lines

if TYPE_CHECKING:
    from ..memory.allocator import Allocator

__all__ = ["ANONYMOUS", "BELOW", "Cycles", "Found", "Holder", "holders", "holding_types", "look"]

ANONYMOUS = frozenset(
    {"dict", "list", "tuple", "set", "frozenset", "defaultdict", "OrderedDict", "deque", "cell", "mappingproxy"}
)
"""Types that tell nothing of whose they are."""
BELOW = "held below Python"
"""Of a tensor that no Python object refers to."""
LITTLE = 1 << 20
"""Bytes below which nobody is looked for; nor is the hundredth part of all, which the allocator's rounding may be."""
SECONDS = 0.1
"""How long the newest objects of the heap are looked through: a million on an idle core."""
CHUNK = 200
"""Objects that are asked together what they refer to."""
MOST = 16
"""Objects whose holders are asked for in one walk of the heap."""
GENERATIONS = 3
LEVELS = 2
"""Containers around one another that are asked for."""


@dataclass(frozen=True)
class Found:
    """The rows of the report; through which names graphs are kept; containers that hold several tensors."""

    holders: list[Holder]
    kept: tuple[Kept, ...] = ()
    gathered: tuple[Kept, ...] = ()
    shared: tuple[tuple[str, int], ...] = ()
    """(variable, bytes) of what a graph behind another variable keeps too."""


@dataclass(frozen=True)
class Holder:
    """Bytes of one device that one thing holds.

    `kind` is ``variable``, ``output``, ``traceback``, ``autograd``, ``unreached``, ``below-python``, ``private-pool``,
    ``cached``, ``fragmented``, ``library-pool``, ``process``, ``context``, ``driver``.
    """

    kind: str
    name: str
    nbytes: int | None
    device: int | None = None
    detail: str = ""


def holders(
    allocator: Allocator,
    namespace: Mapping[str, Any],
    roots: Iterable[Root],
    device: int,
    allocated: int | None = None,
) -> list[Holder]:
    """The rows of `look`."""
    return look(allocator, namespace, roots, device, allocated).holders


def look(
    allocator: Allocator,
    namespace: Mapping[str, Any],
    roots: Iterable[Root],
    device: int,
    allocated: int | None = None,
    *,
    error: BaseException | None = None,
) -> Found:
    """One row for each root that holds memory of `device`, what autograd saved, what no root reaches; largest first.

    `allocated` are the bytes that there are in all: what the roots do not reach is looked for where it is worth it.
    The frames of `error` tell the lines at which modules were called.
    """
    little = max(LITTLE, (allocated or 0) // 100)
    search = Search(allocator, namespace, device, enough=None if allocated is None else allocated - little)
    held = search.held(roots)
    kept = graphs(search)
    lists = gathered(search)
    moved, rows = set(kept.moved), []
    for one, storages in lists:
        left = [storage for storage in storages if storage not in moved]
        if one.local and one.nbytes > little and len(left) > 1:  # a list that a function of the failed call fills
            moved.update(left)
            nbytes = sum(search.by_storage[storage][3] for storage in left)
            rows.append(Holder("traceback", f"{one.name} of {one.local}", nbytes, device, f"{len(left)} tensors"))
    found = [Holder(h.kind, h.name, h.nbytes, h.cuda, _detail(h)) for h in search.without(held, moved)] + rows
    found += _saved(kept, Lines(error, namespace, search) if error is not None else None)
    if allocated is None or allocated - sum(h.nbytes or 0 for h in found) > little:
        found += _unreached(search)
    return Found(sorted(found, key=lambda h: -(h.nbytes or 0)), kept.kept, tuple(one for one, _ in lists), kept.shared)


def _saved(kept: Graphs, lines: Lines | None) -> list[Holder]:
    rows = []
    for place in kept.places[:SHOWN]:
        names = [
            f"{name} of {local}" if local else name for name, local in map(spoken, place.through) if local != "forward"
        ]
        said = [sizes_text(place.sizes), f"kept through {', '.join(names[:2])}" if names else ""]
        said.append(lines.of(place) if lines is not None else "")
        name = f"saved for backward by {place.name}"
        rows.append(Holder("autograd", name, place.nbytes, place.device, ", ".join(filter(None, said))))
    rest = kept.places[SHOWN:]
    if rest:
        name = f"saved for backward by {len(rest)} more modules and operations"
        rows.append(Holder("autograd", name, sum(place.nbytes for place in rest), rest[0].device))
    return rows


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
    left = sorted(search.unreached(), key=lambda tensor: -search.of[id(tensor)][2])
    names = holding_types(left, {id(one): search.of[id(one)][2] for one in left}, [search.tensors, search.met])
    sums: dict[tuple[str, int], list[int]] = {}
    for tensor in left:
        where, _, nbytes = search.of[id(tensor)]
        sums.setdefault((names.get(id(tensor), BELOW), where), []).append(nbytes)
    why = "reached by no variable: a reference cycle, or held by a library"
    if search.cut:
        why = "by no variable that was looked through in time: there are very many objects"
    rows = []
    for (name, where), sizes in sums.items():
        count = "1 tensor" if len(sizes) == 1 else f"{len(sizes)} tensors"
        if name == BELOW:
            rows.append(Holder("unreached", name, sum(sizes), where, f"{count}: C++ code has it, or a running call"))
        elif name in ANONYMOUS:
            rows.append(Holder("unreached", f"{count} in a {name}", sum(sizes), where, why))
        else:
            rows.append(Holder("unreached", name, sum(sizes), where, why))
    return rows


def holding_types(
    tensors: list[Any], sizes: Mapping[int, int], own: Iterable[Any] = (), newest: list[list[Any]] | None = None
) -> dict[int, str]:
    """{id(tensor): what holds it}: the type of an object, a function, a module; a container where nobody else is found.

    ``gc.get_referrers`` compares each reference of the heap with each of its arguments, so it is never asked of more
    than `MOST`: the newest objects are looked through by what they refer to, for `SECONDS`, and the containers found
    are asked for, and the first of the tensors of which nothing was found. How many walks of the heap that takes does
    not depend on how many tensors there are.

    Parameters
    ----------
    sizes
        {id(tensor): bytes}: the largest are asked for first.
    own
        Our own lists of them.
    newest
        The objects to look through, in pieces: what they do not tell of a tensor is not asked for then.
    """
    if not tensors:
        return {}
    wanted = {id(tensor): (id(tensor),) for tensor in tensors}
    seen = {id(tensors), *map(id, own)}
    names: dict[int, str] = {}
    found = _newest(wanted, seen, _by_age() if newest is None else newest)
    held = {id(part) for _, parts in found for part in parts}
    left = [tensor for tensor in tensors if id(tensor) not in held][:MOST]
    seen |= {id(left), id(found)}
    if left and newest is None:
        found += _holding(gc.get_referrers(*left), wanted, seen)
    below: Mapping[int, tuple[int, ...]] = wanted
    levels = LEVELS if newest is None else 1
    for level in range(levels + 1):
        outer: dict[int, tuple[int, ...]] = {}
        asked: list[tuple[int, Any]] = []
        for holder, parts in found:
            ones = tuple(one for part in parts for one in below[id(part)] if names.get(one, "dict") in ANONYMOUS)
            label = _label(holder, parts[0])
            for one in ones:
                if label not in ANONYMOUS or level == 0:
                    names[one] = label
            if ones and label in ANONYMOUS and id(holder) not in seen:
                seen.add(id(holder))
                outer[id(holder)] = ones
                asked.append((sum(sizes[one] for one in ones), holder))
        if not asked or level == levels:
            break
        asked.sort(key=lambda row: -row[0])
        containers = [holder for _, holder in asked[:MOST]]
        seen |= {id(containers), id(found), id(asked), *map(id, asked), *map(id, found)}
        found, below = _holding(gc.get_referrers(*containers), outer, seen), outer
    return names


def _holding(holders: Iterable[Any], wanted: Mapping[int, Any], own: set[int]) -> list[tuple[Any, list[Any]]]:
    """(holder, the wanted objects that it refers to), without our own."""
    found = []
    for holder in holders:
        if id(holder) in own or id(holder) in wanted or issubclass(type(holder), (FrameType, ModuleType)):
            continue
        parts = [part for part in gc.get_referents(holder) if id(part) in wanted]
        if parts:
            found.append((holder, parts))
    return found


def _newest(wanted: Mapping[int, Any], own: set[int], chunks: Iterable[list[Any]]) -> list[tuple[Any, list[Any]]]:
    """What refers to wanted objects, the newest of all first, until the time is over."""
    found: list[tuple[Any, list[Any]]] = []
    ids = set(wanted)
    ends = time.perf_counter() + SECONDS
    for some in chunks:
        if not ids.isdisjoint(map(id, gc.get_referents(*some))):
            more = _holding(some, wanted, own)
            found += more
            ids.difference_update(id(part) for _, parts in more for part in parts)
        if not ids or time.perf_counter() > ends:
            break
    return found


def _by_age() -> Iterator[list[Any]]:
    """What the collector tracks, in pieces, the newest first: a generation has its newest objects at its end."""
    for generation in range(GENERATIONS):
        everything = gc.get_objects(generation)
        for last in range(len(everything), 0, -CHUNK):
            yield everything[max(0, last - CHUNK) : last]


def _label(holder: Any, part: Any) -> str:
    """What a user may know it by."""
    kind = type(holder)
    if kind is FunctionType or kind is GeneratorType:
        return f"the {'function' if kind is FunctionType else 'generator'} {holder.__qualname__}"
    if kind is type:
        return f"the class {vars(type)['__name__'].__get__(holder)}"
    if kind is dict:
        name = dict.get(holder, "__name__")
        if type(name) is str and vars(sys.modules.get(name, sys)) is holder:
            names = [one for one, value in list(dict.items(holder)) if value is part and type(one) is str]
            return f"{name}.{names[0]}" if names else f"the module {name}"
    return type_name(holder)


class Cycles:
    """What holds the newest tensors of a device: after a collection it tells what the cycles were that went.

    Cycles of the user's are newer than what libraries hold since they were imported, so that where the heap is large
    its newest part is enough. No tensor is kept alive; no weak reference is left on one.
    """

    def __init__(self, allocator: Allocator, device: int) -> None:
        found, looked = self._tensors(allocator)
        of = {id(one): (where, key, nbytes) for one, where, key, nbytes in allocator.owners(found) if where == device}
        tensors = [one for one in found if id(one) in of]
        own = [*looked, looked, found]  # what was looked at holds our own list of it too
        names = holding_types(tensors, {key: row[2] for key, row in of.items()}, own, looked)
        self._noted = [(weakref.ref(one), of[id(one)], names.get(id(one), BELOW)) for one in tensors]

    @staticmethod
    def _tensors(allocator: Allocator) -> tuple[list[Any], list[list[Any]]]:
        """The newest tensors, and the objects that were looked at."""
        ends = time.perf_counter() + SECONDS
        known: dict[type, bool] = {}
        found: list[Any] = []
        looked = []
        for some in _by_age():
            looked.append(some)
            kinds = set(map(type, some))
            if not kinds <= known.keys():
                for one in some:
                    if type(one) not in known:
                        known[type(one)] = allocator.kind_of(one) in ("tensor", "graph")
            if any(known[kind] for kind in kinds):
                found += [one for one in some if known[type(one)]]
            if time.perf_counter() > ends:
                break
        return found, looked

    def freed(self) -> dict[str, int]:
        """{what held them: bytes} of the storages that are gone now. To be asked once."""
        noted, self._noted = self._noted, []
        alive = {row[:2] for reference, row, _ in noted if reference() is not None}
        gone = {row[:2]: (name, row[2]) for _, row, name in noted if row[:2] not in alive}
        found: dict[str, int] = {}
        for name, nbytes in gone.values():
            found[name] = found.get(name, 0) + nbytes
        return found

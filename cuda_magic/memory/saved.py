"""What autograd keeps for the backward pass, in the words of a search: by module, and by the name that keeps it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..render.units import bytes_text

if TYPE_CHECKING:
    from .variables import Search

__all__ = ["Graphs", "Kept", "Place", "gathered", "graphs", "sizes_text", "spoken"]

SHOWN = 8
"""Places with a row of their own; the smaller ones are summed up."""
_LOCAL = re.compile(r".* \((\w+) of ([^()]+)\)(.*)", re.DOTALL)
_INDEX = re.compile(r"(\[[^\[\]]*\])+\Z")


@dataclass(frozen=True)
class Kept:
    """A name through which graphs are kept, or tensors. `local` is the function whose variable it is, else empty."""

    name: str
    local: str
    count: int
    """Graphs of so many iterations, where that can be told, else 0 or 1; of a container its tensors."""
    nbytes: int
    several: bool
    """Whether it is a container of tensors."""


@dataclass(frozen=True)
class Place:
    """What was saved in one place of the code: a module as a user would write it, or an operation."""

    name: str
    device: int
    sizes: tuple[int, ...]
    through: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        return sum(self.sizes)


@dataclass(frozen=True)
class Graphs:
    """All of it, largest first. `moved` are storages that the search had counted for the frames of an error."""

    places: tuple[Place, ...] = ()
    kept: tuple[Kept, ...] = ()
    moved: frozenset[tuple[int, int]] = frozenset()
    shared: tuple[tuple[str, int], ...] = ()
    """(variable, bytes) of what a graph behind another variable keeps too: without the name it stays."""


def _without_index(path: str) -> str:
    """``losses`` of ``losses[3]``: what holds it."""
    return _INDEX.sub("", path)


def spoken(path: str) -> tuple[str, str]:
    """(what one writes, the function whose variable it is) of a search's path."""
    found = _LOCAL.match(path)
    return (found[1] + found[3], found[2]) if found else (path, "")


def graphs(search: Search) -> Graphs:
    """What autograd keeps behind the tensors that a search met. Counted by the search from now on.

    What a variable holds itself stays that variable's; what only the frames of an error hold is told here.
    """
    groups: dict[str, list[object]] = {}
    several: set[str] = set()
    paths: dict[str, str] = {}
    owners: dict[str, str] = {}
    for met in sorted(search.met, key=lambda met: met.root.kind == "traceback"):
        if met.kind == "graph":
            name = _without_index(met.path)
            groups.setdefault(name, []).append(met.value)
            paths.setdefault(name, met.path)
            owners.setdefault(name, met.root.name if met.root.kind == "variable" else "")
            if name != met.path:
                several.add(name)
    if not groups:
        return Graphs()
    names = [name if len(found) > 1 else paths[name] for name, found in groups.items()]
    modules = [(_name(met.path), met.value) for met in search.met if met.kind == "module"]
    places: dict[tuple[str, int], tuple[list[int], dict[str, None]]] = {}
    kept: dict[int, list[int]] = {}
    moved: set[tuple[int, int]] = set()
    shared: Counter[str] = Counter()
    by_variables = [owners[name] for name in groups]
    for row in search.allocator.saved(list(groups.values()), _outermost(modules)):
        sums = kept.setdefault(row.root, [row.graphs, 0])
        for device, key, nbytes in row.storages:
            by = search.by_storage.get((device, key))
            sums[1] += nbytes
            owner = by_variables[row.root]
            if by is not None and by[0] == "variable" and owner and by[1] != owner:
                shared[by[1]] += nbytes
            if (search.device is not None and device != search.device) or (by is not None and by[0] != "traceback"):
                continue
            if by is not None:
                moved.add((device, key))
            search.count((device, key))
            found = places.setdefault((row.place, device), ([], {}))
            found[0].append(nbytes)
            found[1][names[row.root]] = None
    made = [Place(name, device, tuple(sizes), tuple(through)) for (name, device), (sizes, through) in places.items()]
    return Graphs(
        tuple(sorted(made, key=lambda place: -place.nbytes)),
        tuple(
            Kept(*spoken(names[root]), count, nbytes, names[root] in several)
            for root, (count, nbytes) in sorted(kept.items(), key=lambda item: -item[1][1])
        ),
        frozenset(moved),
        tuple(shared.items()),
    )


def gathered(search: Search) -> list[tuple[Kept, list[tuple[int, int]]]]:
    """Containers that hold two tensors and more, with those storages; the largest first."""
    found: dict[str, list[tuple[int, int]]] = {}
    for storage, (_, _, path, _) in search.by_storage.items():
        name = _without_index(path)
        if name != path:
            found.setdefault(name, []).append(storage)
    rows = [
        (Kept(*spoken(name), len(held), sum(search.by_storage[one][3] for one in held), True), held)
        for name, held in found.items()
        if len(held) > 1
    ]
    return sorted(rows, key=lambda row: -row[0].nbytes)


def _name(path: str) -> str:
    """What a module is called: the variable that it stands under, in a function too."""
    return spoken(path)[0]


def _outermost(modules: Iterable[tuple[str, object]]) -> list[tuple[str, object]]:
    """A model before its parts, which may have names of their own: short names first."""
    return sorted(modules, key=lambda row: row[0].count(".") + row[0].count("["))


def sizes_text(sizes: Iterable[int]) -> str:
    """``16 x 96.00 MiB, 4 x 24.00 MiB and 12 smaller``: what counts for most first."""
    counts = sorted(Counter(sizes).items(), key=lambda item: -item[0] * item[1])
    said = [f"{count} x {bytes_text(size)}" if count > 1 else bytes_text(size) for size, count in counts[:2]]
    rest = sum(count for _, count in counts[2:])
    return ", ".join(said) + (f" and {rest} more" if rest else "")

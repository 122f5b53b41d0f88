"""What autograd keeps for the backward pass: read from its graphs, by the module whose call saved it.

Only what the nodes hold is read (``next_functions``, ``SavedTensor.data``): no hook unpacks anything, and no code of a
user's class runs. Releases of torch whose saved tensors cannot be read so tell nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..allocator import Saved
from ..parts import fields, type_name
from .scan import UNREADABLE

__all__ = ["saved"]

NODES = 100_000
SECONDS = 0.3
THROUGH = 4
"""Nodes between an operation and its parameter: a transposed weight, one that is cast."""
_PASSES = re.compile(r"(T|Transpose|ToCopy|Expand|View|Permute|Alias|AsStrided|Squeeze|Unsqueeze|Slice|Clone)Backward")
_SUMS = re.compile(r"(Add|Sub|Stack|Cat)Backward")
_SCALES = re.compile(r"(Mul|Div|Neg|Mean|Sum|View|Squeeze|Unsqueeze|Select|ToCopy|Clone)Backward")
_LEAF = "AccumulateGrad"


def saved(
    torch: Any, groups: Sequence[Sequence[Any]], modules: Iterable[tuple[str, Any]], wanted: Callable[[Any], bool]
) -> list[Saved]:
    """A row for each group of tensors and each place of its graphs; each storage once, for the first that leads to it.

    Parameters
    ----------
    groups
        Tensors with a graph behind them, those of one name together.
    modules
        (name, module): they name the places, and their parameters are no saved tensors.
    wanted
        Whether a tensor lies on the card.
    """
    with torch._C.DisableTorchFunction():
        return _Graphs(torch, modules, wanted).read(groups)


class _Graphs:
    """One look at graphs. It keeps their nodes alive: let go of it."""

    def __init__(self, torch: Any, modules: Iterable[tuple[str, Any]], wanted: Callable[[Any], bool]) -> None:
        self.torch, self.wanted = torch, wanted
        self.tensor = torch._C.TensorBase
        self.parameters: dict[int, str] = {}
        """{id(parameter): the module that it is of}."""
        self.places: dict[int, str] = {}
        """{storage of a parameter: the same}."""
        seen: set[int] = set()
        for name, module in modules:
            for place, parameter in _parameters(torch, name, module, seen):
                self.parameters.setdefault(id(parameter), place)
                row = self.storage(parameter)
                if row is not None:
                    self.places.setdefault(row[1], place)
        self.attributes: dict[type, tuple[str, ...]] = {}
        self.nodes: dict[int, tuple[Any, int]] = {}
        """{id(node): (the node, the part of a sum that led to it)}."""
        self.joined: list[int] = []
        """For each part of a sum: another one with which it shares operations, or itself."""
        self.leaves: list[set[int]] = []
        """For each part of a sum: the parameters that it comes from."""
        self.counted: set[tuple[int, int]] = set()
        self.ends = time.perf_counter() + SECONDS

    def over(self) -> bool:
        return len(self.nodes) >= NODES or time.perf_counter() > self.ends

    def storage(self, tensor: Any) -> tuple[int, int, int] | None:
        """(device, storage, bytes) of a tensor on the card."""
        try:
            if tensor.layout is not self.torch.strided or not self.wanted(tensor):
                return None
            storage = self.tensor.untyped_storage(tensor)
            return tensor.device.index or 0, storage._cdata, storage.nbytes()
        except UNREADABLE:
            return None

    def read(self, groups: Sequence[Sequence[Any]]) -> list[Saved]:
        rows: dict[tuple[int, str], list[tuple[int, int, int]]] = {}
        parts: list[tuple[int, int]] = []
        """(index of the group, part of a sum)."""
        for index, tensor in ((index, one) for index, group in enumerate(groups) for one in group):
            for start in _summands(self.tensor.grad_fn.__get__(tensor)):
                if id(start) in self.nodes:
                    continue
                number = len(self.joined)
                self.joined.append(number)
                self.leaves.append(set())
                parts.append((index, number))
                self._look(start, number, index, rows)
        graphs = self._graphs(parts)
        return [Saved(index, place, tuple(found), graphs[index]) for (index, place), found in rows.items()]

    def _look(
        self, start: Any, number: int, index: int, rows: dict[tuple[int, str], list[tuple[int, int, int]]]
    ) -> None:
        todo: list[tuple[Any, str]] = [(start, "")]
        while todo and not self.over():
            node, place = todo.pop()
            known = self.nodes.get(id(node))
            kind = type_name(node)
            if known is not None:
                if kind != _LEAF:
                    self._join(number, known[1])
                else:
                    self.leaves[number].add(id(node))
                continue
            self.nodes[id(node)] = (node, number)
            if kind == _LEAF:
                self.leaves[number].add(id(node))
                continue
            children = [child for child, _ in node.next_functions if child is not None]
            held = [row for one in self._saved(node) if (row := self.storage(one)) is not None]
            own = self._parameter(children)
            own = own or next((self.places[key] for _, key, _ in held if key in self.places), "")
            place = own or place
            for row in held:
                if row[:2] not in self.counted and row[1] not in self.places:
                    self.counted.add(row[:2])
                    rows.setdefault((index, place or _words(kind)), []).append(row)
            todo += [(child, place) for child in children]

    def _join(self, one: int, other: int) -> None:
        one, other = self._first(one), self._first(other)
        self.joined[max(one, other)] = min(one, other)

    def _first(self, number: int) -> int:
        while self.joined[number] != number:
            number = self.joined[number]
        return number

    def _graphs(self, parts: Sequence[tuple[int, int]]) -> dict[int, int]:
        """{index of a group: how many graphs with the same parameters, and no operation in common, it keeps}."""
        found: dict[int, dict[int, set[int]]] = {}
        for index, number in parts:
            leaves = found.setdefault(index, {}).setdefault(self._first(number), set())
            leaves |= self.leaves[number]
        counts = {}
        for index, graphs in found.items():
            alike: dict[frozenset[int], int] = {}
            for leaves in graphs.values():
                if leaves:
                    alike[frozenset(leaves)] = alike.get(frozenset(leaves), 0) + 1
            counts[index] = max(alike.values(), default=0)
        return counts

    def _parameter(self, children: Iterable[Any]) -> str:
        """The module of the parameter that is nearest among what an operation got; empty where none is."""
        at = list(children)
        for _ in range(THROUGH):
            after = []
            for node in at:
                kind = type_name(node)
                if kind == _LEAF:
                    place = self.parameters.get(id(node.variable))
                    if place is not None:
                        return place
                elif _PASSES.match(kind):
                    following = [child for child, _ in node.next_functions if child is not None]
                    after += following if len(following) == 1 else []
            at = after
        return ""

    def _saved(self, node: Any) -> Iterator[Any]:
        """The tensors that a node keeps, as they lie there."""
        kind = type(node)
        if kind not in self.attributes:
            self.attributes[kind] = tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))
        for name in self.attributes[kind]:
            try:
                value = getattr(node, name)
            except UNREADABLE:
                continue  # it was let go of: this part of the graph has run backward
            for one in value if type(value) in (tuple, list) else (value,):
                yield from self._tensors(getattr(one, "data", None))
        if issubclass(kind, self.torch._C._FunctionBase):  # what a function of the user's keeps on its ctx
            for one in list(fields(node).values()):
                yield from self._tensors(one)

    def _tensors(self, data: Any) -> Iterator[Any]:
        """The tensors in what was saved: a hook may have packed one beside other things."""
        for one in data if type(data) in (tuple, list) else (data,):
            if issubclass(type(one), self.tensor):
                yield one


def _summands(node: Any) -> list[Any]:
    """The operations whose results a number was added up from, the oldest first: ``total += loss`` in a loop."""
    found: list[Any] = []
    todo = [node]
    seen: set[int] = set()
    kept = []
    while todo and len(seen) < NODES:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        kept.append(one)  # alive, so that its id stays its own
        kind = type_name(one)
        children = [child for child, _ in one.next_functions if child is not None]
        if _SUMS.match(kind) or (_SCALES.match(kind) and len(children) == 1 and not _keeps(one)):
            todo += children
        else:
            found.append(one)
    return found[::-1]


def _keeps(node: Any) -> bool:
    """Whether a node keeps more than a number: then it is an operation of its own."""
    for name in ("_raw_saved_self", "_raw_saved_other"):
        try:
            data = getattr(getattr(node, name, None), "data", None)
        except UNREADABLE:
            continue
        if data is not None and data.numel() > 1:
            return True
    return False


def _parameters(torch: Any, name: str, module: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """(the place that is told to a user, parameter) of a module and those in it, but for those `seen`."""
    todo = [(name, "", module)]
    while todo:
        path, outer, one = todo.pop()
        if id(one) in seen or not issubclass(type(one), torch.nn.Module):
            continue
        seen.add(id(one))
        own = fields(one)
        inner = own.get("_modules")
        inner = {key: part for key, part in dict.items(inner) if part is not None} if isinstance(inner, dict) else {}
        place = path if inner else outer or path  # a layer is told by the block that it is in: h.3.mlp of h.3.mlp.c_fc
        for part in dict.values(own.get("_parameters") or {}):
            if part is not None:
                yield place, part
        listed = issubclass(type(one), (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)) or one is module
        todo += [(f"{path}.{key}", "" if listed else path, part) for key, part in inner.items()]


def _words(kind: str) -> str:
    """``nll_loss`` of ``NllLossBackward0``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(r"Backward\d*$", "", kind)).lower()

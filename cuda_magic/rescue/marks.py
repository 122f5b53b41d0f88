"""What a statement may change in place, marked before it and compared after its failure.

Rebound names are put back by the cell itself, random states by `randomness`. This is what cannot be put back:
tensors and gradients (by the allocator), containers, iterators, names changed by ``global``.
No value that could hold device memory is kept alive. `marker` takes the marks.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from ..memory.torch import ranks
from .boxes import Box, same

if TYPE_CHECKING:
    from ..cells.rescuer import Step
    from ..memory.allocator import Allocator
    from .depths import Depths

__all__ = ["ITERATORS", "Marks", "may_act", "names_read"]

_ACTS: frozenset[type[ast.AST]] = frozenset(
    (ast.Call, ast.Await, ast.BinOp, ast.AugAssign, ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.Delete)
) | {
    *(ast.Subscript, ast.comprehension, ast.Starred, ast.Compare, ast.While, ast.If, ast.IfExp, ast.Assert, ast.BoolOp),
    *(ast.Attribute, ast.FormattedValue, ast.Tuple, ast.List, ast.UnaryOp, ast.Match),
}


def may_act(node: ast.AST | None) -> bool:
    """Whether a statement can run code that changes anything: definitions, imports and constants cannot."""
    if node is None:
        return True
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return bool(node.decorator_list)
    of = type(getattr(node, "value", None))
    if type(node) in _ACTS or of in _ACTS:  # most statements
        return True
    todo: list[ast.AST] = [node]
    while todo:  # ast.walk takes thrice as long, and this runs before every statement
        part = todo.pop()
        if type(part) in _ACTS:
            return True
        for name in part._fields:
            value = getattr(part, name, None)
            if isinstance(value, ast.AST):
                todo.append(value)
            elif type(value) is list:
                todo += [item for item in value if isinstance(item, ast.AST)]
    return False


def names_read(node: ast.AST | None) -> frozenset[str]:
    """Names that the statement's own text reads."""
    if node is None:
        return frozenset()
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


def _generator(value: Any) -> Any:
    frame = value.gi_frame
    return None if frame is None else frame.f_lasti, id(frame)


def _hint(value: Any) -> int:
    return operator.length_hint(value, -1)


ITERATORS: dict[type, Callable[[Any], Any]] = {
    GeneratorType: _generator,
    type(iter([])): _hint,
    type(iter(())): _hint,
    type(iter({})): _hint,
    type(iter({}.values())): _hint,
    type(iter({}.items())): _hint,
    type(iter(set())): _hint,
    type(iter(range(0))): _hint,
    type(iter("")): _hint,
    type(reversed([])): _hint,
}
"""Iterators that tell where they are; any other is taken to have moved on if the statement reads its name."""


class Marks:
    """Marks of one attempt; the tables hold until the marker's next `take`."""

    __slots__ = (
        *("boxes", "depths", "draw", "draws", "iterators", "light", "little", "others", "plain"),
        *("ranks", "step", "tensors", "unknown"),
    )

    def __init__(
        self,
        step: Step | None = None,
        light: Mapping[str, Any] = {},
        others: Mapping[str, Any] = {},
        boxes: Mapping[str, Box] = {},
    ) -> None:
        self.step, self.light, self.others, self.boxes = step, light, others, boxes
        self.iterators: dict[str, Any] = {}
        self.unknown: tuple[str, ...] = ()
        """Names of iterators that do not tell where they are."""
        self.draw: tuple[Any, ...] = ()
        """Random generators."""
        self.draws = True
        """Whether random numbers may be drawn."""
        self.little = False
        """The statement can come to nothing but what is marked here."""
        self.plain = False
        """The library knows all that the statement can change."""
        self.tensors: Any = None
        self.depths: Depths | None = None
        """What lies below the names that the statement reads."""
        self.ranks: tuple[tuple[str, int], ...] = ()
        """Collectives that each group of this rank had entered."""

    @property
    def bound(self) -> Collection[str]:
        """Names that the statement itself binds: the cell puts those back."""
        return () if self.step is None else self.step.names_bound

    def entered(self, namespace: Mapping[str, Any]) -> list[str]:
        """Why this rank of a job may not repeat the statement alone: nothing keeps that state, nobody may allow it."""
        return ranks.changed(self.ranks, namespace)

    def changed(self, namespace: Mapping[str, Any], allocator: Allocator | None) -> list[str]:
        """Sentences naming what changed and cannot be put back; empty when a repeat starts from the same state."""
        found: list[str] = []
        if allocator is not None and self.tensors is not None:
            found += allocator.changed(self.tensors)
        kept = [n for n in self.boxes if n in namespace and n in self.others and same(self.others[n], namespace[n])]
        lists = [n for n in kept if not self.boxes[n].holds(namespace[n])]
        if self.depths is not None:
            lists += [n for n in self.depths.changed(namespace) if n not in lists]
        if self.depths is not None and self.depths.past_the_counter():
            found.append("tensors may have been changed by .data, which torch does not count")
        if lists:
            found.append(f"changed in place: {', '.join(sorted(lists))}")
        moved = [
            name
            for name, (where, kind) in self.iterators.items()
            if name in namespace and type(namespace[name]) is kind and ITERATORS[kind](namespace[name]) != where
        ]
        if self.unknown and self.step is not None:
            read = names_read(self.step.node)
            moved += [name for name in self.unknown if name in namespace and name in read]
        if self.depths is not None:
            moved += [name for name in dict.fromkeys(self.depths.unknown) if name not in moved]
        if moved:
            found.append(f"iterators may have moved on: {', '.join(moved)}")
        bound = self.bound
        rebound = [n for n, v in self.light.items() if n not in bound and namespace.get(n, self) is not v]
        rebound += [n for n, old in self.others.items() if n not in bound and not same(old, namespace.get(n, self))]
        if self.depths is not None:
            rebound += [name for name in self.depths.rebound(namespace) if name not in bound]
        if rebound:
            found.append(f"names changed by a function (global): {', '.join(sorted(rebound))}")
        return found

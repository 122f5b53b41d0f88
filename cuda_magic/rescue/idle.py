"""Which of the namespace's objects can a statement not reach? When in doubt, it can.

The objects that variables lead to are a graph, read with ``gc.get_referents``: no code of the user's runs. In use is

- what the names lead to that the statement reads, itself or through any function that may be called;
- what any other object of the process refers to: a registry, a module, a cache of a library's;
- what has a reference that nobody accounts for: a running frame, C code, an array of objects;
- all of it, where the code has a way to every variable (`doubts`).

A function may be called unless only idle objects lead to it. What is left is idle: only variables that the statement
does not name lead to it.
"""

from __future__ import annotations

import ast
import gc
import inspect
import sys
import threading
import time
import types
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from .doubts import machinery, words

__all__ = ["Below", "Reach", "reach"]

OWN = 2000
"""Objects that may be frozen: Python 3.12 freezes 375 of its own at its start. A user's gc.freeze() takes thousands."""
BUDGET = 500_000
"""Objects that are looked at. With more than that everything counts as in use."""
SECONDS = 0.6
"""How long they are looked at: the same then."""
_ATOMS = (int, float, complex, str, bytes, bytearray, type(None), types.CodeType, types.ModuleType)
_OPAQUE = (types.FrameType, types.TracebackType, types.BuiltinFunctionType)
"""Not looked into. What they refer to has then a reference from outside, so it is in use."""
_SUSPENDED = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_HEAP_TYPE = 1 << 9


class Below(Protocol):
    """What a library holds below Python, where the collector does not see."""

    def held_below(self, value: Any) -> int:
        """How many references the library itself may hold on an object of its own."""
        ...

    def parts_below(self, value: Any) -> tuple[Any, ...]:
        """Objects that one of its objects leads to: a tensor's gradient, the base of a view."""
        ...


class _Nothing:
    def held_below(self, value: Any) -> int:
        return 0

    def parts_below(self, value: Any) -> tuple[Any, ...]:
        return ()


class Reach:
    """What a statement can reach. It keeps the graph alive: let go of it before memory is measured.

    `doubt` is why everything counts as in use, else empty; `names` are the variables that count as used.
    """

    def __init__(self, doubt: str = "", names: Iterable[str] = ()) -> None:
        self.doubt = doubt
        self.names = frozenset(names)
        self._nodes: dict[int, Any] = {}
        self._used: set[int] = set()
        self._edges: dict[int, list[int]] = {}
        self._by_name: dict[str, int] = {}

    def idle(self, value: object) -> bool:
        """Whether variables lead to this object and the statement cannot reach it."""
        return not self.doubt and id(value) in self._nodes and id(value) not in self._used

    def variables(self) -> dict[int, str]:
        """{id(object): the first variable that leads to it}."""
        names: dict[int, str] = {}
        for name in sorted(self._by_name, key=lambda n: 2 if n.startswith("_") else n in ("In", "Out")):
            todo = [self._by_name[name]]
            while todo:
                key = todo.pop()
                if key not in names and key in self._nodes:
                    names[key] = name
                    todo += self._edges.get(key, ())
        return names


def reach(
    node: ast.AST | None,
    namespace: dict[str, Any],
    roots: Iterable[Any] = (),
    shell: Any = None,
    below: Below | None = None,
) -> Reach:
    """What `node`, run in `namespace`, can reach.

    Parameters
    ----------
    node
        The statement; None for a function that is among the `roots`.
    namespace
        Its global names.
    roots
        Other objects that it has in hand: a function, its arguments.
    shell
        IPython's shell, whose own references to shown values reach nothing unless the statement names them.
    below
        The library whose objects are asked for.
    """
    names: set[str] = set()
    if node is not None:
        try:
            code = compile(ast.Module([node], []), "<statement>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)  # type: ignore[list-item]
        except (SyntaxError, TypeError, ValueError):
            return Reach("the statement cannot be compiled by itself")
        said = words(code, namespace)
        if said.doubt:
            return Reach(said.doubt)
        names |= said.names
    if _on_other_threads(namespace):
        return Reach("another thread runs code of this namespace")
    if gc.get_freeze_count() > OWN:
        return Reach("objects are frozen (gc.freeze): who refers to them cannot be seen")
    graph = _Graph(namespace, shell, below or _Nothing())
    if graph.overflow:
        return Reach("the variables lead to more objects than can be looked through in time")
    return graph.settle(names, [id(root) for root in roots])


def _on_other_threads(namespace: dict[str, Any]) -> bool:
    frames = sys._current_frames()
    # this thread's own frame must not become a local variable of itself: a cycle that keeps every caller's variables
    frames.pop(threading.get_ident(), None)
    for frame in frames.values():
        at: types.FrameType | None = frame
        while at is not None:
            if at.f_globals is namespace:
                return True
            at = at.f_back
    return False


class _Graph:
    """The objects that the variables lead to, and what refers to them."""

    def __init__(self, namespace: dict[str, Any], shell: Any, below: Below) -> None:
        self.namespace = namespace
        self.below = below
        self.nodes: dict[int, Any] = {}
        self.edges: dict[int, list[int]] = {}
        self.known: Counter[int] = Counter()
        """References that are accounted for."""
        self.by_name: dict[str, int] = {}
        self.overflow = False
        self._machinery = [namespace, *_shell_holders(namespace, shell)]
        self._stop = {id(namespace), id(sys.modules), id(vars(sys.modules["builtins"]))}
        ends = time.perf_counter() + SECONDS
        todo: deque[Any] = deque()
        for name, value in list(namespace.items()):
            if type(name) is str and self._follows(value):
                self.by_name[name] = id(value)
                self.known[id(value)] += 1
                todo.append(value)
        for holder in self._machinery[1:]:  # counted, not followed: the statement reaches them by name alone
            self.known.update(id(part) for part in gc.get_referents(holder))
        while todo:
            value = todo.popleft()
            if id(value) in self.nodes:
                continue
            if len(self.nodes) >= BUDGET or (not len(self.nodes) % 256 and time.perf_counter() > ends):
                self.overflow = True
                return
            self.nodes[id(value)] = value
            parts = [part for part in _parts(value) if self._follows(part)]
            self.edges[id(value)] = [id(part) for part in parts]
            self.known.update(self.edges[id(value)])
            if issubclass(type(value), dict) and not parts:
                # Python 3.13: the collector sees what is in an object's __dict__ at the object alone
                parts = [part for part in dict.values(value) if self._follows(part)]
                self.edges[id(value)] = [id(part) for part in parts]
            hidden = self.below.parts_below(value)
            if hidden:
                self.edges[id(value)] += [id(part) for part in hidden]
                parts = [*parts, *hidden]
            todo.extend(parts)

    def _follows(self, value: Any) -> bool:
        """Whether an object is one of the graph's nodes."""
        kind = type(value)
        if not gc.is_tracked(value):  # it holds nothing; numpy's arrays can hold objects all the same
            return _of_objects(value)
        if issubclass(kind, _ATOMS) or issubclass(kind, _OPAQUE) or id(value) in self._stop:
            return False
        if issubclass(kind, type):
            return self._of_notebook(value)
        return not machinery(kind)

    def _of_notebook(self, kind: Any) -> bool:
        if not vars(type)["__flags__"].__get__(kind) & _HEAP_TYPE:
            return False
        module = vars(type)["__dict__"].__get__(kind).get("__module__")
        return type(module) is str and module == self.namespace.get("__name__", "__main__")

    def settle(self, names: set[str], roots: list[int]) -> Reach:
        """Follow what is in use until nothing is added."""
        used: set[int] = set()
        functions = self._functions()
        self._spread(used, self._leaks())
        self._spread(used, roots)
        self._spread(used, self._at_any_time())
        self._weak(used)
        asked: set[str] = set()
        seen: set[int] = set()
        while True:
            for name in names - asked:
                if name in self.by_name:
                    self._spread(used, [self.by_name[name]])
            asked |= names
            fresh = [
                (key, code) for key, code in functions if key not in seen and (key not in self.nodes or key in used)
            ]
            if not fresh and not self._weak(used):
                break
            for key, code in fresh:
                seen.add(key)
                said = words(code, self.namespace)
                if said.doubt:
                    return Reach(f"{code.co_name}() may be called: {said.doubt}")
                names |= said.names
        found = Reach("", (n for n in names if n in self.by_name))
        found._nodes, found._used = self.nodes, used
        found._edges, found._by_name = self.edges, self.by_name
        return found

    def _spread(self, used: set[int], start: Iterable[int]) -> None:
        todo = [key for key in start if key in self.nodes and key not in used]
        used.update(todo)
        while todo:
            for key in self.edges.get(todo.pop(), ()):
                if key not in used and key in self.nodes:
                    used.add(key)
                    todo.append(key)

    def _functions(self) -> list[tuple[int, types.CodeType]]:
        """(id, code) of everything whose code reads this namespace.

        Running top-level code is left out, for which exec makes a function too: nobody can call that.
        """
        found = []
        kinds = {types.FunctionType, *_SUSPENDED}
        for value in [one for one in gc.get_objects() if type(one) in kinds]:
            kind = type(value)
            if kind is types.FunctionType:
                if value.__globals__ is self.namespace:
                    found.append((id(value), value.__code__))
            else:
                frame = getattr(value, "gi_frame", None) or getattr(value, "cr_frame", None)
                frame = frame or getattr(value, "ag_frame", None)
                if frame is not None and frame.f_globals is self.namespace:
                    found.append((id(value), frame.f_code))
        return [(key, code) for key, code in found if code.co_flags & inspect.CO_OPTIMIZED]

    def _leaks(self) -> set[int]:
        """Nodes that something outside of the graph refers to."""
        ours = {id(self.nodes), id(self.edges), id(self.known), id(self.by_name), id(self._machinery)}
        ours |= {id(holder) for holder in self._machinery}
        ours |= self.nodes.keys()
        everything = gc.get_objects()
        found: set[int] = set()
        for first in range(0, len(everything), 10_000):
            outside = [o for o in everything[first : first + 10_000] if id(o) not in ours]
            found.update(filter(self.nodes.__contains__, map(id, gc.get_referents(*outside))))
        outside = everything = []  # they refer to the nodes too
        # what the way of counting itself refers to: told by an object that only the dict of the nodes holds
        counts = _counts(self.nodes)
        own = _counts({0: object()})[0]
        for (key, value), count in zip(self.nodes.items(), counts, strict=True):
            if key in found or issubclass(type(value), type):
                continue
            more = count - own - self.known[key]
            if more > 0 and more > self.below.held_below(value):
                found.add(key)
        return found

    def _at_any_time(self) -> Iterator[int]:
        """Functions that run when an object dies: ``__del__`` of notebook classes, callbacks of weak references."""
        for value in self.nodes.values():
            kind = type(value)
            if issubclass(kind, type):
                yield id(vars(type)["__dict__"].__get__(value).get("__del__"))
            elif issubclass(kind, weakref.ref):
                yield id(vars(weakref.ref)["__callback__"].__get__(value))

    def _weak(self, used: set[int]) -> bool:
        """Spread over weak references and arrays of objects that are in use; whether that added anything."""
        before = len(used)
        for key in list(used):
            value = self.nodes[key]
            kind = type(value)
            if issubclass(kind, weakref.ref):
                target = weakref.ref.__call__(value)
                self._spread(used, [id(target)])
            elif _of_objects(value):
                self._spread(used, map(id, value.ravel().tolist()))
        return len(used) > before


def _of_objects(value: Any) -> bool:
    """Whether it is numpy's array of objects, into which the collector does not see."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and bool(value.dtype.hasobject)


def _counts(nodes: dict[int, Any]) -> list[int]:
    """How many references each of the values has now; each is looked at in the same way."""
    return [sys.getrefcount(value) for value in nodes.values()]


def _parts(value: Any) -> Iterator[Any]:
    """What an object refers to, as often as it does."""
    if type(value) is types.FunctionType:
        # not its globals: the names that its code reads are asked instead
        around = (id(value.__globals__), id(getattr(value, "__builtins__", None)))
        yield from (part for part in gc.get_referents(value) if id(part) not in around)
    else:
        yield from gc.get_referents(value)


def _shell_holders(namespace: Mapping[str, Any], shell: Any) -> list[Any]:
    """IPython's own references to shown values: a statement reaches them as ``_`` and ``Out`` or not at all."""
    found: list[Any] = []
    for owner in (
        getattr(shell, "displayhook", None),
        getattr(shell, "last_execution_result", None),
        getattr(shell, "history_manager", None),
    ):
        if owner is not None:
            found += [owner, vars(owner)]
            values = vars(owner).get("_trait_values")
            found += [values] if type(values) is dict else []
    hidden = vars(shell).get("user_ns_hidden") if shell is not None else None
    return [*found, hidden] if type(hidden) is dict else found

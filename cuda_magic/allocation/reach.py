"""What the running cell can reach, by the names in its code: what it cannot reach leaves the card first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

__all__ = ["Reach"]

_SHELLS = ("In", "get_ipython", "exit", "quit", "open")
"""IPython's own names, which lead to everything."""
_MOST = 2000
"""Codes that are followed."""


class Reach:
    """The values of a namespace, told apart by the codes that run; looked at only when somebody asks.

    A mistake costs time only: what leaves stays valid, and is read from the host.
    """

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self.namespace = namespace
        self.codes: list[CodeType] = []

    def names(self) -> set[str]:
        """Names of the namespace that the codes, and the notebook's functions and classes that they name, use."""
        found: set[str] = set()
        seen: set[CodeType] = set()
        stack = list(self.codes)
        while stack and len(seen) < _MOST:
            code = stack.pop()
            if code in seen:
                continue
            seen.add(code)
            stack += [const for const in code.co_consts if isinstance(const, CodeType)]
            for name in code.co_names:
                if name not in found and name in self.namespace:
                    found.add(name)
                    stack += self._behind(self.namespace[name])
        return found

    def _behind(self, value: Any) -> Iterator[CodeType]:
        if type(value) is FunctionType:
            if value.__globals__ is self.namespace:
                yield value.__code__
            return
        kind = value if isinstance(value, type) else type(value)
        if vars(kind).get("__module__") != "__main__":
            return
        for part in list(vars(kind).values()):
            function = getattr(part, "__func__", part)
            if type(function) is FunctionType:
                yield function.__code__

    def reached(self) -> Iterator[Any]:
        """Values that the running cell can reach by a name."""
        names = self.names()
        return (value for name, value in list(self.namespace.items()) if name in names)

    def idle(self) -> Iterator[Any]:
        """Values that it cannot."""
        names = self.names()
        return (
            value
            for name, value in list(self.namespace.items())
            if name not in names and name not in _SHELLS and (not name.startswith("_") or name == "_oh")
        )

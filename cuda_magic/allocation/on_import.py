"""Call something once torch has been imported, so that its first segments are met too. Nothing is imported for it."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["forget", "when_imported"]


class _Finder:  # importlib.abc would be one more import on loading
    """Finds one module as everybody else does, and calls back behind its execution. It never fails an import.

    Parameters
    ----------
    name
        Of the module.
    then
        Called with nothing.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name, self.then = name, then
        self._asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name or self._asking:
            return None
        self._asking = True  # the search below comes by here too
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        execute = getattr(spec.loader, "exec_module", None) if spec is not None else None
        if spec is None or execute is None:
            return spec

        def exec_module(module: ModuleType) -> None:
            with contextlib.suppress(AttributeError):
                del loader.exec_module  # the module keeps its loader
            execute(module)
            _remove(self)
            with contextlib.suppress(Exception):  # it is tried again before the next cell
                self.then()

        loader: Any = spec.loader
        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader that takes no attributes: the next cell finds torch there
            pass
        return spec


_finders: list[_Finder] = []


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call `then` once `name` has been imported; nothing where it is there already, or is waited for already."""
    if name in sys.modules or any(finder.name == name for finder in _finders):
        return
    finder = _Finder(name, then)
    _finders.append(finder)
    sys.meta_path.insert(0, finder)


def forget() -> None:
    """Wait for nothing any more."""
    for finder in list(_finders):
        _remove(finder)


def _remove(finder: _Finder) -> None:
    if finder in _finders:
        _finders.remove(finder)
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)

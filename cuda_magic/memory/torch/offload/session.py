"""When the mode is on, and that parking ends: with the statement, or at the next chance.

A storage that finds no room when the statement ends stays parked, and the mode stays on until it is back, so that it
is safe to touch meanwhile; `settle` is asked at each later cell.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..threads import WATCHED
from .attribute_hooks import AttributeHooks
from .dispatch_mode import Watcher, mode
from .store import Store, held_interrupts, store

__all__ = ["Session", "existing", "session"]


class Session:
    """The mode, the store and the doors of this process."""

    def __init__(self, torch: Any, parked: Store | None = None) -> None:
        self.torch = torch
        self.store = parked or store(torch)
        self.watcher = Watcher(torch, self.store)
        self._doors = AttributeHooks(torch, self.store, lambda: mode(self.watcher))
        self._mode: Any = None
        self._thread: int | None = None
        self._depth = 0

    @property
    def on(self) -> bool:
        return self._mode is not None

    @contextmanager
    def watched(self) -> Iterator[Watcher]:
        """The mode is on inside. On leaving, what is parked comes back where there is room for all of it."""
        self._switch_on()
        self._depth += 1
        try:
            yield self.watcher
        finally:
            self._depth -= 1
            self.settle()

    def _switch_on(self) -> None:
        with held_interrupts():
            if self._mode is None:
                made = mode(self.watcher)
                self._doors.watch()
                made.__enter__()
                self._mode, self._thread = made, threading.get_ident()
                WATCHED.add(self._thread)

    def settle(self, ended: bool = False) -> int:
        """Bring back what is parked if nothing else needs the mode, and switch it off; the bytes that stay parked.

        `ended`: no statement runs any more, whatever an interrupt has left.
        """
        if ended:
            self._depth = 0
        if self._mode is None or self._depth:
            return self.store.nbytes
        self.store.sweep()
        if self.store.away:
            try:
                self.store.bring_back()
            except RuntimeError:  # no room yet
                return self.store.nbytes
        self._switch_off()
        return self.store.nbytes

    def _switch_off(self) -> None:
        current = self.torch.utils._python_dispatch._get_current_dispatch_mode
        # below a mode of the user's it stays: modes are left in the order in which they were entered
        if self._thread != threading.get_ident() or current() is not self._mode:
            return
        with held_interrupts():
            made, self._mode = self._mode, None
            made.__exit__(None, None, None)
            WATCHED.discard(self._thread)
            self._doors.leave()
            self.watcher.retry = None


_sessions: list[Session] = []


def session(torch: Any) -> Session:
    """The one session of this process."""
    if not _sessions:
        _sessions.append(Session(torch))
    return _sessions[0]


def existing() -> Session | None:
    """The session, if anything was ever watched."""
    return _sessions[0] if _sessions else None

"""A guarded cell, block or function, as the handler sees it: armed when it begins, and all put back when it ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from ..errors import Refused
from ..machine import machine
from ..render.units import bytes_text
from .handler import Handler
from .own_way import deals_with_it
from .reach import Reach

if TYPE_CHECKING:
    from ..memory.allocator import Allocator
    from .handler import Room

__all__ = ["Session", "close", "left", "limit_kernel", "ready", "running", "switch"]

_on = True
"""Whether room is made where memory is asked for; a setting."""
_kernel_limit: list[int] = []
"""Bytes that this kernel may have of each device, where the user said so."""


def _nothing(line: str) -> None:
    """Nobody is told."""


class Session:
    """Room is made while this is on. Inside another one the outer one's handler serves; a limit is its own.

    Parameters
    ----------
    namespace
        The user's names.
    errors
        Lets go of earlier failures; says which. None where there is no shell.
    say
        Takes one line with the first step of each way that takes long.
    moves
        Whether live tensors may leave the card.
    own_way
        Whether the user asked for another way (a smaller batch, other values, waiting), which comes first.
    limit
        Bytes that this process may have of the current device while this is on; None: no limit of its own.
    """

    def __init__(
        self,
        namespace: Mapping[str, Any],
        *,
        errors: Callable[[int], str] | None = None,
        say: Callable[[str], None] = _nothing,
        moves: bool = True,
        own_way: bool = False,
        limit: int | None = None,
    ) -> None:
        self._reach = Reach(namespace)
        self._errors, self._say, self._moves, self._own, self._limit = errors, say, moves, own_way, limit
        self.room: Room | None = None
        self.handler: Handler | None = None
        self.left = 0
        """Bytes that stayed on the host when it ended."""
        self.out_bytes = 0
        """Bytes that went to the host while it was on."""
        self.reason = ""
        """Why nothing can be met here, where a library is loaded."""
        self._outer: Session | None = None

    def begin(self, allocator: Allocator | None, code: CodeType | None = None) -> None:
        """A statement is about to run: arm, unless that is done. An earlier one may have imported the library."""
        if code is not None:
            self._reach.codes.append(code)
        if self.room is not None:
            self.room.resume()
            return
        if self._outer is not None or allocator is None or not _on:
            return
        if _running:
            self._outer = _running[-1]
            if self._limit is not None and self._outer.room is not None:
                _inner.append((self, self._limit))
                self._outer.room.limit(_least())
            return
        room = allocator.room()
        if isinstance(room, str):
            self.reason = room
            return
        handler = Handler(room, self._errors, self._say, self._moves, self._own_way)
        if _kernel_limit:
            room.limit(_kernel_limit[0])
        try:
            room.begin(self._reach.reached, self._reach.idle, self._limit)
        except Refused as refused:
            self.reason = str(refused)
            return
        _running.append(self)
        self.room, self.handler = room, handler
        room.listen(handler)

    def end(self) -> None:
        """Put everything back. Calling it twice does no harm."""
        self._widen()
        room, self.room = self.room, None
        self._errors, self._say = None, _nothing  # methods of who holds this: else only the collector ends them
        if room is None:
            return
        try:
            room.listen(None)
            self.out_bytes = room.out_bytes()
            self.left = room.end()
        finally:
            if self in _running:
                _running.remove(self)
            if self.handler is not None:
                self.handler.forget()

    def _widen(self) -> None:
        """An inner one's limit ends with it."""
        count = len(_inner)
        _inner[:] = [pair for pair in _inner if pair[0] is not self]
        if len(_inner) < count and self._outer is not None and self._outer.room is not None:
            self._outer.room.limit(_least())

    def _own_way(self) -> bool:
        return self._own or deals_with_it(_frame())


def _least() -> int | None:
    """The smallest of the kernel's limit and those of inner sessions."""
    return min([*_kernel_limit, *(nbytes for _, nbytes in _inner)], default=None)


def switch(on: bool) -> None:
    """Make room where memory is asked for (the default), or only after the error: then all is put back."""
    global _on
    if not on:
        close()
    _on = on


def ready() -> None:
    """Before each cell: where torch is imported its calls of the driver come to us from now on. Starts nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not _on:
        return
    allocator = machine().allocator()
    room = allocator.room() if allocator is not None else ""
    if not isinstance(room, str):
        room.ready()
        if _kernel_limit:
            room.limit(_kernel_limit[0])


def left() -> int:
    """Bytes of this kernel's tensors that are on the host."""
    allocator = machine().allocator()
    room = allocator.room() if allocator is not None and allocator.started() and _on else ""
    return 0 if isinstance(room, str) else room.left()


def limit_kernel(nbytes: int | None) -> None:
    """Let this kernel have no more than `nbytes` of each device; None: no limit.

    Raises
    ------
    Refused
        If that cannot be held here, or more is in use already.
    """
    allocator = machine().allocator()
    if allocator is not None:
        room = allocator.room()
        if isinstance(room, str):
            raise Refused(f"a limit cannot be held here: {room}.")
        used = max((allocator.stats(device).allocated for device in allocator.devices()), default=0)
        if nbytes is not None and used > nbytes:
            raise Refused(f"{bytes_text(used)} are in use already, more than {bytes_text(nbytes)}.")
        if nbytes is not None:
            allocator.empty_cache()
        room.limit(nbytes)
    _kernel_limit[:] = [] if nbytes is None else [nbytes]


def close() -> None:
    """Everything as it was before the extension was loaded (on unloading)."""
    allocator = machine().allocator()
    room = allocator.room() if allocator is not None and _on else ""
    if not isinstance(room, str):
        room.close()
    _kernel_limit.clear()


_running: list[Session] = []
_inner: list[tuple[Session, int]] = []
"""Sessions inside another one that have a limit of their own, in bytes."""


def running() -> Session | None:
    """The session that is on."""
    return _running[-1] if _running else None


def _frame() -> FrameType | None:
    """The innermost frame that asks: on autograd's own thread, that of the main thread, which waits for it."""
    here = threading.get_ident()
    known = {t.ident for t in threading.enumerate() if not isinstance(t, threading._DummyThread)}
    return sys._getframe(1) if here in known else sys._current_frames().get(threading.main_thread().ident or 0)

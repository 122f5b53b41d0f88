"""What is done when memory is asked for and there is none: ways to make room, the cheapest first.

The handler is asked from inside the allocation, before any error: nothing is repeated, and no number can change. It
knows no library: a `Room` answers for torch (memory/torch/room) or for the practice GPU (testing/room).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from .native import NO_ROOM, TRY_AGAIN, USE_HOST

__all__ = ["WAYS", "Done", "Handler", "Room"]

WAYS = ("caches", "errors", "garbage", "holes", "saved", "pages", "host")
"""In the order in which they are tried."""
_CHEAP = ("caches", "errors", "garbage")
"""What is done even where the user's own code deals with the error."""
_MOST_TRIES = 6
_WAIT = 60.0
"""Seconds that a thread waits while another one makes room."""
_LONG = 4 << 30
"""Bytes from which on moving may take a second (an H200's host: 1.1 s the first time): a line comes before it."""
_SAID = {
    "room": "the GPU's memory is full: making room",
    "saved": "the GPU's memory is full: what autograd saved for the backward pass waits on the host",
    "pages": "the GPU's memory is full: tensors that are needed last wait on the host",
    "host": "the GPU's memory is full of what is in use: new tensors lie on the host, which is slower",
}


class Room(Protocol):
    """One library's memory on its devices, as the handler sees it. Sizes in bytes."""

    def begin(
        self, reached: Callable[[], Iterable[Any]], idle: Callable[[], Iterable[Any]], limit: int | None = None
    ) -> None:
        """A guarded cell begins. `reached` and `idle` give roots of what it can reach and cannot."""
        ...

    def resume(self) -> None:
        """Another statement of it begins."""
        ...

    def end(self) -> int:
        """It has ended: what has room comes back; bytes that stay on the host."""
        ...

    def listen(self, handler: Callable[[int, int, int], int] | None) -> None:
        """Who is asked when there is no room; None: nobody."""
        ...

    def ready(self) -> None:
        """A cell is about to run, guarded or not."""
        ...

    def limit(self, nbytes: int | None) -> None:
        """What this process may have of each device from now on; None: no limit."""
        ...

    def left(self) -> int:
        """Bytes of tensors that are on the host now."""
        ...

    def close(self) -> None:
        """Put everything back."""
        ...

    def out_bytes(self) -> int:
        """Bytes that went to the host in this cell, what was made there included."""
        ...

    def refused(self, device: int) -> str:
        """Why nothing at all may be done now (a CUDA graph is being captured), or an empty string."""
        ...

    def free(self, device: int) -> int:
        """What a request may have now: of the driver, and within the limit."""
        ...

    def in_use(self, device: int) -> int:
        """What this process has of it: no more can be made free."""
        ...

    def caches(self, device: int) -> str:
        """Give back what is cached; the names of other libraries' pools that were emptied."""
        ...

    def holes(self, device: int, nbytes: int) -> int:
        """Take the memory from behind free stretches between live tensors; how much."""
        ...

    def saved(self, device: int, nbytes: int) -> int:
        """Let what autograd saved wait on the host, at least so much; how much does."""
        ...

    def pages(self, device: int, nbytes: int) -> int:
        """Exchange the memory behind live tensors for memory of the host; how much."""
        ...

    def moving_refused(self, device: int) -> str:
        """Why no live tensor's memory may be exchanged now, or an empty string."""
        ...

    def host_room(self, nbytes: int) -> str:
        """Why the host cannot give so much, or an empty string."""
        ...


@dataclass
class Done:
    """What one way did in one guarded cell."""

    id: str
    times: int = 0
    nbytes: int = 0
    """More that a request could have afterwards."""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    """Each once, in order."""
    refused: str = ""
    """Why it could not help, where it was asked last."""

    def note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)


def _nothing(line: str) -> None:
    """Nobody is told."""


def _never() -> bool:
    return False


class Handler:
    """The handler of one guarded cell, block or function.

    Parameters
    ----------
    room
        Of the library whose allocation asks.
    errors
        Lets go of earlier failures; says which. None: there are none to let go of.
    say
        Takes one line, shown at once, with the first step of each way that takes long.
    moves
        Whether live tensors and what autograd saved may leave the card.
    own_way
        Whether code on the stack deals with an out-of-memory error itself: then it gets the error.
    """

    def __init__(
        self,
        room: Room,
        errors: Callable[[int], str] | None = None,
        say: Callable[[str], None] = _nothing,
        moves: bool = True,
        own_way: Callable[[], bool] = _never,
    ) -> None:
        self.room, self.errors, self.say, self.moves, self.own_way = room, errors, say, moves, own_way
        self.done: dict[str, Done] = {}
        self.requests = 0
        """How often memory was asked for and there was none."""
        self.failed = 0
        """Of these, how often there was none in the end."""
        self.seconds = 0.0
        self.asked: tuple[int, int] | None = None
        """(device, bytes) of the last request."""
        self.reasons: list[str] = []
        """Why a request got nothing."""
        self.broken: BaseException | None = None
        """An error of ours; torch's own error then stands."""
        self.handled_by_user = False
        self._collected = self._collecting = 0.0
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, device: int, nbytes: int, tries: int) -> int:
        """One of native's answers. Never raises; an interrupt is held back by who calls."""
        started = time.perf_counter()
        answer = NO_ROOM
        if not self._lock.acquire(timeout=_WAIT):
            return NO_ROOM
        try:
            if tries == 0:
                self.requests += 1
                self.asked = (device, nbytes)
            answer = self._answer(device, nbytes, tries)
        except BaseException as error:  # noqa: BLE001 - torch's own error stands, and the report says why
            self.broken = error
        finally:
            self.seconds += time.perf_counter() - started
            self._lock.release()
        if answer == NO_ROOM:
            self.failed += 1
        return answer

    def _answer(self, device: int, nbytes: int, tries: int) -> int:
        room = self.room
        reason = room.refused(device)
        if reason:
            return self._no(reason)
        own = self.own_way()
        self.handled_by_user |= own
        # a request that failed although so much was free: there is less than the driver tells
        wanted = nbytes + tries * max(nbytes, 64 << 20)
        for way in WAYS[:-1]:
            if (own or not self.moves) and way not in _CHEAP:
                continue
            if tries == 0 and way == "garbage" and self._young():
                continue
            try:
                self._try(way, device, wanted)
            except Exception as error:  # noqa: BLE001 - the next way may help, and the report says it
                self.broken = error
            if room.free(device) >= wanted and tries < _MOST_TRIES:
                return TRY_AGAIN
        if room.free(device) >= nbytes and tries < _MOST_TRIES:
            return TRY_AGAIN
        if own:
            return self._no("code of the cell deals with the error itself")
        if not self.moves:
            return self._no("nothing may be moved, by the options")
        reason = room.host_room(nbytes)
        if reason:
            return self._no(reason)
        done = self._of("host")
        self._once(done.id)
        done.times += 1
        done.nbytes += nbytes
        return USE_HOST

    def _no(self, reason: str) -> int:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return NO_ROOM

    def _of(self, way: str) -> Done:
        return self.done.setdefault(way, Done(way))

    def _young(self) -> bool:
        """Whether the last collection is so short a time ago that another one would take over 5 % of the cell."""
        return time.perf_counter() - self._collected < 20 * self._collecting

    def _try(self, way: str, device: int, wanted: int) -> None:
        room, done = self.room, self._of(way)
        started, before = time.perf_counter(), room.free(device)
        missing = wanted - before
        if way in ("saved", "pages") and _LONG <= missing <= room.in_use(device):
            self._once("room")
        if way == "caches":
            done.note(room.caches(device))
        elif way == "errors":
            said = self.errors(device) if self.errors is not None else ""
            if said:
                done.note(f"let go of {said}")
                self._collect()  # a traceback and its frames refer to each other
                room.caches(device)
        elif way == "garbage":
            self._collect()
            room.caches(device)
        elif way == "holes":
            room.holes(device, missing)
        elif way == "saved":
            if room.saved(device, missing):
                self._once(done.id)
                room.caches(device)
                if room.free(device) < wanted:
                    room.holes(device, wanted - room.free(device))
        else:
            done.refused = room.moving_refused(device)
            if not done.refused and room.pages(device, missing):
                self._once(done.id)
        gained = room.free(device) - before
        done.seconds += time.perf_counter() - started
        if gained > 0:
            done.times += 1
            done.nbytes += gained

    def _once(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self.say(_SAID[what])

    def _collect(self) -> None:
        import gc

        started = time.perf_counter()
        gc.collect()
        self._collected = time.perf_counter()
        self._collecting = self._collected - started

    def forget(self) -> None:
        """It is over: what it was given is let go of, so that nobody lives on by it."""
        self.errors, self.say, self.own_way = None, _nothing, _never

    # -- for the report
    def helped(self) -> list[Done]:
        """The ways that made room, in the order in which they are tried."""
        return [self.done[way] for way in WAYS if way in self.done and self.done[way].times]

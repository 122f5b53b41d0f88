"""Virtual memory for tensors: storages leave for the host when an op finds no room, and come back when one names them.

Who leaves: the storage that is used last of all again, by the order seen in the iteration before; where nothing is
known, the one used longest ago. What was not changed since it came back leaves for nothing. What the next ops will
name is brought back meanwhile, on a stream of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from ....errors import CudaMagicError
from .lane import quiet
from .operands import Reader, storages
from .order import Order
from .parked import Entry, Store, held_interrupts

__all__ = ["Figures", "Pager"]

LEAST = 1 << 20
"""Bytes of the smallest storage that leaves: torch keeps smaller ones in a pool of their own."""
SPARE = 32 << 20
"""Bytes that are kept free beside what is brought back, for what ops take inside."""
AHEAD = 16
"""Uses that are looked ahead."""


class Figures:
    """What a pager can ask of its device.

    `limit` and `used` in bytes: what this process may take in all, and what its live tensors take now. `movable` says
    whether a storage may leave. `stream` is told of each op.
    """

    def __init__(self, torch: Any, index: int, limit: Callable[[], int]) -> None:
        self.torch, self.index, self.limit = torch, index, limit
        self._standard = torch._C._has_Standard_Deleter
        self._stream = torch._C._cuda_getCurrentRawStream

    def used(self) -> int:
        return int(self.torch._C._cuda_memoryStats(self.index)["allocated_bytes"]["all"]["current"])

    def movable(self, storage: Any) -> bool:
        return bool(storage.resizable() and self._standard(storage._cdata))

    def stream(self) -> int:
        return int(self._stream(self.index))


class Pager:
    """Pages the storages of one device in and out, around each op.

    Parameters
    ----------
    store
        Where they are parked.
    device
        (type, index)
    figures
        See `Figures`.
    least
        Bytes of the smallest storage that leaves.
    stop
        Asked before anything leaves: why nothing may any more, or an empty string.
    """

    def __init__(
        self,
        store: Store,
        device: tuple[str, int | None],
        figures: Any,
        *,
        least: int = LEAST,
        spare: int = SPARE,
        stop: Callable[[], str] = lambda: "",
    ) -> None:
        self.torch, self.store, self.device, self.figures = store.torch, store, device, figures
        self.least, self.stop = least, stop
        self.limit = figures.limit()
        self.spare = min(spare, self.limit // 16)
        self.window = max(self.limit // 8, 2 * least)
        """Bytes that are brought back ahead of their use, at most."""
        self.reader, self.order = Reader(self.torch), Order()
        self.refused = ""
        """Why nothing leaves any more."""
        self.out_before, self.in_before = store.out_bytes, store.in_bytes
        self.faults = self.ahead = self.evictions = 0
        """Storages brought back when named, brought back before that, and sent away."""
        self._wanted: dict[int, frozenset[int]] = {}
        """Keys of what a failed op named, by thread."""
        self._lasting: set[int] = set()
        """Keys of storages that outlive an iteration: only their order is kept."""

    # -- what may leave
    def follow(self, handles: Iterable[Any], lasting: bool = True) -> None:
        """These storages may leave from now on."""
        with self.store.lock:
            for storage in handles:
                self._entry(storage, lasting)

    def _entry(self, storage: Any, lasting: bool = False) -> Entry | None:
        key = storage._cdata
        entry = self.store.away.get(key) or self.store.followed.get(key)
        if entry is None:
            device = storage.device
            if (device.type, device.index) != self.device or storage.nbytes() < self.least:
                return None
            if not self.figures.movable(storage):
                return None
            entry = self.store.followed[key] = Entry(self.torch, storage)
            entry.used = self.order.now
            if len(self.store.followed) % 1024 == 0:
                self._sweep()
        if lasting:
            self._lasting.add(key)
        return entry

    def _sweep(self) -> None:
        self.store.sweep()
        known = {**self.store.away, **self.store.followed}
        for key in [k for k in self._lasting if k not in known]:
            self._lasting.discard(key)
            self.order.forget(key)

    # -- around an op
    def begin(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Entry]:
        """Bring back what the op names, and hold it here until `end`. May raise out of memory; nothing has begun."""
        store = self.store
        with store.lock:
            note = getattr(store.lane(self.device), "note", None)
            if note is not None:
                note(self.figures.stream())
            held: dict[int, Entry] = {}
            for storage in storages(self.torch, (args, kwargs)):
                if storage._cdata not in held:
                    entry = self._entry(storage)
                    if entry is not None:
                        held[entry.key] = entry
            if not held:
                return []
            found = list(held.values())
            for entry in found:
                entry.busy += 1
            try:
                missing = [entry for entry in found if entry.away]
                if missing:
                    self._fit(func, found)
                    self._bring(missing)
                for entry in found:
                    if entry.came is not None:
                        store.arrive(entry)
                self._written(func, args, kwargs, held)
            except BaseException:
                self.end(found)
                raise
            for entry in found:
                entry.used = self.order.now
                if entry.key in self._lasting:
                    self.order.used(entry.key)
            return found

    def _written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], held: dict[int, Entry]) -> None:
        written = self.reader.written(func, args, kwargs)
        if not written:
            return
        several = "_foreach_" in str(func) or "_fused_" in str(func)
        for storage in storages(self.torch, written):
            entry = held.get(storage._cdata)
            if entry is not None:
                entry.clean = False
                if several:  # an optimizer's: parameters and state, which outlive the iteration
                    self._lasting.add(entry.key)

    def end(self, held: list[Entry]) -> None:
        """The op has ended, by an error too."""
        for entry in held:
            entry.busy -= 1

    def failed(self, held: list[Entry]) -> None:
        """The op raised: what it names stays here, since it will be run again."""
        self.refresh()
        self._wanted[threading.get_ident()] = frozenset(entry.key for entry in held)

    def done(self, result: Any, held: list[Entry]) -> None:
        """The op has succeeded: its results may leave later, and what comes next is brought back."""
        self._wanted.pop(threading.get_ident(), None)
        with self.store.lock:
            for storage in storages(self.torch, (result,)):
                self._entry(storage)
            if held and self.store.away:
                self._bring_ahead()

    def _fit(self, func: Any, held: list[Entry]) -> None:
        need = sum(entry.nbytes for entry in held)
        if need > self.limit:
            gib = 1 << 30
            raise self.torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {need / gib:.2f} GiB. {func} names so much at once, and GPU "
                f"{self.device[1] or 0} has a total capacity of {self.limit / gib:.2f} GiB for this process: no "
                "paging helps an operation that is larger than the card."
            )

    def refresh(self) -> None:
        """Read anew what this process may take."""
        self.limit = self.figures.limit()

    def room(self) -> int:
        """Bytes that live tensors may still take."""
        return int(self.figures.limit() - self.figures.used())

    # -- in
    def _bring(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.faults += 1
            room = self.limit - self.figures.used() - self.spare
            if room < entry.nbytes:
                self.leave(entry.nbytes - room)
            while True:
                try:
                    self._come(entry)
                    break
                except self.torch.OutOfMemoryError as error:
                    failure = error.with_traceback(None)
                    self.store.errors += 1
                    self.refresh()
                # outside of except; a heap in pieces may need more than the bytes alone
                if not self.leave(entry.nbytes):
                    self.store.errors -= 1  # this one is raised
                    raise failure

    def fetch(self, entry: Entry) -> None:
        """Bring one back outside of any op, and wait for it: who asks for an address says no stream."""
        with self.store.lock:
            if entry.away:
                self._bring([entry])
            self.store.arrive(entry)
            self.store.lane(self.device).settle()
            entry.clean = False  # it may be written to by who knows its address

    def _come(self, entry: Entry) -> None:
        with held_interrupts(), quiet(self.torch):
            self.store.come(entry, keep=True)

    def _bring_ahead(self) -> None:
        budget = self.window
        room: int | None = None
        for distance, key in enumerate(self.order.ahead(AHEAD), 1):
            entry = self.store.away.get(key) or self.store.followed.get(key)
            if entry is None:
                continue
            budget -= entry.nbytes
            if budget < 0:
                return
            if not entry.away:
                continue
            if room is None:
                room = self.limit - self.figures.used() - self.spare
            if room < entry.nbytes:
                room += self.leave(entry.nbytes - room, beyond=2 * distance + 1)
                if room < entry.nbytes:
                    return
            try:
                self._come(entry)
            except (CudaMagicError, RuntimeError):  # the op that names it will say so
                self.store.errors += 1
                return
            self.ahead += 1
            room -= entry.nbytes

    # -- out
    def leave(self, nbytes: int, beyond: int = 0) -> int:
        """Send storages away until `nbytes` are free; how many were. With `beyond`: only those used later than that."""
        if not self.refused:
            self.refused = self.stop()
        if self.refused:
            return 0
        freed = 0
        with self.store.lock:
            self.store.sweep()
            for entry in self._candidates(beyond):
                if freed >= nbytes:
                    break
                storage = self.store.storage(entry)
                if storage is None or not storage.nbytes() or not self.figures.movable(storage):
                    continue
                try:
                    with held_interrupts(), quiet(self.torch):
                        freed += self.store.leave(entry, storage)
                except (CudaMagicError, RuntimeError, MemoryError) as error:  # a full host, a copy that failed
                    self.refused = str(error).split("\n", 1)[0]
                    break
                self.evictions += 1
        return freed

    def _candidates(self, beyond: int) -> list[Entry]:
        """What may leave, last used again first."""
        now = self.order.now
        wanted = frozenset().union(*self._wanted.values())
        found = []
        for entry in self.store.followed.values():
            if entry.busy or entry.pinned or entry.key in wanted or entry.device != self.device:
                continue
            distance = self.order.distance(entry.key)
            if distance is None:  # as long as it was not used
                distance = now - entry.used if not beyond else 0
            if distance >= beyond:
                found.append((distance, entry.key, entry))
        found.sort(key=lambda f: f[:2], reverse=True)
        return [entry for _, _, entry in found]

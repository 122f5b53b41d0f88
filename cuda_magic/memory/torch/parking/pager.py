"""Virtual memory for tensors: storages leave for the host when an op finds no room, and come back when one names them.

Who leaves: the storage that is used last of all again, by the order seen in the iteration before; where nothing is
known, the one used longest ago. What was not changed since it came back leaves for nothing; those that leave next are
copied out in advance, so that nobody waits for it. What the next ops will name is brought back meanwhile. Both ways
run at once, on streams of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any

from ....errors import CudaMagicError
from .ahead import Ahead, Room
from .lane import quiet
from .operands import Reader, storages
from .order import Order
from .parked import Entry, Store, held_interrupts
from .victims import Victims

__all__ = ["Figures", "Pager"]

LEAST = 1 << 20
"""Bytes of the smallest storage that leaves: torch keeps smaller ones in a pool of their own."""
SPARE = 32 << 20
"""Bytes that are kept free beside what is brought back, for what ops take inside, at first."""
NEAR = 8
"""What is used within so many uses stays, and after so many more is tried again where there was no room."""


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
        self.reader, self.order = Reader(self.torch), Order()
        self.space = Room(figures, spare)
        self._ahead = Ahead(self.order, self._bearer)
        self.reserve = 0
        """Bytes that are copied out in advance, once something leaves."""
        self.anew()
        self.refused = ""
        """Why nothing leaves any more."""
        self.out_before, self.in_before = store.out_bytes, store.in_bytes
        self.faults = self.ahead = self.evictions = 0
        """Storages brought back when named, brought back before that, and sent away."""
        self._wanted: dict[int, frozenset[int]] = {}
        """Keys of what a failed op named, by thread."""
        self._bearers: dict[int, int] = {}
        """Key of the storage that bears a name."""
        self._blocked = 0
        """Until this moment there was no room for more."""
        self._victims = Victims(store, self.order, device)

    # -- what may leave
    def follow(self, handles: Iterable[Any]) -> None:
        """These storages may leave from now on."""
        with self.store.lock:
            for storage in handles:
                self._entry(storage)

    def _entry(self, storage: Any, made: bool = False) -> Entry | None:
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
        if not entry.name:
            entry.name = self.order.made(entry.nbytes, self._alive) if made else self.order.new()
            self._bearers[entry.name] = key
            self.space.free -= entry.nbytes if made else 0
        return entry

    def _bearer(self, name: int | None) -> Entry | None:
        key = self._bearers.get(name) if name is not None else None
        entry = (self.store.away.get(key) or self.store.followed.get(key)) if key is not None else None
        return entry if entry is not None and entry.name == name else None

    def _alive(self, name: int) -> bool:
        entry = self._bearer(name)
        return entry is not None and not self.torch.UntypedStorage._expired(entry.weak)

    def _sweep(self) -> None:
        self.store.sweep()
        known = {**self.store.away, **self.store.followed}
        self._bearers = {entry.name: key for key, entry in known.items()}
        self._ahead.only(known)

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
                written = self.reader.written(func, args, kwargs)
                for storage in storages(self.torch, written) if written else ():
                    changed = held.get(storage._cdata)
                    if changed is not None and changed.clean:
                        store.changes(changed)
            except BaseException:
                self.end(found)
                raise
            for entry in found:
                self._ahead.named(entry)
            return found

    def end(self, held: list[Entry]) -> None:
        """The op has ended, by an error too."""
        for entry in held:
            entry.busy -= 1

    def failed(self, held: list[Entry]) -> None:
        """The op raised: what it names stays here, since it will be run again."""
        self.refresh()
        self.space.left()
        self._wanted[threading.get_ident()] = frozenset(entry.key for entry in held)

    def done(self, func: Any, result: Any, held: list[Entry]) -> None:
        """The op has succeeded: its results may leave later, and what comes next is brought back."""
        self._wanted.pop(threading.get_ident(), None)
        with self.store.lock:
            views = self.reader.views(func)
            for entry in held:
                entry.used = self.order.now
                if not views:  # which read no memory: the op that does follows
                    self.order.used(entry.name)
            for storage in storages(self.torch, (result,)):
                self._entry(storage, made=True)
            if self.evictions or self.store.away:
                self._keep_free()
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

    # -- room
    @property
    def limit(self) -> int:
        """Bytes that this process may take."""
        return self.space.limit

    def refresh(self) -> None:
        """Read anew what this process may take."""
        self.space.refresh()

    def anew(self) -> None:
        """Another statement begins."""
        self.space.anew()
        self._ahead.window = max(self.limit // 16, 2 * self.least)
        self.reserve = max(self.limit // 32, 2 * self.least)

    def room(self) -> int:
        """Bytes that live tensors may still take."""
        self.space.refresh()
        return self.space.left()

    def _keep_free(self) -> None:
        """Send away what leaves next anyway, before an op finds no room: an error takes milliseconds."""
        if self.order.now < self._blocked:
            return
        missing = -self.space.has(0)
        if missing > 0 and self._leave(missing, 2) < missing:
            self._blocked = self.order.now + NEAR

    # -- in
    def _bring(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.faults += 1
            room = self.space.has(entry.nbytes)
            if room < entry.nbytes:
                self._leave(entry.nbytes - room)
            while True:
                try:
                    self._come(entry)
                    break
                except self.torch.OutOfMemoryError as error:
                    failure = error.with_traceback(None)
                    self.store.errors += 1
                    self.refresh()
                # outside of except; a heap in pieces may need more than the bytes alone
                self.space.in_pieces()
                if not self._leave(entry.nbytes):
                    self.store.errors -= 1  # this one is raised
                    raise failure

    def fetch(self, entry: Entry) -> None:
        """Bring one back outside of any op, and wait for it: who asks for an address says no stream."""
        with self.store.lock:
            if entry.away:
                self._bring([entry])
            self.store.arrive(entry)
            self.store.changes(entry)  # it may be written to by who knows its address
            self.store.lane(self.device).settle()

    def _come(self, entry: Entry) -> None:
        with held_interrupts(), quiet(self.torch):
            self.store.come(entry, keep=True)
        self.space.free -= entry.nbytes

    def _bring_ahead(self) -> None:
        if self.order.now < self._blocked:
            return
        for distance, entry in self._ahead.missing(self.limit // 4):
            missing = entry.nbytes - self.space.has(entry.nbytes)
            if missing > 0 and self._leave(missing, 2 * distance + 1) < missing:
                self._blocked = self.order.now + NEAR
                return
            try:
                self._come(entry)
            except (CudaMagicError, RuntimeError) as error:  # the op that names it will say so
                self._blocked = self.order.now + NEAR
                if isinstance(error, self.torch.OutOfMemoryError):
                    self.store.errors += 1
                    self.space.in_pieces()
                return
            self.ahead += 1
            self._ahead.came(entry)

    # -- out
    def leave(self, nbytes: int) -> int:
        """An op asks for so much and finds no room: send storages away until it is free; how many bytes were."""
        self.space.asked(nbytes, self.order.now)
        with self.store.lock:
            return self._leave(nbytes)

    def _leave(self, nbytes: int, beyond: int = 0) -> int:
        """Send storages away until `nbytes` are free; how many were. With `beyond`: only those used later than that."""
        if not self.refused:
            self.refused = self.stop()
        if self.refused:
            return 0
        freed = 0
        held = frozenset().union(*self._wanted.values())
        while freed < nbytes:
            entry = self._victims.first(beyond, held)
            if entry is None:
                break
            storage = self._storage(entry)
            if storage is None:
                continue
            try:
                with held_interrupts(), quiet(self.torch):
                    freed += self.store.leave(entry, storage)
            except (CudaMagicError, RuntimeError, MemoryError) as error:  # a full host, a copy that failed
                self.refused = str(error).split("\n", 1)[0]
                break
            self.evictions += 1
            self._ahead.left(entry)
        self.space.free += freed
        if freed and not self.store.lane(self.device).several:
            self._save_next(held)
        return freed

    def _storage(self, entry: Entry) -> Any:
        """The storage, if it may leave."""
        storage = self.store.storage(entry)
        return storage if storage is not None and storage.nbytes() and self.figures.movable(storage) else None

    def _save_next(self, held: Collection[int]) -> None:
        """Copy out in advance who leaves next."""
        missing = self.reserve - self._victims.ready
        unchanged: list[Entry] = []
        for entry in self._victims.farthest(held, NEAR) if missing > 0 else ():
            storage = self._storage(entry)
            if storage is None:
                continue
            if entry.clean:
                unchanged.append(entry)
            else:
                try:
                    with held_interrupts(), quiet(self.torch):
                        self.store.save(entry, storage)
                except (CudaMagicError, RuntimeError, MemoryError):  # who must leave will say so
                    break
                self._victims.prepared(entry)
            missing -= entry.nbytes
            if missing <= 0:
                break
        self._victims.again(unchanged)

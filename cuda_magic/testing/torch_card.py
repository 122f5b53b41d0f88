"""A small card for torch's own tensors: a part of the real card, or a practice card made of the CPU.

On the practice card tensors lie on the CPU and count against a size; an op that passes it raises torch's error, so that
real models run out of memory on a machine without a GPU, and the rungs that work op by op can be seen there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..allocation.native import NO_ROOM, TRY_AGAIN, USE_HOST
from ..devices.model import Device, Memory, Process, Reading
from ..errors import Refused
from ..machine import RealMachine, use
from ..memory.allocator import Segment, Stats
from ..memory.compaction.rules import Rules
from ..memory.torch import scan
from ..memory.torch.caching import TorchAllocator
from ..memory.torch.offload.activations import Activations
from ..memory.torch.offload.budget import Budget
from ..memory.torch.offload.host_pool import Buffer, HostPool
from ..memory.torch.offload.op_control import OpControl
from ..memory.torch.offload.operands import storages
from ..memory.torch.offload.session import Session
from ..memory.torch.offload.storage_copies import PlainLane
from ..memory.torch.offload.store import Store
from ..memory.torch.room import SHARE
from ..render.units import bytes_text
from .real import real_gpus
from .sizes import size

if TYPE_CHECKING:
    from .torch_room import PracticeTorchRoom

__all__ = ["PracticeTorchCard", "RealTorchCard", "torch_card"]

LEAST = 1024
"""Bytes from which a storage counts: what is smaller never decides."""


class Count:
    """Storages on the card, by weak reference: `cap` bytes are allowed. Contents that wait elsewhere do not count."""

    def __init__(self, cap: int, least: int = LEAST) -> None:
        self.cap, self.least, self.peak, self.errors = cap, least, 0, 0
        self.away: set[int] = set()
        """Keys of those whose memory is the host's now: they stay valid, and do not count."""
        self.handler: Callable[[int, int, int], int] | None = None
        """Who is asked when there is no room, as the native shim asks."""
        self._live: dict[int, int] = {}

    def note(self, storage: Any) -> None:
        if storage._cdata not in self._live and storage.nbytes() >= self.least:
            self._live[storage._cdata] = storage._weak_ref()

    def knows(self, storage: Any) -> bool:
        return storage._cdata in self._live

    def live(self) -> Iterator[Any]:
        for key, weak in list(self._live.items()):
            if self._live.get(key) != weak:  # whoever was given the last one has looked through all of them meanwhile
                continue
            storage = torch.UntypedStorage._new_with_weak_ptr(weak)
            if storage is None:
                self.away.discard(key)
                del self._live[key]  # first: an interrupt between the two lines must not leave a freed reference
                torch.UntypedStorage._free_weak_ref(weak)
            else:
                yield storage

    def used(self) -> int:
        total = sum(int(storage.nbytes()) for storage in self.live() if storage._cdata not in self.away)
        self.peak = max(self.peak, total)
        return total

    def ask(self, nbytes: int) -> None:
        """Raise torch's error if so many bytes do not fit."""
        if nbytes >= self.least and self.full(nbytes) == NO_ROOM:
            self.out(nbytes)

    def full(self, nbytes: int) -> int:
        """Whether so many bytes fit, whoever listens having made room: TRY_AGAIN (they do), USE_HOST, or NO_ROOM."""
        tries = 0
        while self.used() + nbytes > self.cap:
            answer = self.handler(0, nbytes, tries) if self.handler is not None else NO_ROOM
            if answer != TRY_AGAIN:
                return answer
            tries += 1
        return TRY_AGAIN

    def out(self, nbytes: int) -> None:
        __tracebackhide__ = True
        self.errors += 1
        used = self.used()
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {nbytes / 2**20:.2f} MiB. GPU 0 has a total capacity of "
            f"{self.cap / 2**20:.2f} MiB of which {max(0, self.cap - used) / 2**20:.2f} MiB is free."
        )


class Counting(TorchDispatchMode):  # type: ignore[misc]  # torch ships no types here
    """Sees each op: new storages count, and one whose storages do not fit fails as if it had not run."""

    def __init__(self, count: Count) -> None:
        super().__init__()
        self.count = count

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps us by its compiler, whose frames then stand in every error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True
        count = self.count
        draws = torch.Tag.nondeterministic_seeded in func.tags
        before = torch.get_rng_state() if draws else None
        out = func(*args, **(kwargs or {}))
        known = {s._cdata for s in storages(torch, (args, kwargs or {}))}
        new = {s._cdata: s for s in storages(torch, out) if s._cdata not in known}
        need = sum(s.nbytes() for s in new.values() if s.nbytes() >= count.least and not count.knows(s))
        answer = count.full(need) if need else TRY_AGAIN
        if answer == NO_ROOM:
            del out, new
            if before is not None:  # a card asks for the memory before it draws
                torch.set_rng_state(before)
            count.out(need)
        for storage in new.values():
            count.note(storage)
            if answer == USE_HOST:
                count.away.add(storage._cdata)
        count.used()
        return out


class _Copies:
    """Copies that are done when they are made: what the hooks of activations ask of a card's streams."""

    device = torch.device("cpu")

    def __init__(self, count: Count) -> None:
        self.count, self.limit = count, count.cap

    def stream(self, known: Any = None) -> int:
        return 0

    def mark(self, stream: Any) -> None:
        """Nothing is under way."""

    def wait(self, stream: Any, events: Iterable[Any]) -> None:
        """Nothing is under way."""

    def out(self, source: Any, buffer: Buffer, after: Any) -> None:
        buffer.data.copy_(source)

    def back(self, buffer: Buffer, target: Any, stream: Any, after: Any) -> None:
        storage = target.untyped_storage()
        self.count.ask(storage.nbytes())
        self.count.note(storage)
        target.copy_(buffer.data)

    def join(self, stream: Any) -> None:
        """Nothing is under way."""

    def free(self) -> int:
        return max(0, self.count.cap - self.count.used())


class _Exact(Rules):
    """There is no cache: a request takes what it asks for."""

    def from_driver(self, nbytes: int) -> int:
        return nbytes


class _CpuAllocator(TorchAllocator):
    """torch's allocator where the card is a count of CPU storages."""

    label = "PRACTICE"

    def __init__(self, count: Count, session: Session, arena: HostPool) -> None:
        super().__init__()
        self.count, self.session, self.arena = count, session, arena
        self._practice_room: PracticeTorchRoom | None = None

    def room(self) -> PracticeTorchRoom:
        if self._practice_room is None:
            from .torch_room import PracticeTorchRoom

            self._practice_room = PracticeTorchRoom(self.torch, self.count, self._hooks)
        return self._practice_room

    def _hooks(self, request: int) -> Activations:
        cap = self.count.cap
        return Activations(self.torch, _Copies(self.count), self.arena, Budget(0, cap, share=SHARE))

    def started(self) -> bool:
        return True

    def devices(self) -> tuple[int, ...]:
        return (0,)

    def uuids(self) -> list[str]:
        return []

    def stats(self, device: int) -> Stats:
        used = self.count.used()
        return Stats(used, used, self.count.peak, self.count.peak, self.count.errors)

    def ooms(self, device: int) -> int:
        return self.count.errors

    def segments(self, device: int) -> tuple[Segment, ...]:
        return ()

    def rules(self) -> Rules:
        return _Exact()

    def uncached(self) -> AbstractContextManager[None]:
        raise Refused("the practice card has no caching allocator to pass by")

    def driver_memory(self, device: int) -> tuple[int, int] | None:
        return max(0, self.count.cap - self.count.used()), self.count.cap

    def memory_limit(self, device: int) -> int | None:
        return None

    def healthy(self, device: int) -> bool:
        return True

    def empty_cache(self) -> None:
        """There is no cache here."""

    def clear_workspaces(self) -> list[str]:
        return []

    def owners(self, among: Iterable[Any] | None = None) -> Iterator[tuple[Any, int, int, int]]:
        return scan.owners(self.torch, among, self._on_card)

    def _on_card(self, tensor: Any) -> bool:
        return self.count.knows(self.torch._C.TensorBase.untyped_storage(tensor))

    def moving_refused(self, device: int, *, doing: str = "move") -> str:
        return "" if doing == "save" else "the practice card has no heap in which tensors could be moved"

    def ops(self) -> OpControl:
        return OpControl(self.torch, used=self.session, kind="cpu", errors=lambda: self.count.errors)

    def activations(self, device: int, request: int) -> Activations:
        return Activations(self.torch, _Copies(self.count), self.arena, Budget(request, self.count.cap))

    def absorbed(self) -> int:
        return self.session.store.errors

    def settle(self, ended: bool = False) -> int:
        return self.session.settle(ended=ended)

    def release_host(self, *, excess: bool = False) -> int:
        return self.arena.release() if not excess or self.arena.excessive() else 0

    def random_state(self) -> Any:
        return self.torch.get_rng_state()

    def set_random_state(self, state: Any) -> None:
        self.torch.set_rng_state(state)


class _Source:
    def __init__(self, count: Count) -> None:
        self.count = count

    def read(self, *, processes: bool = True, slow: bool = True) -> Reading:
        used = self.count.used()
        memory = Memory(self.count.cap, used, max(0, self.count.cap - used))
        own = (Process(os.getpid(), used),) if processes else None
        card = Device(0, f"Practice card {bytes_text(self.count.cap)}", memory=memory, processes=own)
        return Reading(time.time(), (card,), label="PRACTICE")


class _Machine(RealMachine):
    """The real machine, except for the card."""

    def __init__(self, count: Count, allocator: _CpuAllocator) -> None:
        super().__init__("PRACTICE")
        object.__setattr__(self, "_count", count)
        object.__setattr__(self, "_allocator", allocator)

    def devices(self) -> Any:
        return _Source(self._count)  # type: ignore[attr-defined]

    def allocator(self) -> Any:
        return self._allocator  # type: ignore[attr-defined]


class PracticeTorchCard:
    """A card of `nbytes` made of the CPU. From its making on, every tensor of this kernel lies on it.

    `device` is what tensors and modules are made on.
    """

    practice = True
    device = "cpu"

    def __init__(self, nbytes: int) -> None:
        self.capacity = nbytes
        """Bytes that fit."""
        self._count = Count(nbytes)
        arena = HostPool(torch, pin=False)
        session = Session(torch, Store(torch, lambda: arena, lambda device: PlainLane(torch, self._count.ask)))
        self.machine = _Machine(self._count, _CpuAllocator(self._count, session, arena))
        self._mode = Counting(self._count)
        self._mode.__enter__()

    def __repr__(self) -> str:
        return f"PRACTICE: a card of {bytes_text(self.capacity)} (a model on the CPU, no real GPU is used)"

    @contextmanager
    def enough(self) -> Iterator[None]:
        """As if the card were large enough, inside."""
        before, self._count.cap = self._count.cap, 1 << 50
        try:
            yield
        finally:
            self._count.cap = before

    def close(self) -> None:
        """Tensors lie on the CPU again, and the magics look at the real machine."""
        self._mode.__exit__(None, None, None)
        use(None)


class RealTorchCard:
    """A part of the real card 0: this process may take `nbytes` of it."""

    practice = False
    device = "cuda"

    def __init__(self, nbytes: int) -> None:
        self._limit: Callable[[float], None] = torch.cuda.set_per_process_memory_fraction
        self._total = torch.cuda.get_device_properties(0).total_memory
        self.capacity = min(nbytes, self._total)
        self._limit(self.capacity / self._total)

    def __repr__(self) -> str:
        return f"{bytes_text(self.capacity)} of an {torch.cuda.get_device_name(0)}"

    @contextmanager
    def enough(self) -> Iterator[None]:
        """The whole card, inside."""
        self._limit(1.0)
        try:
            yield
        finally:
            torch.cuda.empty_cache()
            self._limit(self.capacity / self._total)

    def close(self) -> None:
        """The whole card again."""
        self._limit(1.0)


def torch_card(real: str | int = "8 GiB", practice: str | int = "64 MiB") -> PracticeTorchCard | RealTorchCard:
    """A card for models that are larger than it: a part of the real one, else a practice card made of the CPU.

    Parameters
    ----------
    real
        What this process may take of the real card.
    practice
        The size of the practice card: small, so that a model larger than it trains in seconds on a CPU.
    """
    if os.environ.get("CUDA_MAGIC_PRACTICE") != "1" and real_gpus():
        use(None)
        return RealTorchCard(size(real))
    made = PracticeTorchCard(size(practice))
    use(made.machine)
    return made

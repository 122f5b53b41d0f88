"""A plan done for real, every address checked against it. Interrupted anywhere, no data is lost."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .heap import ARENA_BASE, ARENA_STEP

if TYPE_CHECKING:
    from ..allocator import Allocator, Storage
    from .pieces import Op
    from .plan import Plan

__all__ = ["Diverged", "Stranded", "collector_paused", "interrupts_held", "replay"]


class Diverged(Exception):
    """The allocator chose another address than the plan, or had no memory; nothing is lost, the plan is stopped."""


class Stranded(RuntimeError):
    """Contents could not come back from the host. `kept` has (storage, copy) of each; using them on the card fails."""

    def __init__(self, kept: list[tuple[Storage, Any]]) -> None:
        super().__init__(f"{len(kept)} tensors could not come back from the host; their contents are in .kept")
        self.kept = kept


@contextmanager
def interrupts_held() -> Iterator[None]:
    """An interrupt that comes inside is delivered on leaving. Other threads than the main one never get any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before is None:  # set by other than Python: cannot be put back
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection inside: it would free blocks under the plan, and look at each piece of the model."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Replay:
    def __init__(self, allocator: Allocator, device: int, storages: Mapping[int, Storage]) -> None:
        self.allocator, self.device, self.storages = allocator, device, storages
        self.fillers: dict[int, Any] = {}
        self.bases: list[int] = []
        self.parked: dict[int, tuple[Any, int]] = {}
        """(copy, stream) of what is on the host only."""

    def real(self, address: int) -> int:
        """The address that stands behind one of the model."""
        if address < ARENA_BASE:
            return address
        arena, offset = divmod(address - ARENA_BASE, ARENA_STEP)
        return self.bases[arena] + offset

    def fill(self, op: Op, places: set[int]) -> None:
        """Hold one of `places`; holes of one size are taken in an order of the allocator's own."""
        for again in (True, False):
            filler = self.allocator.filler(self.device, op.size, op.stream)
            address = self.allocator.filler_address(filler)
            if address in places:
                self.fillers[address] = filler
                places.remove(address)
                return
            del filler
            if again:  # a block that another stream has used is free only when the device says that it is done
                self.allocator.healthy(self.device)
        raise Diverged(f"a place of {op.size} bytes was taken elsewhere than planned")

    def arena(self, op: Op) -> None:
        filler = self.allocator.filler(self.device, op.size, op.stream)
        address = self.allocator.filler_address(filler)
        self.bases.append(address)
        self.fillers[address] = filler

    def check(self, op: Op, address: int) -> None:
        if address != self.real(op.address):
            raise Diverged(f"a block of {op.size} bytes went elsewhere than planned")

    def do(self, op: Op) -> None:
        """One operation other than a fill."""
        if op.kind == "drop":
            del self.fillers[self.real(op.address)]
        elif op.kind == "move":
            self.check(op, self.allocator.move(self.storages[op.key], op.stream))
        elif op.kind == "arena":
            self.arena(op)
        elif op.kind == "park":
            storage = self.storages[op.key]
            copy = self.allocator.copy_out(storage)
            self.parked[op.key] = copy, op.stream
            self.allocator.let_go(storage)
        elif op.kind == "unpark":
            address = self.allocator.copy_in(self.storages[op.key], self.parked[op.key][0], op.stream)
            del self.parked[op.key]
            self.check(op, address)
        else:
            self.allocator.empty_cache()

    def run(self, ops: tuple[Op, ...]) -> None:
        at = 0
        while at < len(ops):
            op = ops[at]
            at += 1
            if op.kind != "fill":
                self.do(op)
                continue
            # places of one size in a row: any of them may be taken first
            end = at
            while end < len(ops) and ops[end].kind == "fill" and ops[end].size == op.size:
                end += 1
            row = ops[at - 1 : end]
            places = {self.real(one.address) for one in row}
            for one in row:
                self.fill(one, places)
            at = end

    def bring_back(self) -> None:
        """Whatever is on the host comes back, wherever there is room. The fillers are gone.

        Raises
        ------
        Stranded
            If there is none, even past the caching allocator: somebody else took it meanwhile.
        """
        for key in sorted(self.parked, key=lambda k: -self.storages[k].nbytes):
            storage, (copy, stream) = self.storages[key], self.parked[key]
            try:
                self.allocator.copy_in(storage, copy, stream)
            except RuntimeError:
                self.allocator.empty_cache()
                try:
                    with self.allocator.uncached():
                        self.allocator.copy_in(storage, copy, stream)
                except Exception:  # noqa: BLE001 - told below, with all that stayed
                    continue
            del self.parked[key]
        if self.parked:
            raise Stranded([(self.storages[k], copy) for k, (copy, _) in self.parked.items()])


def replay(plan: Plan, allocator: Allocator, device: int, storages: Mapping[int, Storage]) -> None:
    """Do the operations of `plan`; an interrupt is delivered afterwards.

    Raises
    ------
    Diverged
        At the first address that is not the planned one, or where memory is lacking. All data is in place.
    """
    with interrupts_held():
        run = _Replay(allocator, device, storages)
        try:
            run.run(plan.ops)
        except (RuntimeError, MemoryError, OSError) as error:
            raise Diverged(str(error).split("\n", 1)[0]) from None
        finally:
            run.fillers.clear()
            run.bring_back()
            allocator.healthy(device)  # other streams may use what was moved: wait for the copies

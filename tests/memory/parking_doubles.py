"""A card made of the CPU: storages on it count against a cap, and an op that passes the cap runs out of memory."""

from __future__ import annotations

import gc
import re
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cuda_magic.memory.torch.parking.arena import Arena
from cuda_magic.memory.torch.parking.lane import PlainLane
from cuda_magic.memory.torch.parking.operands import storages
from cuda_magic.memory.torch.parking.pager import Pager
from cuda_magic.memory.torch.parking.parked import Store
from cuda_magic.memory.torch.parking.retry import Retry
from cuda_magic.memory.torch.parking.session import Session

torch.set_num_threads(1)  # small ops: waiting for other threads would take longer than the work


class Card:
    """`cap` bytes for storages of at least `least` bytes. Contents that wait in the arena do not count."""

    def __init__(self, cap: int, least: int = 1024) -> None:
        self.cap, self.least = cap, least
        self._live: dict[int, int] = {}
        self.errors = self.peak = 0
        self.broken = ""

    def take_over(self, *values: Any) -> Card:
        for storage in storages(torch, values):
            self.note(storage)
        return self

    def note(self, storage: Any) -> None:
        if storage._cdata not in self._live and storage.nbytes() >= self.least:
            self._live[storage._cdata] = storage._weak_ref()

    def used(self) -> int:
        total = 0
        for key, weak in list(self._live.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(weak)
            if storage is None:
                torch.UntypedStorage._free_weak_ref(weak)
                del self._live[key]
            else:
                total += storage.nbytes()
        self.peak = max(self.peak, total)
        return total

    def ask(self, nbytes: int) -> None:
        if nbytes >= self.least and self.used() + nbytes > self.cap:
            self.out(nbytes)

    def out(self, nbytes: int) -> None:
        self.errors += 1
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {nbytes / 2**20:.2f} MiB. GPU 0 has a total capacity of "
            f"{self.cap / 2**20:.2f} MiB of which {(self.cap - self.used()) / 2**20:.2f} MiB is free."
        )

    # what a pager asks (see pager.Figures)
    def limit(self) -> int:
        return self.cap

    def movable(self, storage: Any) -> bool:
        return storage.resizable()

    def stream(self) -> int:
        return 0

    def paged(self, session: Session, **options: Any) -> Pager:
        """Page in `session`, and repeat at the call."""
        options = {"least": self.least, "spare": 0} | options
        pager = Pager(session.store, ("cpu", None), self, **options)
        rescue = Rescue(self, pager)
        session.watcher.pager, session.watcher.retry = pager, Retry(torch, rescue)
        pager.rescue = rescue
        return pager

    def session(self, limit: int | None = 1 << 30) -> Session:
        """A session that parks what lies on this card."""
        arena = Arena(torch, pin=False, limit=limit)
        store = Store(torch, lambda: arena, lambda device: PlainLane(torch, self.ask))
        return Session(torch, store)


class Rescue:
    """Makes room by the pager, else by the collector."""

    def __init__(self, card: Card, pager: Pager | None = None) -> None:
        self.card, self.pager = card, pager
        self.problems: list[Any] = []
        self.collected = 0

    def judge(self, error: BaseException) -> Any:
        return error.args[0] if isinstance(error, torch.OutOfMemoryError) else None

    def make_room(self, problem: Any) -> bool:
        self.problems.append(problem)
        asked = re.search(r"allocate ([\d.]+) MiB", problem.error)
        need = int(float(asked[1]) * 2**20) + 2**14 if asked else self.card.cap
        if self.pager is not None and problem.tries < 10 and self.pager.leave(need):
            return True
        before = self.card.used()
        gc.collect()
        self.collected += self.card.used() < before
        return self.card.used() < before


class CardMode(TorchDispatchMode):
    """Ops allocate from `card`: one whose new storages do not fit raises after it has run, as if it had not."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        card = self.card
        for storage in storages(torch, (args, kwargs or {})):
            if storage.nbytes() == 0 and storage._cdata in card._live and func is not torch.ops.aten.detach.default:
                card.broken = str(func)  # a card would have lost its context
        out = func(*args, **(kwargs or {}))
        known = {s._cdata for s in storages(torch, (args, kwargs or {}))}
        new = {s._cdata: s for s in storages(torch, out) if s._cdata not in known}
        need = sum(s.nbytes() for s in new.values() if s.nbytes() >= card.least and s._cdata not in card._live)
        if need and card.used() + need > card.cap:
            del out, new
            card.out(need)
        for storage in new.values():
            card.note(storage)
        card.used()
        return out

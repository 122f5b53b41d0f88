"""A card made of the CPU: storages on it count against a cap, and an op that passes the cap runs out of memory."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cuda_magic.memory.torch.parking.arena import Arena
from cuda_magic.memory.torch.parking.lane import PlainLane
from cuda_magic.memory.torch.parking.operands import storages
from cuda_magic.memory.torch.parking.parked import Store
from cuda_magic.memory.torch.parking.session import Session


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

    def session(self, limit: int | None = 1 << 30) -> Session:
        """A session that parks what lies on this card."""
        arena = Arena(torch, pin=False, limit=limit)
        store = Store(torch, lambda: arena, lambda device: PlainLane(torch, self.ask))
        return Session(torch, store)


class CardMode(TorchDispatchMode):
    """Ops allocate from `card`: one whose new storages do not fit raises after it has run, as if it had not."""

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

"""A card made of the CPU: storages on it count against a cap, and an op that passes the cap runs out of memory."""

from __future__ import annotations

import gc
from typing import Any

import torch

from cuda_magic.memory.torch.offload.host_pool import HostPool
from cuda_magic.memory.torch.offload.operands import storages
from cuda_magic.memory.torch.offload.session import Session
from cuda_magic.memory.torch.offload.storage_copies import PlainLane
from cuda_magic.memory.torch.offload.store import Store
from cuda_magic.testing.torch_card import Count, Counting

torch.set_num_threads(1)  # small ops: waiting for other threads would take longer than the work


class Card(Count):
    """`cap` bytes for storages of at least `least` bytes; an op on an emptied storage breaks it."""

    def __init__(self, cap: int, least: int = 1024) -> None:
        super().__init__(cap, least)
        self.broken = ""

    def take_over(self, *values: Any) -> Card:
        for storage in storages(torch, values):
            self.note(storage)
        return self

    def session(self, limit: int | None = 1 << 30) -> Session:
        """A session that parks what lies on this card."""
        arena = HostPool(torch, pin=False, limit=limit)
        store = Store(torch, lambda: arena, lambda device: PlainLane(torch, self.ask))
        return Session(torch, store)


class Rescue:
    """Makes room by the collector."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.problems: list[Any] = []
        self.collected = 0

    def judge(self, error: BaseException) -> Any:
        return error.args[0] if isinstance(error, torch.OutOfMemoryError) else None

    def make_room(self, problem: Any) -> bool:
        self.problems.append(problem)
        before = self.card.used()
        gc.collect()
        self.collected += self.card.used() < before
        return self.card.used() < before


class CardMode(Counting):
    """Ops allocate from `card`: one whose new storages do not fit raises after it has run, as if it had not."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        card = self.count
        for storage in storages(torch, (args, kwargs or {})):
            if storage.nbytes() == 0 and card.knows(storage) and func is not torch.ops.aten.detach.default:
                card.broken = str(func)  # a card would have lost its context
        return super().__torch_dispatch__(func, types, args, kwargs)

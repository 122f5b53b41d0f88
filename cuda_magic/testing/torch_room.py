"""Room on the practice card for torch's own tensors: the hooks on what autograd saved are those of a real card."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..memory.torch.room import quietly
from ..memory.torch.room.saved import Saved

if TYPE_CHECKING:
    from .torch_card import Count

__all__ = ["PracticeTorchRoom"]


class PracticeTorchRoom:
    """What `cuda_magic.memory.torch.room.TorchRoom` is for a card.

    Parameters
    ----------
    torch
        The imported torch.
    count
        The practice card.
    hooks
        Makes the hooks that let what autograd saves wait elsewhere.
    """

    def __init__(self, torch: Any, count: Count, hooks: Callable[[int], Any]) -> None:
        self._torch, self._count, self._hooks = torch, count, hooks
        self._saved: Saved | None = None
        self._cap: int | None = None
        self._out = self._whole = 0

    def listen(self, handler: Callable[[int, int, int], int] | None) -> None:
        self._count.handler = handler

    def begin(
        self, reached: Callable[[], Iterable[Any]], idle: Callable[[], Iterable[Any]], limit: int | None = None
    ) -> None:
        self._out = 0
        if limit is not None:
            self._cap, self._count.cap = self._count.cap, min(limit, self._count.cap)

    def resume(self) -> None:
        """Nothing starts late here."""

    def end(self) -> int:
        self.listen(None)
        if self._saved is not None:
            self._saved.close()
            self._saved = None
        if self._cap is not None:
            self._count.cap, self._cap = self._cap, None
        left = 0
        for storage in self._count.live():
            if storage._cdata in self._count.away:
                if self.free(0) >= storage.nbytes():
                    self._count.away.discard(storage._cdata)
                else:
                    left += int(storage.nbytes())
        return left

    def ready(self) -> None:
        """Nothing is shared here."""

    def limit(self, nbytes: int | None) -> None:
        self._whole = self._whole or self._count.cap
        self._count.cap = self._whole if nbytes is None else min(nbytes, self._whole)

    def left(self) -> int:
        return sum(int(s.nbytes()) for s in self._count.live() if s._cdata in self._count.away)

    def close(self) -> None:
        self.listen(None)

    def out_bytes(self) -> int:
        return self._out + (self._saved.moved.get("out", 0) if self._saved is not None else 0)

    def refused(self, device: int) -> str:
        return ""

    def free(self, device: int) -> int:
        return max(0, self._count.cap - self._count.used())

    def in_use(self, device: int) -> int:
        return self._count.used()

    def caches(self, device: int) -> str:
        return ""

    def holes(self, device: int, nbytes: int) -> int:
        return 0

    def saved(self, device: int, nbytes: int) -> int:
        if self._saved is None:
            self._saved = Saved(self._torch, self._torch.device("cpu"), self._count.cap, self._hooks)
        with quietly(self._torch):
            return self._saved.make_room(nbytes)

    def pages(self, device: int, nbytes: int) -> int:
        here = [s for s in self._count.live() if s._cdata not in self._count.away]
        if sum(s.nbytes() for s in here) < nbytes:
            return 0
        moved = 0
        for storage in here:  # the oldest first
            if moved >= nbytes:
                break
            self._count.away.add(storage._cdata)
            moved += int(storage.nbytes())
        self._out += moved
        return moved

    def moving_refused(self, device: int) -> str:
        return ""

    def host_room(self, nbytes: int) -> str:
        self._out += nbytes
        return ""

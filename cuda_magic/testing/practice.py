"""A practice GPU for notebooks and tests."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UserError
from ..render.units import bytes_text
from .card import Card, OtherProcess
from .machine import PracticeMachine
from .sizes import size
from .tensor import PracticeTensor

__all__ = ["PracticeGpu"]


class PracticeGpu:
    """Practice cards with a model of torch's caching allocator: the same requests get the same answers, no hardware.

    Parameters
    ----------
    devices : sequence of str or int
        The size of each card: ``["24 GiB", "8 GiB"]``.
    host : str
        The name of a host to play, so that engines on one machine show as several hosts.
    """

    practice = True

    def __init__(self, devices: Sequence[str | int] = ("24 GiB",), host: str = "") -> None:
        sizes = [size(one) for one in devices]
        names = [f"Practice GPU {bytes_text(n).replace('.00', '')}" for n in sizes]
        made = enumerate(zip(sizes, names, strict=True))
        self.machine = PracticeMachine([Card(i, n, name, host=host) for i, (n, name) in made])
        self.allocator = self.machine.allocator()

    def __repr__(self) -> str:
        cards = ", ".join(card.name for card in self.machine.cards)
        return f"PRACTICE: {cards} (a model, no real GPU is used)"

    def _card(self, device: int) -> Card:
        if not 0 <= device < len(self.machine.cards):
            raise UserError(f"there is no device {device}; this practice machine has {len(self.machine.cards)}")
        return self.machine.cards[device]

    def empty(self, nbytes: str | int, device: int = 0) -> PracticeTensor:
        """A tensor of bytes, not written.

        Raises
        ------
        OutOfMemoryError, AcceleratorError
            As torch does, without frames of the model: those of torch are in C++ and do not show either.
        """
        __tracebackhide__ = True
        self._card(device)
        try:
            return self.allocator.tensor(size(nbytes), device)
        except RuntimeError as error:
            raise error.with_traceback(None) from None

    def full(self, nbytes: str | int, value: int, device: int = 0) -> PracticeTensor:
        """A tensor of bytes, each `value` (0 to 255)."""
        __tracebackhide__ = True
        return self.empty(nbytes, device).fill_(value)

    def fill(self, tensor: PracticeTensor, value: int) -> PracticeTensor:
        """Write `value` into every byte of `tensor`."""
        return tensor.fill_(value)

    def sum(self, tensor: PracticeTensor) -> int:
        """The sum of the bytes of `tensor`: proves that its data is intact."""
        return tensor.sum()

    def rand(self) -> float:
        """A random number from the device's generator."""
        return self.allocator.generator.random()

    def empty_cache(self) -> None:
        """Give cached memory back to the driver, as ``torch.cuda.empty_cache()`` does."""
        self.allocator.empty_cache()

    def limit(self, nbytes: str | int | None, device: int = 0) -> None:
        """Let this process reserve at most `nbytes` on `device`; None lifts the limit."""
        capacity = self._card(device).capacity
        fraction = 1.0 if nbytes is None else min(1.0, size(nbytes) / capacity)
        self.allocator.caching[device].limit = int(fraction * capacity) if fraction < 1 else None

    def other_process(
        self, nbytes: str | int, pid: int = 4242, seconds: float | None = None, device: int = 0
    ) -> OtherProcess:
        """Another process that holds `nbytes` of `device` until its ``stop()``, or for `seconds`."""
        import time

        ends = None if seconds is None else time.monotonic() + seconds
        other = OtherProcess(pid, size(nbytes), ends)
        card = self._card(device)
        if other.nbytes > card.free:
            raise UserError(f"another process cannot hold {bytes_text(other.nbytes)}: {bytes_text(card.free)} is free")
        card.others.append(other)
        return other

    def lose_context(self, device: int = 0) -> None:
        """As after a device-side assert: every later use of `device` by this process raises."""
        self._card(device).lost = True

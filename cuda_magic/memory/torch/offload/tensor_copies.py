"""Copies between a card and the host, or another card, on two side streams, ordered by events: the CPU never waits.

Why it is safe to use memory again:

- out: the side stream waits for the event of the moment of saving; the block on the card is let go only after the
  compute stream was told to wait for the copy, so whoever gets the block next comes after it.
- back: the block is taken on the compute stream; the side stream waits for that stream's event of this moment, since
  earlier kernels may still use the block, and for the copy out. Who reads it waits for the copy's event first.
- a buffer on the host is used again only after its last copy (`Buffer.events`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from .storage_copies import On, sides

__all__ = ["Copies"]

_NOTHING: Any = nullcontext()


class Copies:
    """The two side streams of one card (the default one, where it is too full for them), and what is free there.

    Parameters
    ----------
    torch
        The imported torch, CUDA started.
    device
        Its cuda index.
    limit
        Bytes that this process may have on the card.
    """

    def __init__(self, torch: Any, device: int, limit: int) -> None:
        self._torch, self._index, self.limit = torch, device, limit
        self.device = torch.device("cuda", device)
        self._out, self._back = sides(torch, device) or (torch.cuda.default_stream(device),) * 2

    def stream(self, known: Any = None) -> Any:
        """The stream on which the caller computes: `known` itself, if it is that one."""
        if known is not None and self._torch._C._cuda_getCurrentRawStream(self._index) == known.cuda_stream:
            return known
        return self._torch.cuda.current_stream(self.device)

    def mark(self, stream: Any) -> Any:
        """The event of this moment on `stream`."""
        return stream.record_event()

    def wait(self, stream: Any, events: Iterable[Any]) -> None:
        """Nothing on `stream` from now on runs before these events."""
        for event in events:
            if event is not None:
                stream.wait_event(event)

    def out(self, source: Any, buffer: Any, after: Any) -> Any:
        """Copy into `buffer` once `after` has come; the event of its end."""
        self.wait(self._out, (after, *buffer.events))
        with self._at(buffer.home), On(self._torch, self._out):
            buffer.data.copy_(source, non_blocking=True)
        return self._out.record_event()

    def back(self, buffer: Any, target: Any, stream: Any, after: Any) -> Any:
        """Copy into `target`, just allocated on `stream`, once `after` has come; the event of its end."""
        self.wait(self._back, (stream.record_event(), after))
        try:
            with self._at(buffer.home), On(self._torch, self._back):
                target.copy_(buffer.data, non_blocking=True)
            return self._back.record_event()
        except BaseException:
            stream.wait_stream(self._back)  # the copy may be under way, and `target` is about to be let go
            raise

    def _at(self, home: Any) -> Any:
        return _NOTHING if home is None else self._torch.cuda.stream(home)

    def join(self, stream: Any) -> None:
        """Nothing on `stream` from now on runs before the copies made so far."""
        stream.wait_stream(self._out)
        stream.wait_stream(self._back)

    def free(self) -> int:
        """Bytes that this process could still take, the allocator's cache included."""
        # torch.cuda.memory_allocated makes a sorted, flat copy of all counters: several times as slow
        found = self._torch._C._cuda_memoryStats(self._index)
        return self.limit - int(found["allocated_bytes"]["all"]["current"])

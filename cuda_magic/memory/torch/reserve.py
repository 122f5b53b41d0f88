"""Memory set aside that serves only when the heap is full: torch's pool ``MemPool(use_on_oom=True)``.

Seen on an H200 (torch 2.11): several requests are served out of one block, inside backward too, with no error and no
retry; neither requests of up to 1 MiB nor those on another stream than the one that set it aside are.
"""

from __future__ import annotations

import inspect
from typing import Any

from ...errors import Refused
from ...render.units import bytes_text
from . import safety, scan

__all__ = ["Reserve"]

SMALLEST = 20 << 20
"""Bytes: what is smaller would lie in a segment that serves other requests too (c10/cuda/CUDACachingAllocator.cpp)."""


class Reserve:
    """`nbytes` of one device set aside.

    Parameters
    ----------
    torch
        A torch that has started CUDA.
    nbytes
        How much.
    device
        Of which device; the current one of the thread if None.

    Raises
    ------
    Refused
        If this torch has no such pool, or the device has not so much.
    """

    def __init__(self, torch: Any, nbytes: int, device: int | None = None) -> None:
        self._torch = torch
        self._pool: Any = None
        self.nbytes = nbytes
        self.device: int = torch.cuda.current_device() if device is None else device
        refusal = unsupported(torch)
        if refusal:
            raise Refused(refusal)
        if nbytes < SMALLEST:
            raise Refused(f"a reserve of less than {bytes_text(SMALLEST)} would serve nothing")
        with torch.cuda.device(self.device):
            free = self._free()
            if free < nbytes:
                torch.cuda.empty_cache()
                free = self._free()
            if free < nbytes:
                raise Refused(f"GPU {self.device} has {bytes_text(free)} free, {bytes_text(nbytes)} was asked for")
            pool = torch.cuda.MemPool(use_on_oom=True)
            try:
                with torch.cuda.use_mem_pool(pool):
                    torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{self.device}")
            except torch.cuda.OutOfMemoryError:
                raise Refused(f"GPU {self.device} has no {bytes_text(nbytes)} in one piece") from None
            self._pool = pool

    def _free(self) -> int:
        """What this process may still take from the driver."""
        free, total = self._torch.cuda.mem_get_info(self.device)
        fraction = getattr(self._torch.cuda, "get_per_process_memory_fraction", None)
        if fraction is None:
            return int(free)
        allowed = int(fraction(self.device) * total) - int(self._torch.cuda.memory_reserved(self.device))
        return min(int(free), allowed)

    @property
    def active(self) -> bool:
        """Whether it is still set aside."""
        return self._pool is not None

    def served(self) -> int:
        """Bytes of tensors that lie in it now. What it served and was given back in the meantime leaves no trace."""
        return sum(s["active_size"] for s in self._pool.snapshot()) if self._pool is not None else 0

    def release(self, move: bool = True) -> int:
        """Give it back; bytes that stay in it because tensors live there.

        With `move` they are first moved out, as far as there is room and no other code may remember their address.
        """
        if self._pool is None:
            return 0
        torch = self._torch
        if move and self.served() and not safety.refusals(torch, self.device):
            self._move_out()
        left = self.served()
        before = torch.cuda.memory_reserved(self.device)
        self._pool = None  # the pool ends here; a block that a tensor holds lives on until the tensor dies
        if torch.cuda.memory_reserved(self.device) > before - self.nbytes + left:
            torch.cuda.empty_cache()
        return left

    def _ranges(self) -> list[tuple[int, int]]:
        return [(s["address"], s["address"] + s["total_size"]) for s in self._pool.snapshot()]

    def _move_out(self) -> None:
        inside = self._ranges()
        cuda = self._torch.cuda
        for storage in scan.storages(self._torch, self.device):
            if storage.reason or not any(low <= storage.address < high for low, high in inside):
                continue
            if max(0, self._free()) + self._cached() < storage.nbytes:
                continue
            try:
                # resize_ to its own size is a move: a new block, a copy, the old block given back
                with cuda.device(self.device), cuda.stream(cuda.default_stream(self.device)):
                    storage.handle.resize_(storage.handle.nbytes())
            except cuda.OutOfMemoryError:
                return
        cuda.synchronize(self.device)

    def _cached(self) -> int:
        reserved = self._torch.cuda.memory_reserved(self.device)
        return int(reserved - self._torch.cuda.memory_allocated(self.device))


def unsupported(torch: Any) -> str:
    """Why this torch cannot set memory aside, or an empty string."""
    pool = getattr(torch.cuda, "MemPool", None)
    if pool is None or "use_on_oom" not in inspect.signature(pool.__init__).parameters:
        return f"torch {torch.__version__} has no pool that serves when memory runs out (2.8 has)"
    return ""

"""One large piece of host memory that copies to and from a card run at full speed with.

Pinned memory from torch is slow to make (2 to 3 GiB/s on an H200's host); huge pages touched by many threads and then
registered with CUDA are 6 to 8 times as fast. Where registering fails, torch's own pinned memory, then ordinary memory.
"""

from __future__ import annotations

import mmap
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["HUGE", "Slab"]

HUGE = 2 << 20
"""Bytes of a huge page (x86-64, and aarch64 with 4 KiB pages)."""
_PAGE = 4096
_CHUNK = 16 << 20
"""Bytes that one thread touches at a time: small enough that torch does not start threads of its own for it, and that
a small slab has work for all of ours (1 GiB on an H200's host: 24 ms; 31 ms with 64 MiB)."""
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every context of the process."""
_MOST_THREADS = 16
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
"""A shared mapping, the default, gets no huge pages."""


class Slab:
    """`size` bytes of host memory as `data`, a tensor of bytes. `kind` is registered, pinned or pageable.

    Lives as long as somebody refers to it; then it is unregistered and goes back to the host.

    Raises
    ------
    OSError, MemoryError, RuntimeError
        If the host has no such memory.
    """

    def __init__(self, torch: Any, size: int, pin: bool) -> None:
        self.size, self.kind = size, "pageable"
        self.makeshift = False
        """Could not be pinned, for lack of memory on a card perhaps: not kept when nothing uses it."""
        self.holes: list[Hole] = [Hole(0, size, ())]
        self.data = _mapped(torch, size)
        if not pin:
            return
        # armed before the call, so that an interrupt behind it leaves nothing registered
        end = weakref.finalize(self, _unregister, torch, self.data.data_ptr(), os.getpid())
        end.atexit = False
        if int(torch.cuda.cudart().cudaHostRegister(self.data.data_ptr(), size, _PORTABLE)) == 0:
            self.kind = "registered"
            return
        end.detach()
        _forget_error()
        try:
            self.data = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            self.kind = "pinned"
        except RuntimeError:
            _forget_error()  # copies are slower, and right

    @property
    def unused(self) -> bool:
        return sum(hole.size for hole in self.holes) == self.size


class Hole:
    """A free piece of a slab. `events`: copies that may still be reading or writing it."""

    __slots__ = ("events", "offset", "size")

    def __init__(self, offset: int, size: int, events: tuple[Any, ...]) -> None:
        self.offset, self.size, self.events = offset, size, events


def _mapped(torch: Any, size: int) -> Any:
    """A tensor of `size` bytes at a multiple of a huge page, every page of it touched."""
    mapped = mmap.mmap(-1, size + HUGE, **_PRIVATE)
    for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):  # a forked child must not make the card's pages copies
        try:
            mapped.madvise(getattr(mmap, advice))
        except (AttributeError, OSError):
            continue
    whole = torch.frombuffer(mapped, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE
    data = whole[start : start + size]

    def touch(at: int) -> None:
        data[at : at + _CHUNK : _PAGE].fill_(0)

    with ThreadPoolExecutor(min(_MOST_THREADS, _cpus())) as threads:
        list(threads.map(touch, range(0, size, _CHUNK)))
    return data


def _cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def _unregister(torch: Any, address: int, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child: CUDA is not its own
    try:
        torch.cuda.synchronize()  # a copy may still be under way
        torch.cuda.cudart().cudaHostUnregister(address)
    except Exception:  # noqa: BLE001 - a lost context: the driver forgets the registration with it
        return


def _forget_error() -> None:
    """Clear the runtime's last error, which the next kernel launch of the user's would otherwise raise."""
    import ctypes
    from pathlib import Path

    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
        path = next((line.split(None, 5)[5] for line in lines if "libcudart" in line), None)
        if path is not None:
            ctypes.CDLL(path).cudaGetLastError()
    except (OSError, AttributeError, IndexError):
        return

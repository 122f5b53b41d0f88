"""The native shim (shim.c), by ctypes. Every call holds the GIL: nothing of Python runs beside it."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["CARD", "HOST", "NOWHERE", "NO_ROOM", "TRY_AGAIN", "USE_HOST", "Chunk", "Counts", "Shim", "shim"]

NOWHERE, CARD, HOST = 0, 1, 2
"""Where the memory behind a chunk is."""
NO_ROOM, TRY_AGAIN, USE_HOST = 0, 1, 2
"""What the handler answers."""

_PLAIN, _PINNED = 0, 4
_HANDLER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_int, ctypes.POINTER(ctypes.c_int))


class Chunk(NamedTuple):
    """A stretch of a segment whose memory can be exchanged. `where` as above; sizes in bytes."""

    address: int
    size: int
    device: int
    where: int


class Counts(NamedTuple):
    """Of one device, in bytes, and of the process: calls, how often the handler was asked, seconds in it."""

    card: int
    host: int
    most: int
    limit: int
    calls: int
    asked: int
    made_on_host: int
    nanoseconds: int
    kept: int
    """Host memory that waits to be used again."""


class Shim:
    """The loaded library. One a process."""

    def __init__(self, path: str) -> None:
        lib = self._lib = ctypes.PyDLL(path)
        lib.cm_exchange.restype = lib.cm_trim.restype = lib.cm_free_bytes.restype = ctypes.c_int64
        lib.cm_exchange.argtypes = [
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.POINTER(ctypes.c_int),
        ]
        lib.cm_trim.argtypes = [ctypes.c_int64]
        lib.cm_set_limit.argtypes = [ctypes.c_int, ctypes.c_int64]
        lib.cm_set_chunk_size.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        lib.cm_known.argtypes = [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int]
        lib.cm_set_handler.argtypes = [ctypes.c_void_p]
        self._handler: object = None

    @property
    def malloc(self) -> int:
        """The address that stands in for cudaMalloc."""
        return _address(self._lib.cm_malloc)

    @property
    def free(self) -> int:
        """The address that stands in for cudaFree."""
        return _address(self._lib.cm_free)

    @property
    def create(self) -> int:
        """The address that stands in for cuMemCreate in torch's own table of driver functions."""
        return _address(self._lib.cm_create)

    @property
    def release(self) -> int:
        """The address that stands in for cuMemRelease there."""
        return _address(self._lib.cm_release)

    def open(self, cudart: str) -> int:
        """Find CUDA's functions: 0 all, 1 the runtime's only, 2 none."""
        return int(self._lib.cm_open(cudart.encode()))

    def find_host(self, device: int) -> bool:
        """Whether chunks can lie on the host here; tried with 2 MiB, once CUDA runs."""
        return int(self._lib.cm_find_host(device)) >= 0

    def set_handler(self, ask: Callable[[int, int, int], int] | None) -> None:
        """`ask(device, nbytes, tries)` gives an answer; an exception out of it counts as no room."""
        if ask is None:
            self._lib.cm_set_handler(None)
            return  # the old one is kept: a thread may be inside it

        def handler(device: int, nbytes: int, tries: int, answer: ctypes._Pointer[ctypes.c_int]) -> int:
            answer[0] = NO_ROOM  # it has begun: without that the shim asks once more
            answer[0] = ask(device, nbytes, tries)
            return 0

        made = _HANDLER(handler)
        self._lib.cm_set_handler(ctypes.cast(made, ctypes.c_void_p))
        self._handler = made

    def set_chunks(self, on: bool) -> None:
        """Whether large segments are made of chunks from now on."""
        self._lib.cm_set_chunks(int(on))

    def set_expandable_on_host(self, on: bool) -> None:
        """Whether an expandable segment gets memory of the host where the card has none."""
        self._lib.cm_set_expandable_on_host(int(on))

    def set_limit(self, device: int, nbytes: int | None) -> None:
        """Bytes that this process may have on the card; None: no limit."""
        self._lib.cm_set_limit(device, nbytes or 0)

    def known(self, address: int, size: int, device: int) -> None:
        """A segment that was there before."""
        self._lib.cm_known(address, size, device)

    def exchange(self, chunks: Sequence[int], where: int, *, copy: bool = True) -> tuple[int, int]:
        """Put chunks (addresses) to another place; (bytes that moved, the driver's error or 0).

        Waits for the device first. The caller has made sure that no other thread starts a kernel meanwhile.
        """
        addresses = (ctypes.c_uint64 * len(chunks))(*chunks)
        error = ctypes.c_int()
        moved = int(self._lib.cm_exchange(addresses, len(chunks), where, int(copy), ctypes.byref(error)))
        return moved, error.value

    def counts(self, device: int) -> Counts:
        found = (ctypes.c_int64 * 9)()
        self._lib.cm_counts(device, found)
        return Counts(*found)

    def reset_peak(self, device: int) -> None:
        self._lib.cm_reset_peak(device)

    def free_bytes(self) -> int:
        """What the driver has free on the current device; -1 where it does not tell."""
        return int(self._lib.cm_free_bytes())

    def chunks(self) -> list[Chunk]:
        """Every chunk of every segment, in order of address."""
        most = 1024
        while True:
            rows = (ctypes.c_int64 * (5 * most))()
            n = int(self._lib.cm_rows(rows, most))
            if n <= most:
                found = (rows[5 * i : 5 * i + 5] for i in range(n))
                return [Chunk(row[0], row[1], row[2], row[3] - 1) for row in found if row[4]]
            most = n + 64

    def owns(self) -> int:
        """How many segments it knows."""
        return int(self._lib.cm_rows((ctypes.c_int64 * 5)(), 1))

    def trim(self, most: int = 0) -> int:
        """Give back host memory that is kept beyond `most` bytes; how many bytes."""
        return int(self._lib.cm_trim(most))


def _address(function: object) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)  # type: ignore[arg-type]


@cache
def shim() -> Shim | None:
    """The shim of this process; None where it was not built for this machine."""
    path = Path(__file__).with_name(f"_shim.{platform.machine()}.so")
    try:
        return Shim(str(path)) if path.exists() else None
    except OSError:  # of another C library
        return None

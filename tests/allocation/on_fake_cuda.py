"""A test whose body runs in a child process, on a shim with a CUDA of our own below it (fake_cuda.c)."""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cuda_magic.allocation import native

HERE = Path(__file__).parent
MIB = 1 << 20
CHUNK = 2 * MIB


def in_child(body: Callable[[Any], None]) -> Callable[[Any], None]:
    """A test that calls `body(card)` in a process of its own; what goes wrong there is the test's failure."""
    module = Path(body.__code__.co_filename).stem

    @functools.wraps(body)
    def test(fake_cuda):
        code = f"import {module}, on_fake_cuda; {module}.{body.__name__}.__wrapped__(on_fake_cuda.Card())"
        env = {**os.environ, "LD_LIBRARY_PATH": str(fake_cuda), "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1]}"}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, textwrap.indent(done.stdout[-1000:] + done.stderr[-3000:], "    ")

    test.__signature__ = inspect.signature(lambda fake_cuda: None)
    return test


class Card:
    """The fake card and the shim over it, with chunks of 2 MiB; `room` bytes fit."""

    def __init__(self, room: int = 16 * MIB) -> None:
        self.lib = ctypes.PyDLL("libcuda.so.1")
        self.cap(room)
        self.shim = native.shim()
        assert self.shim is not None
        assert self.shim.open("libcuda.so.1") == 0
        self.shim._lib.cm_set_chunk_size(CHUNK, 2 * CHUNK)
        self.shim.set_chunks(True)
        assert self.shim.find_host(0)
        self._malloc = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(self.shim.malloc)
        self._free = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self.shim.free)

    def cap(self, nbytes: int) -> None:
        self.set("fake_cap", nbytes, ctypes.c_int64)

    def get(self, name: str, kind: Any = ctypes.c_int64) -> int:
        return kind.in_dll(self.lib, name).value

    def set(self, name: str, value: int, kind: Any = ctypes.c_int) -> None:
        kind.in_dll(self.lib, name).value = value

    def malloc(self, nbytes: int) -> tuple[int, int]:
        """(the runtime's error, the address)."""
        pointer = ctypes.c_void_p()
        error = self._malloc(ctypes.addressof(pointer), nbytes)
        return error, pointer.value or 0

    def new(self, nbytes: int, value: int = 0) -> int:
        """An address; every byte there is `value`."""
        error, address = self.malloc(nbytes)
        assert error == 0, error
        ctypes.memset(address, value, nbytes)
        return address

    def free(self, address: int) -> int:
        return int(self._free(address))

    def bytes(self, address: int, nbytes: int) -> set[int]:
        """The values of the bytes there."""
        found = ctypes.string_at(address, nbytes)
        return {found[0]} if found == found[:1] * nbytes else set(found)

    def starts(self, where: int | None = None) -> list[int]:
        """Addresses of the chunks."""
        return [chunk.address for chunk in self.shim.chunks() if where is None or chunk.where == where]

    def nothing_left(self) -> None:
        """No segment, no byte, no mapping: of the shim's, and of the card's."""
        self.shim.trim(0)
        counts = self.shim.counts(0)
        assert (self.shim.owns(), counts.card, counts.host, counts.kept) == (0, 0, 0, 0)
        names = ("fake_used", "fake_pinned", "fake_reserved", "fake_mapped", "fake_on_host")
        assert {name: self.get(name) for name in names} == dict.fromkeys(names, 0)

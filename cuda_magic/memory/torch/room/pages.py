"""Live tensors whose memory is exchanged: the tensor stays valid at its address, and is read from the host meanwhile.

What leaves first is what is needed last: what the running cell cannot reach, optimizer state outside of its step,
then anything that is no parameter of a module, then anything.
"""

from __future__ import annotations

import gc
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from ....allocation.native import CARD, HOST, Chunk, Shim
from .. import snapshot
from ..gc_objects import kinds_of

__all__ = ["IDLE", "Pages", "ranks"]

IDLE, STATE, DATA, UNKNOWN, PARAMETER, GRAPH = range(6)
"""Ranks of live memory, in the order in which it leaves."""
_MOST_OBJECTS = 300_000
"""Objects that are followed from one root, at most."""
_NOT_FOLLOWED = (ModuleType, type, FunctionType, BuiltinFunctionType, str, bytes, int, float, complex, bool)


class Pages:
    """What lies on the host now, of one process.

    Parameters
    ----------
    torch
        The imported torch.
    shim
        Whose chunks these are.
    """

    def __init__(self, torch: Any, shim: Shim) -> None:
        self._torch, self._shim = torch, shim
        self.reached: Callable[[], Iterable[Any]] = tuple
        """Roots of what the running cell can reach."""
        self.idle: Callable[[], Iterable[Any]] = tuple
        """Roots of what it cannot."""
        self.out_bytes = self.in_bytes = 0
        self.hot = False
        """Whether something left that the running cell may use soon."""
        self._ranks: dict[int, tuple[int, int]] = {}
        self._ranked = self._ranking = 0.0

    def begin(self, reached: Callable[[], Iterable[Any]], idle: Callable[[], Iterable[Any]]) -> None:
        """Another cell runs."""
        self.reached, self.idle = reached, idle
        self._ranks, self._ranking, self.hot = {}, 0.0, False

    def _ranks_now(self, device: int) -> dict[int, tuple[int, int]]:
        """`ranks`, looked up again at most so often that it takes a twentieth of the time."""
        started = time.perf_counter()
        if not self._ranks or started - self._ranked > 20 * self._ranking:
            self._ranks = ranks(self._torch, device, self.reached(), self.idle())
            self._ranked = time.perf_counter()
            self._ranking = self._ranked - started
        return self._ranks

    def away(self, device: int) -> list[Chunk]:
        """The chunks that lie on the host."""
        return [chunk for chunk in self._shim.chunks() if chunk.device == device and chunk.where == HOST]

    def nbytes(self, device: int) -> int:
        """Bytes on the host."""
        return sum(chunk.size for chunk in self.away(device))

    def leave(self, device: int, nbytes: int, due: Callable[[list[Chunk]], list[float]] | None = None) -> int:
        """Send at least `nbytes` of live memory to the host, if there is so much; how much left.

        `due` tells how soon each chunk is used again, where that is known.
        """
        chunks = [chunk for chunk in self._shim.chunks() if chunk.device == device and chunk.where == CARD]
        if not chunks:
            return 0
        worth = self.worth(device, chunks)
        # what is free would be torch's next choice: it is taken by plugs (holes.py), and never left on the host
        chunks = [chunk for chunk, value in zip(chunks, worth, strict=True) if value[0] >= 0]
        worth = [value for value in worth if value[0] >= 0]
        if due is not None:
            soon = due(chunks)
            order = sorted(range(len(chunks)), key=lambda i: (worth[i][0] > IDLE, -soon[i], worth[i]))
        else:
            order = sorted(range(len(chunks)), key=lambda i: (worth[i], chunks[i].address))
        chosen: list[int] = []
        size = 0
        # what is not needed soon leaves in larger pieces: the card waits for each exchange
        more = max(nbytes, sum(chunk.size for chunk in chunks) // 16)
        for i in order:
            if size >= (more if worth[i][0] <= STATE else nbytes):
                break
            chosen.append(chunks[i].address)
            size += chunks[i].size
            self.hot = self.hot or worth[i][0] > STATE
        moved, _ = self._shim.exchange(chosen, HOST)
        self.out_bytes += moved
        return moved

    def worth(self, device: int, chunks: list[Chunk]) -> list[tuple[int, int]]:
        """How late each chunk leaves, as (rank, age): as the live block of it that leaves last; free ones first."""
        torch = self._torch
        rank = self._ranks_now(device)
        starts = [chunk.address for chunk in chunks]
        worth = [(-1, 0)] * len(chunks)
        for segment in snapshot.read(torch)["segments"]:
            if segment["device"] != device:
                continue
            private = tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
            address = segment["address"]
            for block in segment["blocks"]:
                first, end = address, address + block["size"]
                address = end
                if block["state"] == "inactive":
                    continue
                value = (GRAPH, 0) if private else rank.get(first, (UNKNOWN, 0))
                at = max(0, bisect_right(starts, first) - 1)
                while at < len(chunks) and chunks[at].address < end:
                    if chunks[at].address + chunks[at].size > first:
                        worth[at] = max(worth[at], value)
                    at += 1
        return worth

    def come_back(self, device: int, room: int) -> int:
        """Bring back what `room` bytes hold, what is needed first before the rest; bytes that stay on the host."""
        away = self.away(device)
        if away and room > 0:
            worth = self.worth(device, away)
            chosen, size = [], 0
            for i in sorted(range(len(away)), key=lambda i: (worth[i], away[i].address), reverse=True):
                if size + away[i].size <= room:
                    chosen.append(away[i].address)
                    size += away[i].size
            moved, _ = self._shim.exchange(chosen, CARD)
            self.in_bytes += moved
        return self.nbytes(device)


def ranks(torch: Any, device: int, reached: Iterable[Any], idle: Iterable[Any]) -> dict[int, tuple[int, int]]:
    """{address of a storage: (rank, age)} of every tensor on `device` that Python knows; the oldest has age 0."""
    found: dict[int, tuple[int, int]] = {}
    keys: dict[int, int] = {}
    read = torch._C.TensorBase.untyped_storage
    parameter = torch.nn.Parameter
    tensors, optimizers = _oldest_first(torch)
    for age, tensor in enumerate(tensors):
        try:
            if not tensor.is_cuda or tensor.device.index != device:
                continue
            storage = read(tensor)
            address = storage.data_ptr()
        except (RuntimeError, NotImplementedError, ValueError):
            continue
        keys[storage._cdata] = address
        rank = PARAMETER if issubclass(type(tensor), parameter) else DATA
        known = found.get(address)
        if known is None or rank > known[0]:  # as old as its first tensor
            found[address] = (rank, known[1] if known is not None else age)
    for address in _states(torch, optimizers, keys):
        found[address] = (STATE, 0)
    used = _storages(torch, reached)
    for key in _storages(torch, idle) - used:
        if key in keys:
            found[keys[key]] = (IDLE, 0)
    return found


def _oldest_first(torch: Any) -> tuple[list[Any], list[Any]]:
    """Tensors and optimizers that the collector tracks, roughly in the order in which they were made."""
    kinds = set(kinds_of(torch.Tensor))
    base = getattr(sys.modules.get("torch.optim"), "Optimizer", None)
    steppers = set(kinds_of(base)) if base is not None else set()
    both = kinds | steppers
    found = [one for generation in (2, 1, 0) for one in gc.get_objects(generation) if type(one) in both]
    return [one for one in found if type(one) in kinds], [one for one in found if type(one) in steppers]


def _states(torch: Any, optimizers: list[Any], keys: dict[int, int]) -> set[int]:
    """Addresses of optimizers' state, while no optimizer steps."""
    if not optimizers or _stepping():
        return set()
    read = torch._C.TensorBase.untyped_storage
    found = set()
    for one in optimizers:
        for state in list(one.__dict__.get("state", {}).values()):
            for value in list(state.values()) if isinstance(state, dict) else ():
                if issubclass(type(value), torch.Tensor) and value.is_cuda:
                    key = read(value)._cdata
                    if key in keys:
                        found.add(keys[key])
    return found


def _stepping() -> bool:
    for frame in sys._current_frames().values():
        at: Any = frame
        while at is not None:
            if at.f_code.co_name == "step" and "optim" in at.f_code.co_filename:
                return True
            at = at.f_back
    return False


def _storages(torch: Any, roots: Iterable[Any]) -> set[int]:
    """Keys of the storages that these objects lead to."""
    found: set[int] = set()
    read = torch._C.TensorBase.untyped_storage
    seen: set[int] = set()
    level = [root for root in roots if not isinstance(root, _NOT_FOLLOWED)]
    while level and len(seen) < _MOST_OBJECTS:
        for one in level:
            if issubclass(type(one), torch.Tensor):
                try:
                    found.add(read(one)._cdata)
                except (RuntimeError, NotImplementedError, ValueError):
                    continue
        new = gc.get_referents(*level)
        level = []
        for one in new:
            if id(one) not in seen and not isinstance(one, _NOT_FOLLOWED) and not _globals(one):
                seen.add(id(one))
                level.append(one)
    return found


def _globals(one: Any) -> bool:
    """Whether it is a module's namespace, the notebook's own among them: they lead to everything."""
    return type(one) is dict and "__builtins__" in one

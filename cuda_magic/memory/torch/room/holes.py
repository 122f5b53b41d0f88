"""Memory from behind free stretches that lie between live tensors, while the stretches themselves stay.

A free block that shares its segment with live ones cannot go back to the driver. Its whole chunks can: the block is
taken from torch by an allocation of exactly its size that nobody uses (a plug), and the chunks below it are given back.
No tensor moves. When there is room again the chunks get memory and the plug goes.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from ....allocation.native import CARD, HOST, NOWHERE, Chunk, Shim
from .. import snapshot

__all__ = ["Holes"]


_KEPT: list[Any] = []
"""Plugs that nobody can give memory to: torch must never use their addresses."""


class Holes:
    """The plugs of one process.

    Parameters
    ----------
    torch
        The imported torch.
    shim
        Whose chunks these are.
    """

    def __init__(self, torch: Any, shim: Shim) -> None:
        self._torch, self._shim = torch, shim
        self._plugs: list[tuple[Any, int, list[int], int]] = []
        """(storage, device, addresses of its chunks, bytes)"""

    @property
    def nbytes(self) -> int:
        """Bytes that were taken and are not back yet."""
        return sum(nbytes for *_, nbytes in self._plugs)

    def on(self, device: int) -> int:
        """The same of one device."""
        return sum(nbytes for _, where, _, nbytes in self._plugs if where == device)

    def punch(self, device: int, nbytes: int) -> int:
        """Take at least `nbytes` from behind free blocks, if there are so many; how many."""
        chunks = [chunk for chunk in self._shim.chunks() if chunk.device == device and chunk.where == CARD]
        gained = 0
        for size, stream in self._blocks(device, chunks):
            if gained >= nbytes:
                break
            gained += self._plug(device, size, stream, chunks)
        return gained

    def _blocks(self, device: int, chunks: list[Chunk]) -> list[tuple[int, int]]:
        """(size, stream) of each free block of the default pool with a whole chunk below it, largest first."""
        found = []
        for segment in snapshot.read(self._torch)["segments"]:
            if segment["device"] != device or tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0):
                continue
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "inactive" and _inside(address, block["size"], chunks):
                    found.append((int(block["size"]), int(segment["stream"])))
                address += block["size"]
        return sorted(found, reverse=True)

    def _plug(self, device: int, size: int, stream: int, chunks: list[Chunk]) -> int:
        cuda = self._torch.cuda
        try:
            current = cuda.current_stream(device)
            if current.cuda_stream == stream:
                plug = self._torch.UntypedStorage(size, device=f"cuda:{device}")
            else:
                with cuda.stream(cuda.ExternalStream(stream, device=device)):
                    plug = self._torch.UntypedStorage(size, device=f"cuda:{device}")
        except RuntimeError:  # somebody else took it
            return 0
        inside = _inside(plug.data_ptr(), size, chunks)
        moved, _ = self._shim.exchange([chunk.address for chunk in inside], NOWHERE, copy=False)
        if moved:
            self._plugs.append((plug, device, [chunk.address for chunk in inside], moved))
        return moved

    def fill(self, device: int, room: int) -> int:
        """Give plugs their memory back, as far as `room` bytes go; bytes of those that stay."""
        kept = []
        for plug in self._plugs:
            _, where, addresses, nbytes = plug
            if where == device and nbytes <= room:
                moved, error = self._shim.exchange(addresses, CARD, copy=False)
                if not error:
                    room -= moved
                    continue
            kept.append(plug)
        self._plugs = kept
        return self.nbytes

    def release(self, device: int) -> bool:
        """Drop the plugs of segments in which nothing else lives any more, which torch can then give back; whether any.

        A stretch gets memory before it is torch's again: of the card, or else of the host.
        """
        plugs = {plug[0].data_ptr(): plug for plug in self._plugs if plug[1] == device}
        if not plugs:
            return False
        done = []
        for segment in snapshot.read(self._torch)["segments"]:
            address, live = segment["address"], []
            for block in segment["blocks"]:
                if block["state"] != "inactive":
                    live.append(address)
                address += block["size"]
            if live and all(at in plugs for at in live):
                done += [plugs[at] for at in live]
        plugs.clear()
        return self._drop(done)

    def close(self) -> None:
        """Drop every plug that can be given memory; the others stay for as long as the process lives."""
        self._drop(list(self._plugs))
        _KEPT.extend(self._plugs)
        self._plugs = []

    def _drop(self, plugs: list[tuple[Any, int, list[int], int]]) -> bool:
        """Give memory to the stretches of these plugs, then them to torch; whether there was any."""
        dropped = set()
        for plug in plugs:
            for where in (CARD, HOST):
                _, error = self._shim.exchange(plug[2], where, copy=False)
                if not error:
                    dropped.add(id(plug))
                    break
        self._plugs = [plug for plug in self._plugs if id(plug) not in dropped]
        plugs.clear()
        return bool(dropped)


def _inside(address: int, size: int, chunks: list[Chunk]) -> list[Chunk]:
    """The chunks, given in order of address, that lie wholly in a stretch."""
    first = last = bisect_left(chunks, (address,))
    while last < len(chunks) and chunks[last].address + chunks[last].size <= address + size:
        last += 1
    return chunks[first:last]

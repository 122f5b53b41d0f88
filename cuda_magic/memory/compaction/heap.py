"""A model of the large pool, on which a plan is tried out before anything real moves.

The steering trick that makes moves predictable: every hole is held by a filler, so when one hole is opened it is the
only place that the allocator can choose. A move opens its target, moves one block into it, and fills what is left
over and what was vacated, so exactly one hole is ever open.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from .rules import SMALL, block_size

if TYPE_CHECKING:
    from ..allocator import Segment, Storage

__all__ = ["Heap", "Op", "Piece", "Run"]

ARENA_BASE = 1 << 60
ARENA_STEP = 1 << 44
"""New segments have no address yet: the model gives the n-th the place ARENA_BASE + n * ARENA_STEP."""


class Op(NamedTuple):
    """One real operation. kind: fill, drop, move, arena or empty; `key` names the storage of a move."""

    kind: str
    address: int = 0
    size: int = 0
    key: int = 0


@dataclass
class Piece:
    """A block in the model. kind: live (movable), fixed, filler or free. `need` is the size it takes elsewhere."""

    address: int
    size: int
    kind: str
    key: int = 0
    need: int = 0


class Run(NamedTuple):
    """A row of fillers in segment `segment`, pieces first..last-1, `size` bytes."""

    segment: int
    first: int
    last: int
    size: int


_address = attrgetter("address")


class Heap:
    """Segments of one stream's large pool, the driver's free bytes, and the operations done so far."""

    def __init__(self, segments: list[list[Piece]], driver_free: int) -> None:
        self.segments = segments
        self.driver_free = driver_free
        self.ops: list[Op] = []
        self.moved = 0
        self.closed: set[int] = set()
        """Segments that are being emptied: no targets."""
        self._arenas = 0
        self._runs: dict[int, list[Run]] = {}

    @classmethod
    def of(cls, segments: Iterable[Segment], storages: Iterable[Storage], driver_free: int) -> Heap:
        """The model of the allocator's segments as they are, holes filled."""
        movable = {s.address: s for s in storages if not s.reason}
        rows = []
        for segment in segments:
            if segment.pool != "large" or segment.stream != 0 or segment.pool_id != (0, 0) or segment.expandable:
                continue
            row = []
            for block in segment.blocks:
                storage = movable.get(block.address)
                if block.state == "free":
                    row.append(Piece(block.address, block.size, "free"))
                elif block.state == "live" and storage and block_size(storage.nbytes) <= block.size:
                    need = block_size(storage.nbytes)
                    row.append(Piece(block.address, block.size, "live", storage.key, need))
                else:
                    row.append(Piece(block.address, block.size, "fixed"))
            rows.append(row)
        heap = cls(rows, driver_free)
        heap._fill((i, p.address) for i, row in enumerate(rows) for p in row if p.kind == "free")
        return heap

    def copy(self) -> Heap:
        """An independent copy, for trying a plan out."""
        new = Heap([[Piece(p.address, p.size, p.kind, p.key, p.need) for p in s] for s in self.segments], 0)
        new.driver_free, new.moved, new._arenas = self.driver_free, self.moved, self._arenas
        new.ops = list(self.ops)
        return new

    # -- questions
    def runs_of(self, index: int, avoid: tuple[int, int] | None = None) -> list[Run]:
        """Rows of fillers in one segment; none that touches the addresses `avoid`."""
        if avoid is None and index in self._runs:
            return self._runs[index]
        segment = self.segments[index]
        runs = []
        i = 0
        while i < len(segment):
            j, size = i, 0
            while j < len(segment) and segment[j].kind == "filler" and not _touches(segment[j], avoid):
                size += segment[j].size
                j += 1
            if size:
                runs.append(Run(index, i, j, size))
            i = max(j, i + 1)
        if avoid is None:
            self._runs[index] = runs
        return runs

    def runs(self, avoid: tuple[int, int, int] | None = None) -> Iterator[Run]:
        """Rows of fillers everywhere that may be targets; `avoid` is (segment, low, high)."""
        for index, segment in enumerate(self.segments):
            if segment and index not in self.closed:
                yield from self.runs_of(index, avoid[1:] if avoid and avoid[0] == index else None)

    def best_run(self, need: int, avoid: tuple[int, int, int] | None = None) -> Run | None:
        """The smallest row of fillers that holds `need` bytes."""
        return min((r for r in self.runs(avoid) if r.size >= need), key=lambda r: r.size, default=None)

    def largest(self) -> int:
        """Bytes of the largest row of fillers: the largest request that fits."""
        return max((r.size for r in self.runs()), default=0)

    def find(self, index: int, address: int) -> int:
        """Position of the piece at `address` in segment `index`."""
        return bisect.bisect_left(self.segments[index], address, key=_address)

    def live_bytes(self, index: int) -> int:
        return sum(p.need for p in self.segments[index] if p.kind == "live")

    def size(self, index: int) -> int:
        return sum(p.size for p in self.segments[index])

    # -- changes, each with the real operations that it stands for
    def move(self, index: int, piece: Piece, run: Run) -> None:
        """Move a live piece to the start of a row of fillers."""
        target = self.segments[run.segment]
        self._runs.pop(run.segment, None)
        self._runs.pop(index, None)
        address, old, need = target[run.first].address, piece.address, piece.need
        self.ops.extend(Op("drop", p.address) for p in target[run.first : run.last])
        size = need if run.size - need > SMALL else run.size  # the allocator splits only a rest above SMALL
        new = [Piece(address, size, "live", piece.key, need)]
        if run.size > size:
            new.append(Piece(address + size, run.size - size, "free"))
        target[run.first : run.last] = new
        self.ops.append(Op("move", address, need, piece.key))
        piece.kind, piece.key = "free", 0
        self.moved += need
        self._fill([(index, old), (run.segment, address + size)])

    def arena(self, size: int) -> None:
        """A new segment of `size` bytes from the driver's free memory, held by one filler."""
        base = ARENA_BASE + self._arenas * ARENA_STEP
        self._arenas += 1
        self.segments.append([Piece(base, size, "filler")])
        self.driver_free -= size
        self.ops.append(Op("arena", base, size))

    def release(self) -> int:
        """Give segments that only fillers hold back to the driver; gives their bytes."""
        freed = 0
        for index, segment in enumerate(self.segments):
            if segment and all(p.kind == "filler" for p in segment):
                self.ops.extend(Op("drop", p.address) for p in segment)
                freed += sum(p.size for p in segment)
                segment.clear()
                self._runs.pop(index, None)
        if freed:
            self.ops.append(Op("empty"))
            self.driver_free += freed
        return freed

    def _fill(self, places: Iterable[tuple[int, int]]) -> None:
        """Fillers into the free places at (segment, address), merged with free neighbours, largest first."""
        holes = []
        for index, address in set(places):
            segment = self.segments[index]
            self._runs.pop(index, None)
            i = bisect.bisect_right(segment, address, key=_address) - 1
            if i < 0 or segment[i].kind != "free":
                continue
            while i and segment[i - 1].kind == "free":
                i -= 1
            while i + 1 < len(segment) and segment[i + 1].kind == "free":
                segment[i].size += segment[i + 1].size
                del segment[i + 1]
            segment[i].kind = "filler"
            holes.append((segment[i].size, segment[i].address))
        # largest first: a filler can then only go into a hole of its own size
        self.ops.extend(Op("fill", address, size) for size, address in sorted(holes, reverse=True))


def _touches(piece: Piece, span: tuple[int, int] | None) -> bool:
    return span is not None and piece.address < span[1] and piece.address + piece.size > span[0]

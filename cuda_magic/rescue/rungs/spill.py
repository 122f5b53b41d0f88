"""Tensors that the statement cannot reach wait elsewhere while it runs, and come back behind it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import Refused
from ...memory.compaction import block_size
from ...render.units import bytes_text
from ..situation import Situation
from . import Did

if TYPE_CHECKING:
    from ...memory.allocator import Allocator, Storage

__all__ = ["RUNG", "choose"]

SMALLEST = 1 << 20
"""Bytes: smaller storages lie in the small pool, whose segments serve requests of up to 1 MiB alone."""
HANDLE = 256 << 20
"""Bytes that are made free for a library that does not say what it needs for its handle and workspace."""
PLAN = "spill plan"
BEFORE = "spilled before"


def choose(sizes: Sequence[int], missing: int) -> list[int]:
    """Indices of what is to leave: the smallest one that is enough by itself, else the largest and so on.

    `sizes` in bytes, largest first. All of them where they are not enough.
    """
    chosen: list[int] = []
    for i, size in enumerate(sizes):
        if missing <= 0:
            break
        if size >= missing:
            # sizes go down: the last one that is still enough by itself
            return [*chosen, bisect_right(sizes, -missing, lo=i, key=lambda n: -n) - 1]
        chosen.append(i)
        missing -= size
    return chosen


class _Watched:
    """The ops watched, and how often the way back ran out of memory: errors that nobody but us has made."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator, self._watched, self.errors = allocator, allocator.watched(), 0

    def __enter__(self) -> None:
        self._watched.__enter__()

    def __exit__(self, *error: Any) -> None:
        before = self._ooms()
        try:
            # what the statement has used and given back is whole again, so that what comes back cuts up no segment
            self._allocator.empty_cache()
        except RuntimeError:  # a lost context: the user's error says so
            pass
        try:
            self._watched.__exit__(*error)
        finally:
            self.errors = self._ooms() - before

    def _ooms(self) -> int:
        return sum(self._allocator.ooms(device) for device in self._allocator.devices())


class _Spill:
    id = "spill"
    again = True
    changes = False

    def skip(self, s: Situation) -> str:
        if s.options.no_move:
            return "--no-move was given"
        room = s.room()
        if s.allocator is None or s.device is None or room is None:
            return "the heap cannot be read"
        if s.request is None and s.fault.kind.id != "library-handle":
            return "the size of the request is not known"
        if s.node is None and not s.roots:
            return "what the statement uses is not known"
        read, device = s.allocator.moving_refused, s.device
        refused = read(device, doing="park")
        return refused or self._plan(s)

    def _plan(self, s: Situation) -> str:
        """Look for what is idle; why nothing can leave, or an empty string with the plan in the memory."""
        from ..idle import reach

        assert s.allocator is not None and s.device is not None
        found = reach(s.node, s.namespace, s.roots, s.shell, s.allocator)
        if found.doubt:
            return f"everything may be in use: {found.doubt}"
        pairs, kept = s.allocator.unused(s.device, found.idle)
        pools = [g for g in s.allocator.segments(s.device) if g.pool_id != (0, 0)]
        pairs = [
            (storage, tensor)
            for storage, tensor in pairs
            if storage.nbytes > SMALLEST and not any(g.address <= storage.address < g.address + g.size for g in pools)
        ]
        if not pairs:
            most = max(kept, key=lambda reason: kept[reason], default="")
            idle = f": {bytes_text(kept[most])} is idle, but {most}" if most else ""
            return f"no tensor is idle that may be parked{idle}"
        names = found.variables()
        owners = [names.get(id(tensor), "") for _, tensor in pairs]
        s.memory[PLAN] = [(storage, name) for (storage, _), name in zip(pairs, owners, strict=True)]
        return ""

    def run(self, s: Situation) -> Did:
        plan: list[tuple[Storage, str]] = s.memory.pop(PLAN)
        room = s.room()
        assert s.allocator is not None and s.device is not None
        assert s.enter is not None and room is not None
        there = s.allocator.park_room(s.device)
        if s.fault.torch_allocator and s.request is not None:
            # where enough is free in pieces, one piece of the request's size is what is missing
            missing = max(s.need or 0, block_size(s.request)) - room.total
            missing = missing if missing > 0 else block_size(s.request)
        else:  # a library takes it from the driver; where it does not say how much, less than that may do
            missing = max((s.request or HANDLE) - room.driver, SMALLEST)
            missing = missing if s.request else min(missing, sum(p[0].nbytes for p in plan))
        fits, left = [], there
        for storage, name in plan:
            if storage.nbytes <= left:
                fits.append((storage, name))
                left -= storage.nbytes
        idle, can = sum(p[0].nbytes for p in plan), sum(p[0].nbytes for p in fits)
        if can < missing:
            short = f", and the host can take {bytes_text(there)}" if can < idle else ""
            return Did("failed", f"{bytes_text(idle)} is idle{short}; {bytes_text(missing)} is missing")
        if BEFORE in s.memory:
            # the room for one request was not enough, and there are few repeats: all that is idle makes room now
            missing = can
        around = _Watched(s.allocator)
        s.enter(around)  # before anything leaves: what touches it brings it back
        if s.after is not None:
            s.after(lambda: ("", around.errors))
        first = choose([p[0].nbytes for p in fits], missing)
        order, chosen = [fits[i] for i in first], set(first)
        rest = [p for i, p in enumerate(fits) if i not in chosen]
        parked, names = 0, dict.fromkeys(name for _, name in order if name)
        try:
            parked += s.allocator.park([storage for storage, _ in order])
            s.allocator.empty_cache()
            while self._short(s) and not self._compacted(s) and rest:
                storage, name = rest.pop(0)
                parked += s.allocator.park([storage])
                names[name] = None
                s.allocator.empty_cache()
        except (Refused, RuntimeError) as error:
            return Did("failed", str(error).split("\n", 1)[0], moved=parked)
        finally:
            del plan, fits, order, rest
        s.memory[BEFORE] = True
        said = f" ({', '.join(n for n in names if n)})" if any(names) else ""
        # where only the free pieces are in the way, the repeat may still find room
        return Did("on", f"{bytes_text(parked)} wait on the host{said}", repeat=s.enough() is not False, moved=parked)

    def _short(self, s: Situation) -> bool:
        """Whether more must leave."""
        if s.request is not None:
            return s.enough() is False
        room = s.room()
        return room is not None and room.driver < HANDLE

    def _compacted(self, s: Situation) -> bool:
        """Whether what is free in pieces could be moved together for the request."""
        from ...memory.compaction import compact

        room = s.room()
        assert s.allocator is not None and s.device is not None
        if s.request is None or not s.fault.torch_allocator:
            return False
        if room is None or room.total < max(s.need or 0, s.request):
            return False
        if s.options.excluded("compact") or s.allocator.moving_refused(s.device):
            return False
        return compact(s.allocator, s.device, s.request).done


RUNG = _Spill()

"""Where the memory of the device is, after a failure: read once, for the report."""

from __future__ import annotations

import ast
import gc
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil

from ..devices.processes import describe
from ..kernel import holders as kernel
from ..machine import machine
from ..memory.pools import pools
from ..memory.saved import Kept
from ..memory.variables import Root, tracebacks, user_variables
from ..render.units import bytes_text
from .called import trees
from .libraries import HELD, imported
from .owners import Found, Holder, look
from .situation import CONTEXT, Room, Situation, room_of

__all__ = ["CHILD", "Survey", "at_failure", "survey"]

if TYPE_CHECKING:
    from ..memory.allocator import Allocator

MIB = 1 << 20
CHILD = "a child of this kernel"


@dataclass(frozen=True)
class Survey:
    """Bytes of one device by holder; None where it cannot be read."""

    holders: tuple[Holder, ...] = ()
    room: Room | None = None
    capacity: int | None = None
    others: int | None = None
    """Held by other processes."""
    elsewhere: tuple[tuple[int, int], ...] = field(default=())
    """(index, free bytes) of the machine's other devices, most free first."""
    kept: tuple[Kept, ...] = ()
    """Names through which graphs of autograd's are kept, and the bytes that were saved in them."""
    gathered: tuple[Kept, ...] = ()
    """Containers that hold several tensors."""
    trees: tuple[ast.AST, ...] = ()
    """The functions whose variables those are."""
    shared: tuple[tuple[str, int], ...] = ()
    """(variable, bytes) of what a graph behind another variable keeps too."""


def survey(s: Situation, error: BaseException | None) -> Survey:
    """Who holds what. Reads only; where CUDA is not started, only what NVML and the message tell."""
    if s.fault.kind.id in ("lost-context", "host-memory", "shared-host", "start-up", "wrong-device", "worker"):
        return Survey()
    collects = gc.isenabled()
    gc.disable()  # a collection of Python's own in a large heap takes as long as all of this
    try:
        return _survey(s, error)
    finally:
        if collects:
            gc.enable()


def at_failure(
    allocator: Allocator | None, namespace: Mapping[str, Any], shell: Any, device: int | None, error: BaseException
) -> Found | None:
    """What the names kept when the statement failed, to be put into a situation's `memory`. It holds no tensor.

    For where the frames of the error are forgotten before the report is made. None where nothing can be read.
    """
    room = room_of(allocator, device)
    if allocator is None or device is None or room is None:
        return None
    roots = [*user_variables(namespace, shell), Root("traceback", "this cell's own error", error)]
    return look(allocator, namespace, roots, device, room.allocated, error=error)


def _survey(s: Situation, error: BaseException | None) -> Survey:
    found: list[Holder] = []
    seen = Found([])
    room = s.room()
    if s.allocator is not None and s.device is not None and room is not None:
        seen = look(s.allocator, s.namespace, _roots(s, error), s.device, room.allocated, error=error)
        found += seen.holders
        named = sum(h.nbytes or 0 for h in found)
        if room.allocated - named - room.pools > MIB:
            found.append(
                Holder(
                    "below-python",
                    "below Python",
                    room.allocated - named - room.pools,
                    s.device,
                    "workspaces, tensors of C++ code, graphs of autograd's that no variable leads to",
                )
            )
        if room.pools:
            found.append(
                Holder("private-pool", "private pools", room.pools, s.device, "of live CUDA graphs or MemPools")
            )
        whole = room.cached - room.lost
        if whole:
            found.append(
                Holder("cached", "cached, free", whole, s.device, "in whole segments of the caching allocator")
            )
        if room.lost:
            pieces = f"free in pieces between live tensors, the largest {bytes_text(room.largest)}"
            found.append(Holder("fragmented", "lost to fragmentation", room.lost, s.device, pieces))
    found += _outside(s, room)
    card = s.reading()
    capacity = s.fault.sizes.capacity
    if capacity is None and card is not None and card.memory.total is not None:
        capacity = card.memory.total - (card.memory.reserved or 0)
    before = s.memory.get("at failure")
    if before is not None and not seen.kept:  # the frames of the failure are gone, and what they held with them
        seen = Found(seen.holders, before.kept, seen.gathered or before.gathered, seen.shared)
    local = {one.local for one in (*seen.kept, *seen.gathered) if one.local}
    text = tuple(trees(error, local)) if local else ()
    return Survey(tuple(found), room, capacity, s.others(), _elsewhere(s), seen.kept, seen.gathered, text, seen.shared)


def _roots(s: Situation, error: BaseException | None) -> list[Root]:
    roots = user_variables(s.namespace, s.shell)
    roots += [Root("output", name, value) for name, value in kernel.outputs(s.shell).items()]
    if error is not None:
        roots.append(Root("traceback", "this cell's own error", error))
    return roots + tracebacks(s.shell)


def _outside(s: Situation, room: Room | None) -> list[Holder]:
    """Other processes, this process's context, the driver."""
    rows: list[Holder] = []
    card = s.reading()
    sizes = s.fault.sizes
    by_driver = card is not None and card.processes is not None
    listed: dict[int, int | None] = dict(sizes.processes)
    if card is not None and card.processes is not None:
        listed = {process.pid: process.used for process in card.processes}
    this = s.own_process(listed) if by_driver or sizes.own is None else None
    own = listed[this] if this is not None else None
    own = sizes.own if own is None else own
    for pid, used in listed.items():
        if pid != this and used is not None:
            detail = ", ".join(filter(None, [_who(pid), CHILD if child(pid) else ""]))
            rows.append(Holder("process", f"process {pid}", used, s.device, detail))
    rest = own - (room.reserved if room is not None else 0) if own is not None else 0
    for pool in pools():
        if pool.device == s.device:
            detail = f"{bytes_text(pool.free)} of it in no array" if pool.free else ""
            rows.append(Holder("library-pool", f"{pool.owner}'s pool", pool.held, s.device, detail))
            rest -= pool.held
    if rest > (2 if imported() else 4) * CONTEXT:  # more than torch, its CUDA libraries and the context explain
        rows.append(_library(rest - CONTEXT, s.device))
        rest = CONTEXT
    if rest > 0:
        rows.append(Holder("context", "this kernel's CUDA context", rest, s.device))
    if card is not None and card.memory.reserved:
        rows.append(Holder("driver", "the driver", card.memory.reserved, s.device))
    return rows


def _library(nbytes: int, device: int | None) -> Holder:
    names = [library.name for library in imported()]
    detail = f"imported here: {', '.join(names)}" if names else "none that is known here has been imported"
    return Holder(HELD, "another library in this kernel", nbytes, device, detail)


def child(pid: int) -> bool:
    """Whether a process was started by this one: an engine, a worker of a DataLoader."""
    if machine().label:
        return False
    try:
        return any(parent.pid == os.getpid() for parent in psutil.Process(pid).parents())
    except (psutil.Error, OSError):
        return False


def _who(pid: int) -> str:
    """Name and notebook of a process, as far as anyone may know them who reads a report: no folder, no user."""
    if machine().label:  # the practice GPU's processes are none
        return ""
    person = describe(pid, True)
    if person.outside:
        return "outside this container"
    notebook = f"notebook {os.path.basename(person.notebook)}" if person.notebook else ""  # noqa: PTH119 - a name
    return ", ".join(filter(None, [person.name, notebook or ("a Jupyter kernel" if person.kernel else "")]))


def _elsewhere(s: Situation) -> tuple[tuple[int, int], ...]:
    reading = s.readings()
    mine = s.reading()
    if reading is None or mine is None:
        return ()
    free = [
        (d.index, d.memory.free)
        for d in reading.devices
        if d.parent is None and d.index != mine.index and d.memory.free is not None
    ]
    return tuple(sorted(free, key=lambda row: (-row[1], row[0])))

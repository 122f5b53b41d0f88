"""Where each byte of a card is: the one split that text, HTML and the panel draw.

Starts no CUDA: the allocator is asked only where it is started, all else comes from the driver's process list.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..devices.processes import Person, describe, this_process
from ..environment.visible import resolve
from ..render.blocks import Part
from ..render.palette import look
from .pools import pools

if TYPE_CHECKING:
    from ..devices.model import Device, Reading
    from .allocator import Allocator

__all__ = ["PARTS", "Split", "cuda_to_reading", "person", "split"]

FRESH = 5.0
"""Seconds that a description of a process is good for."""
_people: dict[tuple[int, int, bool, str], tuple[float, Person | None]] = {}

PARTS = ("live", "cached", "fragmented", "pools", "context", "kernels", "others", "untold", "unattributed", "reserved")
"""Fields of `Split` that make up what is used, in the order in which they are drawn; each has a look of its name."""


@dataclass(frozen=True)
class Split:
    """One card in bytes; None where it is not known. The known parts add up to `used` + `reserved`."""

    device: int
    """Index of the card in the reading."""
    total: int | None
    used: int | None
    cuda: int | None = None
    """This process's cuda index of the card."""
    live: int | None = None
    """In live tensors."""
    cached: int | None = None
    """Reserved by the allocator, free, in segments of their own: given back by emptying the cache."""
    fragmented: int | None = None
    """Reserved, free, and shut in between live tensors."""
    context: int | None = None
    """This process's rest: context, modules, workspaces, RMM's pools."""
    pools: int | None = None
    """In other libraries' pools in this process (memory/pools.py)."""
    kernels: int | None = None
    """This user's other Jupyter kernels."""
    others: int | None = None
    """All other processes in the driver's list."""
    unattributed: int | None = None
    """Used, and no process in the list holds it; None where the driver does not tell all."""
    reserved: int | None = None
    """The driver's own part."""
    outside: int = 0
    """How many processes in the list are outside this container."""
    on_host: int = 0
    """Of this process's tensors, bytes that are on the host, since the card had no room for them."""
    untold: int | None = None
    """Used, where the driver tells no list of processes, or lists some without their bytes (WSL2, MIG)."""
    includes_reserve: bool = False
    """An old driver: the reserve cannot be told apart and stands in `unattributed`."""

    @property
    def process(self) -> int | None:
        """All of this process."""
        known = [n for n in (self.live, self.cached, self.fragmented, self.context, self.pools) if n is not None]
        return sum(known) if known else None

    def parts(self) -> list[Part]:
        """Each part that holds something, as it is drawn."""
        held = [(look(name), getattr(self, name)) for name in PARTS]
        return [Part(one.words, size, one.mark, one.id) for one, size in held if size]


def cuda_to_reading(reading: Reading, allocator: Allocator | None = None) -> list[int]:
    """Card in the reading (PCI bus order) of each of this process's cuda indices.

    A started allocator tells the UUIDs of its cards, which is certain. Else CUDA_VISIBLE_DEVICES is resolved; that is
    left empty where it is not certain: without CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA puts the fastest card first.
    """
    cards = [d for d in reading.devices if d.parent is None]
    if reading.label:  # the practice GPU heeds no variables
        return [d.index for d in cards]
    told = getattr(allocator, "uuids", None)
    if allocator is not None and told is not None and allocator.started():
        by_uuid = {_bare(d.uuid): d.index for d in cards if d.uuid}
        found = [by_uuid.get(_bare(uuid)) for uuid in told()]
        if found and None not in found:
            return [i for i in found if i is not None]
    if os.environ.get("CUDA_DEVICE_ORDER", "") != "PCI_BUS_ID" and len({d.name for d in cards}) > 1:
        return []
    seen = resolve(os.environ.get("CUDA_VISIBLE_DEVICES"), cards).devices
    return [d.index for d in seen or ()]


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def split(reading: Reading, allocator: Allocator | None) -> tuple[Split, ...]:
    """One split for each card and each MIG instance, in the reading's order."""
    started = allocator is not None and allocator.started()
    at = cuda_to_reading(reading, allocator) if reading.devices else []
    made = []
    held: dict[int, int] = {}
    for pool in () if reading.label else pools():
        held[pool.device] = held.get(pool.device, 0) + pool.held
    for device in reading.devices:
        cuda = at.index(device.index) if device.parent is None and device.index in at else None
        library = None if cuda is None else held.get(cuda)
        made.append(_one(device, cuda, allocator if started else None, reading.label, library))
    return tuple(made)


def person(pid: int, here: bool, label: str) -> Person:
    """`describe`, asked again after `FRESH` seconds: it reads files of the process, and a panel asks every second."""
    key = (os.getpid(), pid, here, label)
    now = time.monotonic()
    at, one = _people.get(key, (float("-inf"), None))
    if one is None or now - at > FRESH:
        if len(_people) > 1000:
            _people.clear()
        one = describe(pid, here, label)
        _people[key] = now, one
    return one


def _one(device: Device, cuda: int | None, allocator: Allocator | None, label: str, library: int | None) -> Split:
    memory = device.memory
    live = cached = fragmented = context = own = None
    on_host = 0
    here = allocator is not None and cuda is not None and cuda in allocator.devices()
    if here:
        assert allocator is not None and cuda is not None
        stats = allocator.stats(cuda)
        live = max(0, stats.allocated - stats.elsewhere)
        on_host = stats.on_host
        fragmented = min(stats.inactive_split, stats.cached)
        cached = stats.cached - fragmented
    kernels: int | None = 0
    others: int | None = 0
    outside = 0
    listed = {process.pid: process.used for process in device.processes or ()}
    this = this_process(listed, stats.reserved - stats.elsewhere) if here and not label else None
    for process in device.processes or ():
        one = person(process.pid, here, label)
        if one.this or process.pid == this:
            own = process.used
            continue
        outside += one.outside
        if process.used is None:
            others = None
        elif one.mine and one.kernel:
            kernels = (kernels or 0) + process.used
        elif others is not None:
            others += process.used
    if device.processes is None:
        kernels = others = None
    if own is not None:
        context = max(0, own - (live or 0) - (cached or 0) - (fragmented or 0))
        if library is not None:
            library = min(library, context)
            context -= library
    known = sum(n for n in (live, cached, fragmented, library, context, kernels, others) if n is not None)
    rest = None if memory.used is None or memory.unified else max(0, memory.used - known)
    hidden = device.processes is None or any(process.used is None for process in device.processes)
    return Split(
        device=device.index,
        total=memory.total,
        used=memory.used,
        cuda=cuda,
        live=live,
        cached=cached,
        fragmented=fragmented,
        context=context,
        pools=library,
        kernels=kernels,
        others=others,
        unattributed=None if hidden else rest,
        reserved=memory.reserved,
        outside=outside,
        includes_reserve=memory.used_includes_reserved,
        on_host=on_host,
        untold=rest if hidden else None,
    )

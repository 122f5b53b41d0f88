"""What this kernel holds on each device, from the allocator and from the driver's process list."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..devices.table import Share

if TYPE_CHECKING:
    from ..devices.model import Device, Reading
    from .allocator import Allocator

__all__ = ["cuda_to_reading", "shares"]


def cuda_to_reading(reading: Reading) -> list[int]:
    """Index in the reading (PCI bus order) of each of this process's cuda indices, by CUDA_VISIBLE_DEVICES.

    Empty where the mask cannot be resolved for certain: without CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA puts the fastest
    card first, so an order is only certain when all cards are of one model.
    """
    cards = [d for d in reading.devices if d.parent is None]
    order = os.environ.get("CUDA_DEVICE_ORDER", "")
    if order != "PCI_BUS_ID" and len({d.name for d in cards}) > 1:
        return []
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    if mask is None:
        return [d.index for d in cards]
    found = []
    for word in (w.strip() for w in mask.split(",")):
        if word.isdigit() and int(word) < len(cards):
            found.append(cards[int(word)].index)
        elif word.startswith("GPU-"):
            match = [d.index for d in cards if (d.uuid or "").startswith(word)]
            if len(match) != 1:
                break
            found += match
        else:
            break
    return found


def shares(reading: Reading, allocator: Allocator | None) -> tuple[Share, ...]:
    """One share for each card of the reading; asks the allocator only where CUDA is already up."""
    if not reading.devices:
        return ()
    at = cuda_to_reading(reading) if allocator is not None and allocator.started() else []
    mine = {at[i]: i for i in allocator.devices() if i < len(at)} if allocator is not None and at else {}
    found = []
    for device in reading.devices:
        if device.parent is None:
            process, others = _processes(device)
            allocated = cached = None
            if allocator is not None and device.index in mine:
                stats = allocator.stats(mine[device.index])
                allocated, cached = stats.allocated, stats.cached
            found.append(Share(device.index, allocated, cached, process, others))
    return tuple(found)


def _processes(device: Device) -> tuple[int | None, int | None]:
    """(bytes of this process, bytes of the others), None where the driver does not tell."""
    if device.processes is None:
        return None, None
    mine = [p.used for p in device.processes if p.pid == os.getpid()]
    others = [p.used for p in device.processes if p.pid != os.getpid()]
    return (
        sum(u for u in mine if u is not None) if all(u is not None for u in mine) else None,
        sum(u for u in others if u is not None) if all(u is not None for u in others) else None,
    )

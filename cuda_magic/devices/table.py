"""One reading as a table: `%gpu_mem --once`, `cuda-magic mem`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..render.blocks import Bar, Block, Legend, Note, Table, Text, Title
from ..render.palette import LOOKS
from ..render.units import NA, amount, bytes_text
from ..result import Result
from .model import Device, Reading

if TYPE_CHECKING:
    from ..memory.split import Split

__all__ = ["MemoryTable", "percent"]


def percent(device: Device) -> float | None:
    """How full the device is, 0 to 100; None where its memory cannot be read."""
    memory = device.memory
    return None if memory.used is None or not memory.total else 100 * memory.used / memory.total


@dataclass(frozen=True, repr=False)
class MemoryTable(Result):
    """Devices at one moment."""

    reading: Reading
    splits: tuple[Split, ...] = field(default=())
    """One for each device of the reading, in its order."""
    alert: int = 95
    """Percent of a device's memory above which a note says so."""

    def rows(self) -> list[dict[str, Any]]:
        """One row a device: index, name, bytes, percent, degrees Celsius, watts, and this kernel's share."""
        rows = []
        for i, device in enumerate(self.reading.devices):
            part = self.splits[i] if i < len(self.splits) else None
            memory = device.memory
            rows.append(
                {
                    "index": device.index,
                    "parent": device.parent,
                    "cuda": part and part.cuda,
                    "name": device.name,
                    "uuid": device.uuid,
                    "total": memory.total,
                    "used": memory.used,
                    "free": memory.free,
                    "reserved_by_driver": memory.reserved,
                    "utilization": device.utilization,
                    "temperature": device.temperature,
                    "power": device.power,
                    "allocated": part and part.live,
                    "cached": part and part.cached,
                    "fragmented": part and part.fragmented,
                    "context": part and part.context,
                    "pools": part and part.pools,
                    "this_process": part and part.process,
                    "other_kernels": part and part.kernels,
                    "other_processes": part and part.others,
                    "untold": part and part.untold,
                    "unattributed": part and part.unattributed,
                    "error": device.error,
                }
            )
        return rows

    def verdict_line(self) -> str:
        if not self.reading.devices:
            return f"gpu_mem: {self.reading.status.sentence or 'No GPU found.'}"
        return "\n".join(f"gpu_mem: {n.text}" for n in self._notes() if isinstance(n, Note) and n.severity != "info")

    def blocks(self) -> Sequence[Block]:
        reading = self.reading
        if not reading.devices:
            more = "The doctor says more: %cuda_doctor, in a terminal cuda-magic doctor."
            return [Title("GPU memory", reading.label), Text(f"{reading.status.sentence or 'No GPU found.'} {more}")]
        versions = [f"driver {reading.driver_version}"] if reading.driver_version else []
        versions += [f"CUDA up to {reading.cuda_version}"] if reading.cuda_version else []
        blocks: list[Block] = [Title("GPU memory" + (f" ({', '.join(versions)})" if versions else ""), reading.label)]
        columns = ("GPU", "name", "used", "total", "free", "util", "temp", "power", "processes")
        blocks.append(Table(columns, [_cells(d) for d in reading.devices], frozenset({2, 3, 4, 5, 6, 7, 8})))
        looks: dict[str, None] = {}
        for device, part in zip(reading.devices, self.splits, strict=False):
            if device.memory.used is not None and device.memory.total and not device.memory.unified:
                blocks.append(_bar(device, part))
                looks |= {one.look: None for one in part.parts()}
        if looks:
            blocks.append(Legend(tuple(one.id for one in LOOKS if one.id in looks)))
        blocks += self._notes()
        return blocks

    def _notes(self) -> list[Block]:
        notes: list[Block] = []
        for i, device in enumerate(self.reading.devices):
            full = percent(device)
            name = _label(device)
            if device.error:
                notes.append(Note("error", f"GPU {name}: {device.error}"))
            elif full is not None and full >= self.alert:
                notes.append(Note("warning", f"GPU {name} is {full:.0f} % full."))
            if device.memory.unified:
                notes.append(Note("info", f"GPU {name} shares the system's RAM: the numbers are the system's."))
            if i < len(self.splits) and self.splits[i].outside:
                notes.append(
                    Note(
                        "info", f"GPU {name}: {self.splits[i].outside} processes in the list are not in this container."
                    )
                )
            if i < len(self.splits) and self.splits[i].on_host:
                notes.append(
                    Note(
                        "info",
                        f"GPU {name}: {bytes_text(self.splits[i].on_host)} of this kernel's tensors are on the host.",
                    )
                )
            if device.memory.total and device.memory.used_includes_reserved and not device.memory.unified:
                notes.append(Note("info", f"GPU {name}: used includes the driver's own reserve (old driver)."))
        return notes


def _label(device: Device) -> str:
    return str(device.index) if device.parent is None else f"{device.parent}:{device.index}"


def _cells(device: Device) -> list[str]:
    memory = device.memory
    count = NA if device.processes is None else str(len(device.processes))
    return [
        _label(device),
        device.name or NA,
        bytes_text(memory.used),
        bytes_text(memory.total),
        bytes_text(memory.free),
        amount(device.utilization, " %"),
        amount(device.temperature, " C"),
        amount(device.power, " W"),
        count,
    ]


def _bar(device: Device, split: Split) -> Bar:
    cuda = "" if split.cuda in (None, device.index) else f" = cuda:{split.cuda}"
    return Bar(f"GPU {_label(device)}{cuda}", split.parts(), device.memory.total or 0, f"{percent(device) or 0:.0f} %")

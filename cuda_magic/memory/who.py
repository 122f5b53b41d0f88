"""``%gpu_mem --who``: the processes on each GPU with their notebooks, and this kernel's own variables by bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..devices.model import Reading
from ..devices.processes import Person, describe
from ..machine import machine
from ..render.blocks import Block, Note, Table, Text, Title
from ..render.units import NA, bytes_text, seconds_text
from ..result import Result
from .split import Split, split
from .variables import Held, variables

__all__ = ["Holding", "Who", "who"]

SHOWN = 20
"""Rows of variables shown; the rest is summed up."""


@dataclass(frozen=True)
class Holding:
    """One process on one card; `used` in bytes, None where the driver does not tell."""

    device: int
    used: int | None
    kind: str
    person: Person


@dataclass(frozen=True, repr=False)
class Who(Result):
    """Who holds the memory of each GPU."""

    reading: Reading
    splits: tuple[Split, ...]
    holdings: tuple[Holding, ...]
    held: tuple[Held, ...]
    note: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """Processes first, then this kernel's names; `what` says which."""
        processes = [
            {
                "what": "process",
                "device": h.device,
                "pid": h.person.pid,
                "name": h.person.name,
                "user": h.person.user,
                "notebook": h.person.notebook,
                "idle": h.person.idle,
                "this": h.person.this,
                "bytes": h.used,
            }
            for h in self.holdings
        ]
        cards = {s.cuda: s.device for s in self.splits}
        names = [
            {"what": h.kind, "device": cards.get(h.cuda), "name": h.name, "bytes": h.nbytes, "tensors": h.tensors}
            for h in self.held
        ]
        return processes + names

    def blocks(self) -> Sequence[Block]:
        blocks: list[Block] = [Title("Who holds the memory", self.reading.label)]
        if not self.reading.devices:
            return [*blocks, Text(self.reading.status.sentence or "No GPU found.")]
        if self.holdings:
            columns = ("GPU", "pid", "bytes", "who", "user", "notebook", "idle")
            blocks.append(Table(columns, [_cells(h) for h in self.holdings], frozenset({1, 2}), "Processes"))
        else:
            untold = [str(d.index) for d in self.reading.devices if d.processes is None and d.parent is None]
            if untold:
                blocks.append(Text(f"The driver does not tell which processes use GPU {', '.join(untold)}."))
            else:
                blocks.append(Text("No process holds memory of a GPU, as far as the driver tells."))
        for part in self.splits:
            if part.unattributed and part.unattributed > 64 << 20:
                why = " (the driver's reserve among it: an old driver)" if part.includes_reserve else ""
                blocks.append(
                    Note("info", f"GPU {part.device}: {bytes_text(part.unattributed)} are held by nobody visible{why}.")
                )
        if self.held:
            cards = {s.cuda: s.device for s in self.splits}
            names = [
                (h.name, bytes_text(h.nbytes), _place(h.cuda, cards), str(h.tensors), h.largest)
                for h in self.held[:SHOWN]
            ]
            rest = self.held[SHOWN:]
            if rest:
                names.append((f"{len(rest)} more", bytes_text(sum(h.nbytes for h in rest)), "", "", ""))
            heads = ("name", "bytes", "card", "tensors", "largest")
            blocks.append(Table(heads, names, frozenset({1, 3}), "This kernel"))
        if self.note:
            blocks.append(Text(self.note))
        return blocks


def _place(cuda: int, cards: dict[int | None, int]) -> str:
    return f"cuda:{cuda} = GPU {cards[cuda]}" if cuda in cards else f"cuda:{cuda}"


def _cells(holding: Holding) -> tuple[str, ...]:
    person = holding.person
    if person.this:
        name = "this kernel"
    elif person.outside:
        name = "outside this container"
    else:
        name = person.name or NA
        if person.kernel:
            name = "my kernel" if person.mine else "a kernel"
    idle = "" if person.this else seconds_text(person.idle)
    return (
        str(holding.device),
        "this" if person.this else str(person.pid),
        bytes_text(holding.used),
        name,
        person.user or NA,
        person.notebook or "",
        idle,
    )


def who(namespace: dict[str, Any] | None = None, shell: Any = None) -> Who:
    """The answer now. `namespace` is the user's; None leaves the variables out."""
    here = machine()
    reading = here.devices().read(slow=False)
    allocator = here.allocator()
    started = allocator is not None and allocator.started()
    holdings = tuple(
        Holding(device.index, process.used, process.kind, describe(process.pid, started, reading.label))
        for device in reading.devices
        for process in sorted(device.processes or (), key=lambda p: -(p.used or 0))
    )
    held: tuple[Held, ...] = ()
    note = ""
    if namespace is not None:
        if allocator is None:
            note = "torch is not imported in this kernel: it holds no tensors."
        elif not started:
            note = f"{allocator.name} has not started CUDA in this kernel: it holds nothing on a GPU."
        else:
            held = tuple(variables(allocator, namespace, shell))
    return Who(reading, split(reading, allocator), holdings, held, note)

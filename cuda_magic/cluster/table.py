"""``%gpu_mem --cluster --once``: every engine's devices by host, each counted once."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..panel.wire import FIELDS, unpack
from ..render.blocks import Block, Note, Table, Text, Title
from ..render.units import NA, amount, bytes_text
from ..result import Result
from .connect import Answer
from .state import FIRST, Host, Row, State

__all__ = ["ClusterDevice", "ClusterEngine", "ClusterTable", "count", "from_answers", "ids", "table"]

MANY = 64
"""Up to so many devices each has a line; with more each host has one."""
_NOT_LIVE = {"late": "warning", "gone": "error", "failed": "error", "waits": "warning"}


@dataclass(frozen=True)
class ClusterEngine:
    """One engine; `host` is None where it has not said where it runs."""

    engine: int
    host: str | None
    state: str
    """``live``; ``late``: it answers no more; ``waits``: it is busy; ``gone``: it has ended; ``failed``."""
    note: str = ""


@dataclass(frozen=True)
class ClusterDevice:
    """One device of one host, sizes in bytes, None where unknown."""

    host: str
    index: str
    name: str
    uuid: str | None
    engines: tuple[int, ...]
    """The engines that see it."""
    total: int | None
    used: int | None
    utilization: int | None
    temperature: int | None
    power: int | None
    live: int | None
    """In the engines' tensors."""
    cached: int | None
    fragmented: int | None
    context: int | None
    kernels: int | None
    others: int | None
    unattributed: int | None
    pools: int | None
    error: str | None = None
    stale: bool = False
    """True where no engine tells of it any more: the last reading."""

    @property
    def percent(self) -> float | None:
        return None if self.used is None or not self.total else 100 * self.used / self.total


@dataclass(frozen=True, repr=False)
class ClusterTable(Result):
    """The devices behind a cluster at one moment."""

    time: float
    cluster: str
    label: str
    devices: tuple[ClusterDevice, ...]
    engines: tuple[ClusterEngine, ...]
    drivers: tuple[tuple[str, str], ...] = ()
    """(host, driver's release)."""
    alert: int = 95

    def rows(self) -> list[dict[str, Any]]:
        """One row a device."""
        return [{name: getattr(d, name) for name in ClusterDevice.__dataclass_fields__} for d in self.devices]

    @property
    def hosts(self) -> list[str]:
        """The hosts' names, in the order in which they were seen."""
        seen = [*(d.host for d in self.devices), *(e.host for e in self.engines if e.host)]
        return list(dict.fromkeys(seen))

    def blocks(self) -> Sequence[Block]:
        used = sum(d.used or 0 for d in self.devices)
        total = sum(d.total or 0 for d in self.devices)
        counts = f"{count(len(self.hosts), 'host')}, {count(len(self.engines), 'engine')}"
        sizes = f", {bytes_text(used)} of {bytes_text(total)} used" if self.devices else ""
        title = f"GPU memory, {self.cluster}: {counts}, {count(len(self.devices), 'device')}{sizes}"
        blocks: list[Block] = [Title(title, self.label)]
        if len(self.devices) > MANY:
            blocks.append(self._by_host())
        elif self.devices:
            columns = ("host", "GPU", "name", "used", "total", "of it engines", "util", "temp", "power", "engines")
            rows = [_cells(d) for d in self.devices]
            for i in range(len(rows) - 1, 0, -1):
                if rows[i][0] == rows[i - 1][0]:
                    rows[i][0] = ""
            blocks.append(Table(columns, rows, frozenset({3, 4, 5, 6, 7, 8})))
        drivers = sorted({driver for _, driver in self.drivers if driver})
        if len(drivers) == 1:
            blocks.append(Text(f"driver {drivers[0]} on every host"))
        elif drivers:
            blocks.append(Note("info", "drivers: " + ", ".join(f"{d} on {h}" for h, d in self.drivers if d)))
        return [*blocks, *self._notes()]

    def _by_host(self) -> Table:
        rows = []
        for host in self.hosts:
            mine = [d for d in self.devices if d.host == host]
            fullest = max((d.percent for d in mine if d.percent is not None), default=None)
            busiest = max((d.utilization for d in mine if d.utilization is not None), default=None)
            rows.append(
                (
                    host,
                    str(len(mine)),
                    bytes_text(sum(d.used or 0 for d in mine)),
                    bytes_text(sum(d.total or 0 for d in mine)),
                    amount(fullest, " %"),
                    amount(busiest, " %"),
                    ids([e.engine for e in self.engines if e.host == host and e.state != "gone"]),
                )
            )
        columns = ("host", "GPUs", "used", "total", "fullest", "busiest", "engines")
        return Table(columns, rows, frozenset({1, 2, 3, 4, 5}))

    def _notes(self) -> list[Block]:
        notes: list[Block] = []
        said: dict[tuple[str, str], list[int]] = {}
        for one in self.engines:
            if one.state in _NOT_LIVE:
                said.setdefault((_NOT_LIVE[one.state], one.note or "has not answered yet"), []).append(one.engine)
            elif one.note:
                notes.append(Note("info", f"{one.host}: {one.note}"))
        for (severity, note), engines in said.items():
            notes.append(Note(severity, f"engine{'s' if len(engines) > 1 else ''} {ids(engines)}: {note}"))
        for d in self.devices:
            if d.error:
                notes.append(Note("error", f"{d.host}, GPU {d.index}: {d.error}"))
            elif d.percent is not None and d.percent >= self.alert:
                notes.append(Note("warning", f"{d.host}, GPU {d.index} is {d.percent:.0f} % full."))
        stale = list(dict.fromkeys(d.host for d in self.devices if d.stale))
        if stale:
            notes.append(Note("warning", f"no engine tells of {', '.join(stale)} any more: the last reading is shown"))
        return list(dict.fromkeys(notes))


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def ids(engines: Sequence[int]) -> str:
    """``0-3, 7``."""
    runs: list[list[int]] = []
    for one in sorted(engines):
        if runs and one == runs[-1][-1] + 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def _cells(d: ClusterDevice) -> list[str]:
    own = [n for n in (d.live, d.cached, d.fragmented, d.context, d.pools) if n is not None]
    return [
        d.host,
        d.index,
        d.name,
        bytes_text(d.used),
        bytes_text(d.total),
        bytes_text(sum(own)) if own else NA,
        amount(d.utilization, " %"),
        amount(d.temperature, " C"),
        amount(d.power, " W"),
        ids(d.engines),
    ]


def table(state: State, cluster: str, alert: int, unit: int = 1) -> ClusterTable:
    """`state` as a table; its sizes are in `unit` bytes."""
    state.settle()
    names = dict(zip(map(id, state.hosts), state.names(), strict=True))
    hosts = sorted(state.hosts, key=lambda host: _natural(names[id(host)]))
    devices = [_device(state, row, names[id(host)], unit) for host in hosts for row in _of(state, host)]
    engines = []
    for one in sorted(state.engines.values(), key=lambda e: e.id):
        host = one.host
        note = one.note or (host.none if host is not None else "")
        engines.append(ClusterEngine(one.id, None if host is None else names[id(host)], one.state, note))
    drivers = tuple((names[id(host)], host.driver) for host in hosts)
    return ClusterTable(time.time(), cluster, state.label, tuple(devices), tuple(engines), drivers, alert)


def _of(state: State, host: Host) -> list[Row]:
    return sorted((row for row in state.rows if row.host is host), key=lambda row: _natural(row.card["id"]))


def _natural(name: str) -> list[tuple[int, str]]:
    """For sorting: node2 before node10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _device(state: State, row: Row, host: str, unit: int) -> ClusterDevice:
    values = unpack(row.values)
    parts = [None if n is None else n * unit for n in values[FIRST:]]
    parts += [None] * (len(FIELDS) - len(parts))
    card = row.card
    used, utilization, temperature, power = values[:FIRST]
    alike = [r for r in _of(state, row.host) if r.card["id"] == card["id"]]
    return ClusterDevice(
        host=host,
        # containers of one machine number their cards each for themselves
        index=card["id"] if len(alike) == 1 else f"{card['id']} ({row.uuid[-4:]})",
        name=card["name"],
        uuid=card["uuid"],
        engines=tuple(sorted(one for one in row.seen if state.engines[one].state != "gone")),
        total=None if card["total"] is None else card["total"] * unit,
        used=None if used is None else used * unit,
        utilization=utilization,
        temperature=temperature,
        power=power,
        **dict(zip(FIELDS, parts, strict=True)),
        error=card["error"],
        stale=not any(state.engines[one].state in ("live", "waits") for one in row.seen),
    )


def from_answers(answers: Sequence[Answer], cluster: str, alert: int) -> ClusterTable:
    """The table of what engines answered to ``snapshot``."""
    state = State(time.monotonic)
    for one in answers:
        engine = state.engine(one.engine)
        if one.ok:
            values = one.value["values"]
            state.hear({"e": one.engine, "n": 1, "f": one.value, "v": values})
        else:
            state.mark(engine, {"silent": "waits", "gone": "gone"}.get(one.kind, "failed"), one.failure)
    return table(state, cluster, alert)

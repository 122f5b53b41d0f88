"""What is known of a cluster: engines, the hosts they run on, and each device once, however many engines see it.

A host is one machine: engines belong together if they tell the same boot id (containers of one machine do, whatever
names they have), or if they see a card of the same UUID (sandboxes may make up boot ids). Rows never change their
place: a device that is seen later comes after the others, so a page needs names once and then only what changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..panel.wire import FIELDS, pack, split, unpack
from .agent import PROTOCOL

__all__ = ["Engine", "Host", "Row", "State", "holds"]

FIRST = 4
"""Where the parts of the used memory begin in a device's values."""
OWN = tuple(FIRST + FIELDS.index(name) for name in ("live", "cached", "fragmented", "context", "pools"))
"""Places of the parts that are the engine's own."""
FOREIGN = tuple(FIRST + FIELDS.index(name) for name in ("others", "kernels", "unattributed"))
"""Places in which an engine sees what the other engines hold."""
FRESH = 3.0
"""Seconds by which one engine's reading of a device may be older than another's."""
GONE = 300.0
"""Seconds for which an engine that ended is still named on a host that has others."""
NOTHING = "," * (FIRST - 1)
"""The values of a device of which nothing is known."""


def holds(text: str) -> bool:
    """Whether packed values hold memory of the engine's own: most engines use one card of their host."""
    parts = text.split(",", FIRST + 4)
    own, rest = parts[FIRST : FIRST + 4], parts[FIRST + 4 :]
    return any(word not in ("", "0") for word in own) or bool(rest and rest[0].count(",") >= len(FIELDS) - 5)


@dataclass(eq=False)
class Engine:
    """One engine. `state` is ``waits``, ``live``, ``late``, ``gone`` or ``failed``; `note` says more."""

    id: int
    state: str = "waits"
    note: str = ""
    host: Host | None = None
    since: float = 0.0
    """When this state began, on the clock of `State`."""
    at: float = float("-inf")
    """When its last message came."""
    number: int = 0
    """Of its last message."""
    interval: float = 1.0
    values: list[str] = field(default_factory=list)
    """Of each of its devices, packed."""
    cards: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    """The row of each of its devices."""
    owns: frozenset[int] = frozenset()
    """The devices on which it holds memory."""


@dataclass(eq=False)
class Host:
    """One machine."""

    name: str
    boots: set[str]
    engines: list[Engine] = field(default_factory=list)
    driver: str = ""
    none: str = ""
    """Why it has no devices."""


@dataclass(eq=False)
class Row:
    """One device of one host; `seen` holds each engine that sees it, with the device's number there."""

    host: Host
    uuid: str
    card: dict[str, Any]
    place: int
    """Its number, which never changes."""
    seen: dict[int, int] = field(default_factory=dict)
    values: str = NOTHING
    """Packed (panel/wire.py): read only where several engines see the device, or a table is made."""


class State:
    """All of it. Not for several threads at once.

    Parameters
    ----------
    clock
        Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.engines: dict[int, Engine] = {}
        self.hosts: list[Host] = []
        self.rows: list[Row] = []
        self.label = ""
        self.changed: set[int] = set()
        """Rows whose values are not what they were when somebody last cleared this set."""
        self.version = 0
        """Grows when a host, an engine's state, a device or a name changes."""
        self._by_uuid: dict[str, Row] = {}
        self._mixed: dict[int, Row] = {}
        """Rows that several engines see and that one of them told anew: put together once a tick, see `settle`."""

    # -- what engines say
    def engine(self, number: int) -> Engine:
        """The engine of this id, made if it is new."""
        if number not in self.engines:
            self.engines[number] = Engine(number, since=self.clock())
            self.version += 1
        return self.engines[number]

    def hear(self, content: dict[str, Any]) -> bool:
        """Take in a sampler's message (sampler.py). False where it builds on one that is not here."""
        one = self.engine(int(content["e"]))
        number = int(content["n"])
        gap = number != one.number + 1
        one.number, one.at = number, self.clock()
        full, values = content.get("f"), split(content.get("v", ""))
        if full is not None and full.get("protocol", PROTOCOL) != PROTOCOL:
            self.mark(one, "failed", "its cuda_magic is of another release, which speaks otherwise")
            return True
        if "o" in content:
            one.owns = frozenset(content["o"])
        elif full is not None:
            one.owns = frozenset(i for i, text in enumerate(values) if holds(text))
        if full is not None:
            self._whole(one, full, values)
            gap = False
        elif not one.rows:
            gap = True
        elif "i" in content:
            for i, text in zip(content["i"], values, strict=True):
                one.values[i] = text
                self._told(one.rows[i], text)
        elif values:
            self._all(one, values)
        if one.rows or (one.host is not None and one.host.none):
            self.mark(one, "live")
        return not gap

    def mark(self, one: Engine, state: str, note: str = "") -> None:
        """The engine is in this state from now on."""
        if (one.state, one.note) == (state, note):
            return
        one.state, one.note, one.since = state, note, self.clock()
        self.version += 1
        if state != "live":
            for row in one.rows:  # the others that see a device are asked now
                self._value(row)

    def ages(self, there: set[int], late: float) -> None:
        """Note who has ended (not `there`) and who has not been heard for `late` seconds."""
        now = self.clock()
        for one in self.engines.values():
            if one.id not in there:
                self.mark(one, "gone", "it has ended")
            elif one.state == "live" and now - one.at > late:
                self.mark(one, "late", "no reading")
        for host in self.hosts:
            for one in [e for e in host.engines if e.state == "gone" and now - e.since > GONE]:
                if len(host.engines) > 1:
                    self._forget(one)

    # -- putting together
    def _all(self, one: Engine, values: list[str]) -> None:
        """New values of all devices of an engine: what comes most often."""
        if len(values) != len(one.rows):
            raise ValueError(f"{len(values)} values for {len(one.rows)} devices")
        one.values = values
        for row, text in zip(one.rows, values, strict=True):
            self._told(row, text)

    def _told(self, row: Row, text: str) -> None:
        if len(row.seen) > 1:
            self._mixed[row.place] = row
        elif text != row.values:
            row.values = text
            self.changed.add(row.place)

    def settle(self) -> None:
        """Put together what several engines said of one device since the last call."""
        first: dict[tuple[int, ...], Engine] = {}
        for row in self._mixed.values():
            seen = tuple(row.seen)  # alike for the cards of a host
            if seen not in first:
                first[seen] = self._primary(row)
            self._value(row, first[seen])
        self._mixed.clear()

    def _whole(self, one: Engine, full: dict[str, Any], values: list[str]) -> None:
        cards = full["cards"]
        if one.host is not None and cards == one.cards and full["host"]["boot"] in one.host.boots:
            if values:
                self._all(one, values)
            return
        one.cards = cards
        host = self._host(full["host"], {c["uuid"] for c in cards if c["uuid"]})
        if one.host is not host:
            if one.host is not None:
                one.host.engines.remove(one)
            host.engines.append(one)
            host.engines.sort(key=lambda e: e.id)
            one.host = host
            self.version += 1
        host.driver, host.none = full.get("driver") or "", full.get("none", "")
        self.label = full.get("label") or self.label
        for row in one.rows:
            row.seen.pop(one.id, None)
        one.values, one.rows = values, []
        for i, card in enumerate(cards):
            row = self._row(host, card, i)
            one.rows.append(row)
            row.seen[one.id] = i
            if self._primary(row) is one and row.card != card:
                row.card = card
                self.version += 1
        for row in one.rows:
            self._value(row)

    def _host(self, said: dict[str, str], uuids: set[str]) -> Host:
        same = [
            h
            for h in self.hosts
            if said["boot"] in h.boots or any(u in self._by_uuid and self._by_uuid[u].host is h for u in uuids)
        ]
        if not same:
            same = [Host(said["name"], {said["boot"]})]
            self.hosts += same
            self.version += 1
        first = same[0]
        first.boots.add(said["boot"])
        for other in same[1:]:
            self._join(first, other)
        return first

    def _join(self, first: Host, other: Host) -> None:
        """Two hosts turn out to be one machine."""
        first.boots |= other.boots
        for one in other.engines:
            one.host = first
        first.engines = sorted([*first.engines, *other.engines], key=lambda e: e.id)
        for row in self.rows:
            if row.host is other:
                row.host = first
        self.hosts.remove(other)
        self.version += 1

    def _row(self, host: Host, card: dict[str, Any], number: int) -> Row:
        uuid = card["uuid"] or f"{host.name} {min(host.boots)} {number}"
        if uuid in self._by_uuid:
            return self._by_uuid[uuid]
        row = self._by_uuid[uuid] = Row(host, uuid, card, len(self.rows))
        self.rows.append(row)
        self.version += 1
        return row

    def _forget(self, one: Engine) -> None:
        for row in one.rows:
            row.seen.pop(one.id, None)
        if one.host is not None:
            one.host.engines.remove(one)
        del self.engines[one.id]
        self.version += 1

    def _primary(self, row: Row) -> Engine:
        """Whose reading of a device counts: the first living engine's, unless another one was heard lately."""
        some = [self.engines[one] for one in row.seen]
        living = [e for e in some if e.state in ("live", "waits")] or some
        newest = max(e.at for e in living)
        return next(e for e in living if e.at >= newest - FRESH)

    def _value(self, row: Row, first: Engine | None = None) -> None:
        if len(row.seen) == 1:
            ((one, at),) = row.seen.items()
            values = self.engines[one].values[at]
        elif row.seen:
            values = self._together(row, first or self._primary(row))
        else:
            return
        if values != row.values:
            row.values = values
            self.changed.add(row.place)

    def _together(self, row: Row, first: Engine) -> str:
        """What several engines say of one device: the driver's numbers of the first, the memory of all."""
        text = first.values[row.seen[first.id]]
        values = unpack(text)
        if values[0] is None:
            return text
        values += [None] * (FIRST + len(FIELDS) - len(values))
        foreign = 0
        for one, at in row.seen.items():
            engine = self.engines[one]
            if engine is first or engine.state not in ("live", "waits"):
                continue
            if at not in engine.owns:
                continue
            theirs = unpack(engine.values[at])
            for i in OWN:
                if i < len(theirs) and theirs[i] is not None:
                    values[i] = (values[i] or 0) + (theirs[i] or 0)
                    foreign += theirs[i] or 0
        for i in FOREIGN:
            taken = min(values[i] or 0, foreign)
            if taken:
                values[i] = (values[i] or 0) - taken
                foreign -= taken
        while len(values) > FIRST and not values[-1]:
            values.pop()
        return pack(values)

    def names(self) -> list[str]:
        """A name for each host; machines of the same name are told apart by a number."""
        short = [h.name.split(".")[0] for h in self.hosts]
        names = [s if short.count(s) == 1 else h.name for h, s in zip(self.hosts, short, strict=True)]
        made: list[str] = []
        for i, name in enumerate(names):
            made.append(name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})")
        return made

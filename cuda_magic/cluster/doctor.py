"""``%cuda_doctor --cluster``: every engine's diagnosis in one table, the odd ones first.

An engine is odd in what most of the others have otherwise: the driver, torch, the cards, a package's release. Where
there is no majority the difference is told and nobody is called odd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..panel.wire import join
from ..render.blocks import Block, Note, Table, Text, Title
from ..render.units import NA
from ..result import Result
from .connect import Answer
from .state import NOTHING, State
from .table import count, ids

__all__ = ["ClusterDiagnosis", "EngineDiagnosis", "Oddity", "diagnosis"]

SCHEMA_VERSION = 1
_RANK = {"unusable": 0, "findings": 1, "healthy": 2}
_SHOWN = ("driver", "torch", "CUDA of torch", "Python", "cuda_magic")
"""What is compared by its own name; of the rest of the versions and of the packages only differences are told."""
MOST = 6
"""Packages that are named for one group of engines; of the rest the number is said."""


@dataclass(frozen=True)
class Oddity:
    """One thing that some engines have otherwise than the others."""

    what: str
    value: str
    engines: tuple[int, ...]
    expected: str
    """What most of the engines have; empty where there is no majority."""
    others: int
    """How many engines have that."""

    @property
    def sentence(self) -> str:
        if not self.expected:
            return f"{self.what} differs, without a majority: {self.value}"
        return f"{self.what} is {self.value}; on {self.others} other engines {self.expected}"


@dataclass(frozen=True)
class EngineDiagnosis:
    """One engine: what the doctor said there, or why it said nothing."""

    engine: int
    host: str
    verdict: str
    """``healthy``, ``findings``, ``unusable``, or ``no answer``."""
    sentence: str
    findings: tuple[dict[str, Any], ...] = ()
    cards: tuple[str, ...] = ()
    versions: dict[str, str | None] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict, repr=False)
    odd: bool = False


@dataclass(frozen=True, repr=False)
class ClusterDiagnosis(Result):
    """All engines' diagnoses, odd ones first."""

    schema_version: int
    cluster: str
    label: str
    verdict: str
    """The worst of the engines'."""
    engines: tuple[EngineDiagnosis, ...]
    oddities: tuple[Oddity, ...]

    @property
    def exit_code(self) -> int:
        """0 all healthy and alike, 1 findings or differences, 2 CUDA unusable somewhere."""
        return {"healthy": 1 if self.oddities else 0, "findings": 1}.get(self.verdict, 2)

    def rows(self) -> list[dict[str, Any]]:
        """One row an engine and finding; an engine without findings has one row."""
        rows = []
        for e in self.engines:
            base = {"engine": e.engine, "host": e.host, "verdict": e.verdict, "odd": e.odd}
            some = e.findings or ({"id": None, "severity": None, "seen": e.sentence, "do": None},)
            rows += [{**base, **{k: f[k] for k in ("id", "severity", "seen", "do")}} for f in some]
        return rows

    def blocks(self) -> Sequence[Block]:
        hosts = len({e.host for e in self.engines})
        bad = sum(e.verdict not in ("healthy", "findings") for e in self.engines)
        if bad:
            sentence = f"CUDA cannot be used, or is not known, on {bad} of {len(self.engines)} engines"
        elif self.oddities:
            sentence = "CUDA works on every engine, and they are not alike"
        elif self.verdict == "findings":
            sentence = "CUDA works on every engine, with something to look at"
        else:
            sentence = "CUDA works on every engine, and they are alike"
        size = f"{count(len(self.engines), 'engine')}, {count(hosts, 'host')}"
        blocks: list[Block] = [Title(f"cuda_doctor, {self.cluster}: {sentence} ({size}).", self.label)]
        for odd in self.oddities:
            blocks.append(Note("warning" if odd.expected else "info", f"engine {ids(odd.engines)}: {odd.sentence}"))
        columns = ("host", "engines", "verdict", "cards", "driver", "torch", "CUDA of torch", "Python", "findings")
        blocks.append(Table(columns, [_line(group) for group in self._groups()]))
        told: dict[str, list[EngineDiagnosis]] = {}
        for e in self.engines:
            for f in e.findings:
                told.setdefault(f["id"] + f["seen"], []).append(e)
            if e.verdict == "no answer":
                blocks.append(Note("error", f"engine {e.engine}: {e.sentence}"))
        for key, some in told.items():
            f = next(f for f in some[0].findings if f["id"] + f["seen"] == key)
            where = f"engine {ids([e.engine for e in some])}"
            blocks.append(Note(f["severity"], f"{where}: {f['seen']}  [{f['id']}]\n{f['means']}"))
            if f["do"]:
                blocks.append(Text(f["do"]))
        return blocks

    def _groups(self) -> list[list[EngineDiagnosis]]:
        """Engines of one host that said the same, in the order of `engines`."""
        groups: dict[Any, list[EngineDiagnosis]] = {}
        for e in self.engines:
            groups.setdefault((e.host, *_line([e])[2:]), []).append(e)
        return list(groups.values())


def _line(group: Sequence[EngineDiagnosis]) -> list[str]:
    e = group[0]
    found = ", ".join(f["id"] for f in e.findings)
    shown = [e.versions.get(name) or NA for name in _SHOWN[:4]]
    return [e.host, ids([one.engine for one in group]), e.verdict, _cards(e.cards), *shown, found or "none"]


def _cards(cards: Sequence[str]) -> str:
    return ", ".join(f"{n} x {name}" for name, n in Counter(cards).items()) or "none"


def diagnosis(answers: Sequence[Answer], cluster: str, show_private: bool = False) -> ClusterDiagnosis:
    """What the engines' answers to ``diagnosis`` come to.

    Parameters
    ----------
    answers
        Of all engines.
    cluster
        In words.
    show_private
        Hosts by their names; else by numbers, which may be pasted in public.
    """
    named = _hosts(answers, show_private)
    made = {}
    for one in answers:
        said = one.value if one.ok else None
        if said is None:
            made[one.engine] = EngineDiagnosis(one.engine, NA, "no answer", one.failure)
        else:
            made[one.engine] = EngineDiagnosis(
                one.engine,
                named[one.engine],
                said["verdict"],
                said["sentence"],
                tuple(said["findings"]),
                tuple(said["cards"]),
                said["versions"],
                said["packages"],
            )
    known = [e for e in made.values() if e.verdict != "no answer"]
    odd = _oddities(known)
    strange = {one for o in odd if o.expected for one in o.engines}
    engines = [EngineDiagnosis(**{**vars(e), "odd": e.engine in strange}) for e in made.values()]
    engines.sort(key=lambda e: (_RANK.get(e.verdict, 0), not e.odd, e.host, e.engine))
    worst = min((e.verdict for e in engines), key=lambda v: _RANK.get(v, 0))
    label = next((one.value["label"] for one in answers if one.ok and one.value["label"]), "")
    return ClusterDiagnosis(
        SCHEMA_VERSION, cluster, label, worst if worst in _RANK else "unusable", tuple(engines), odd
    )


def _hosts(answers: Sequence[Answer], show_private: bool) -> dict[int, str]:
    """Each engine's host; the rule on what is one host is the panel's."""
    state = State(lambda: 0.0)
    for one in answers:
        if one.ok:
            cards = [{"uuid": u, "id": str(i), "name": ""} for i, u in enumerate(one.value["uuids"])]
            full = {"host": one.value["host"], "cards": cards}
            state.hear({"e": one.engine, "n": 1, "f": full, "v": join([NOTHING for _ in cards])})
    names = state.names() if show_private else [f"host {i + 1}" for i in range(len(state.hosts))]
    by = dict(zip(map(id, state.hosts), names, strict=True))
    return {number: by[id(e.host)] for number, e in state.engines.items()}


def _oddities(engines: Sequence[EngineDiagnosis]) -> tuple[Oddity, ...]:
    found = [o for name in _SHOWN for o in _compare(name, {e.engine: e.versions.get(name) or "none" for e in engines})]
    found += _compare("the list of cards", {e.engine: _cards(e.cards) for e in engines})
    rest = {name for e in engines for name in e.versions} - set(_SHOWN)
    for name in sorted(rest):
        found += _compare(name, {e.engine: e.versions.get(name) or "none" for e in engines})
    found += _packages(engines)
    # a missing card and another driver first, where nobody is odd last
    found.sort(key=lambda o: not o.expected)
    return tuple(found)


def _compare(what: str, values: dict[int, str]) -> list[Oddity]:
    counts = Counter(values.values()).most_common()
    if len(counts) < 2:
        return []
    expected, others = counts[0]
    if others == counts[1][1]:
        by = {v: tuple(e for e, one in values.items() if one == v) for v, _ in counts}
        text = "; ".join(f"{value} on engine {ids(by[value])}" for value in sorted(by, key=lambda v: by[v]))
        return [Oddity(what, text, tuple(values), "", 0)]
    return [
        Oddity(what, value, tuple(e for e, one in values.items() if one == value), expected, others)
        for value, _ in counts[1:]
    ]


def _packages(engines: Sequence[EngineDiagnosis]) -> list[Oddity]:
    """Releases of packages, put together for the engines that differ in the same ones."""
    names = {name for e in engines for name in e.packages} - {"torch", "cuda-magic", "cuda_magic"}
    groups: dict[tuple[tuple[int, ...], int], list[Oddity]] = {}
    for name in sorted(names):
        for one in _compare(name, {e.engine: e.packages.get(name, "not installed") for e in engines}):
            groups.setdefault((one.engines, one.others), []).append(one)
    found = []
    for (some, others), differ in groups.items():
        if len(differ) == 1 or not differ[0].expected:
            found += differ[:MOST]
            continue
        rest = f" and {len(differ) - MOST} more" if len(differ) > MOST else ""
        values = ", ".join(f"{o.what} {o.value}" for o in differ[:MOST]) + rest
        expected = ", ".join(f"{o.what} {o.expected}" for o in differ[:MOST]) + rest
        found.append(Oddity("packages", values, some, expected, others))
    return found

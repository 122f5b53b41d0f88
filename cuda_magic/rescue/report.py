"""The report of a guarded cell: what happened, what each rung did, where the memory is, what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..render.blocks import Bar, Block, Code, Legend, Note, Part, Table, Text, Title
from ..render.palette import LOOKS, look
from ..render.units import bytes_text
from ..result import Result

if TYPE_CHECKING:
    from .advice import NextStep
    from .atcall import CallRescue
    from .ladder import RungResult
    from .owners import Holder

__all__ = ["Report", "RoomMade"]

SHOWN = 12
"""Holders that are shown; `holders` has all."""
_SMALL = 1 << 20
_ASKED = ("not given", "not in --only", "excluded by --without")
"""Ends of reasons that the user's own line says already."""
_BEYOND = ("too-large", "wrong-size", "library-failed", "lost-allocator")
"""Kinds that no memory made free would help: where it is is not shown; `holders` has it."""
_LOOK = {
    "cached": "cached",
    "private-pool": "cached",
    "fragmented": "fragmented",
    "library-pool": "pools",
    "context": "context",
    "process": "others",
    "driver": "reserved",
}
"""Kinds of holders that are no tensors of this kernel, each with its part of the bar."""
_STATUS = {
    "ok": "nothing to rescue",
    "error": "the cell failed for another reason",
    "rescued": "rescued",
    "refused": "not repeated",
    "not-repeated": "not repeated",
    "failed": "not rescued",
}


@dataclass(frozen=True)
class RoomMade:
    """What one way did inside the allocation, in one cell; nothing was repeated. Sizes in bytes."""

    id: str
    times: int
    freed_bytes: int
    seconds: float
    what: str = ""


@dataclass(frozen=True, repr=False)
class Report(Result):
    """The result of one guarded cell. Sizes in bytes.

    `status` is ``ok``, ``rescued``, ``refused`` (the statement may have done something already), ``not-repeated`` (of a
    kind that no repeat helps), ``failed`` (the ladder's end) or ``error`` (no matter of memory).
    """

    status: str
    attempts: int = 1
    """How often the statement that failed was run; every other statement ran once."""
    line: int | None = None
    last_line: int | None = None
    kind: str = ""
    sentence: str = ""
    error: str = ""
    device: int | None = None
    requested: int | None = None
    needed: int | None = None
    """What the statement takes in all, at least: what it had taken until it failed, and the request."""
    free: int | None = None
    cached: int | None = None
    largest_free: int | None = None
    capacity: int | None = None
    room: tuple[RoomMade, ...] = ()
    """What made room where memory was asked for, before any error."""
    requests: int = 0
    """How often memory was asked for and there was none."""
    rungs: tuple[RungResult, ...] = ()
    holders: tuple[Holder, ...] = ()
    next_steps: tuple[NextStep, ...] = ()
    notes: tuple[str, ...] = ()
    handled: int = 0
    """Out-of-memory errors that the cell's own code dealt with."""
    label: str = ""
    calls: tuple[CallRescue, ...] = ()
    """What was rescued at the call: one row for each kind of op."""
    loops: bool = field(default=False)
    """Whether the repeated statement is a loop, which started again from its top."""

    def rows(self) -> list[dict[str, Any]]:
        """One row for each rung that was tried."""
        rungs = self.to_dict()["rungs"]
        assert isinstance(rungs, list)
        return rungs

    def blocks(self) -> Sequence[Block]:
        again = " again" if self.status in ("refused", "not-repeated") and self.attempts > 1 else ""
        found: list[Block] = [Title(f"cuda_guard: {_STATUS[self.status]}{again}", self.label)]
        if self.sentence:
            found.append(Text(self._what()))
        for note in self.notes:
            found.append(Note("info" if self.status in ("ok", "rescued") else "warning", note))
        if self.handled:
            were = "error was" if self.handled == 1 else "errors were"
            found.append(Note("info", f"{self.handled} out-of-memory {were} handled inside the cell"))
        if self.status not in ("ok", "rescued", "error"):  # what to do first, then why
            found += self._steps()
            found += self._holders()
        found += self._room()
        found += self._rungs()
        found += self._at_call()
        return found

    def _what(self) -> str:
        where = f"line {self.line}" if self.line is not None else "the guarded code"
        words = [f"{where[0].upper()}{where[1:]}: {self.sentence}"]
        if self.requested is not None and self.device is not None:
            asked_of = "the host" if self.kind == "host-memory" else f"GPU {self.device}"
            more = self.needed is not None and self.needed >= self.requested + 16 * _SMALL
            taken = f", {bytes_text(self.needed)} with what it had taken before" if more else ""
            words.append(f"{bytes_text(self.requested)} asked of {asked_of}{taken}")
        if self.free is not None:
            words.append(f"{bytes_text(self.free)} free for this process")
        if self.cached:
            words.append(f"{bytes_text(self.cached)} cached, the largest piece {bytes_text(self.largest_free)}")
        text = "; ".join(words) + "."
        if self.attempts > 1:
            text += f" It ran {self.attempts} times; the statements before it ran once."
            if self.loops:
                text += " It is a loop: each repeat started it again."
        return text

    def _room(self) -> list[Block]:
        """What was done before any error, one row a way."""
        if not self.room:
            return []
        rows = [
            (way.id, str(way.times), bytes_text(way.freed_bytes), f"{way.seconds:.2f} s", way.what) for way in self.room
        ]
        caption = "Room was made where memory was asked for" + ("" if self.attempts > 1 else "; nothing was repeated")
        return [Table(("way", "times", "made free", "took", "what"), rows, frozenset({1, 2, 3}), caption)]

    def _rungs(self) -> list[Block]:
        """What was done, one row each, and what could not help, by reason."""
        done = [r for r in self.rungs if r.state != "skipped"]
        found: list[Block] = []
        if done:
            lines = len({r.line for r in done}) > 1
            rows = [
                (*([str(r.line)] if lines else []), str(r.attempt), r.id, r.state, bytes_text(r.freed_bytes), r.reason)
                for r in done
            ]
            head = (*(["line"] if lines else []), "attempt", "rung", "result", "made free", "what")
            caption = "" if self.status in ("ok", "rescued", "error") else "What was tried"
            found.append(Table(head, rows, frozenset({0, 1, 4} if lines else {0, 3}), caption))
        last = {r.line: r.attempt for r in self.rungs}
        ran = {(r.line, r.id) for r in done if r.id == "holders"}
        reasons: dict[str, list[str]] = {}
        for r in self.rungs:
            told = r.attempt == last[r.line] and (r.line, r.id) not in ran and not r.reason.endswith(_ASKED)
            if r.state == "skipped" and told and r.id not in reasons.setdefault(r.reason, []):
                reasons[r.reason].append(r.id)
        said = [f"{', '.join(rungs)} ({reason})" for reason, rungs in reasons.items()]
        return found + ([Text(f"Skipped: {'; '.join(said)}.")] if said else [])

    def _at_call(self) -> list[Block]:
        found: list[Block] = []
        if self.calls:
            rows = [
                (
                    c.op.removesuffix(".default") + (" (backward)" if c.backward else ""),
                    str(c.times),
                    bytes_text(c.requested),
                    bytes_text(c.freed_bytes),
                    ", ".join(c.how),
                )
                for c in self.calls
            ]
            headers = ("operation", "times", "asked", "made free", "by")
            found.append(Table(headers, rows, frozenset({1, 2, 3}), "Went on at the call; nothing else was repeated"))
        return found

    def _holders(self) -> list[Block]:
        known = sorted(self.holders, key=lambda h: -(h.nbytes or 0))
        large = [h for h in known if h.nbytes is None or h.nbytes >= _SMALL]
        if not large or self.kind in _BEYOND:
            return []
        rows = [(h.name, h.kind, bytes_text(h.nbytes), h.detail) for h in large[:SHOWN]]
        rest = large[SHOWN:]
        if rest:
            rows.append((f"{len(rest)} more", "", bytes_text(sum(h.nbytes or 0 for h in rest)), ""))
        table = Table(("holder", "kind", "bytes", "what"), rows, frozenset({2}), "Where the memory is")
        return [table, *self._bar(large)]

    def _bar(self, holders: Sequence[Holder]) -> list[Block]:
        """The card as one bar, as %gpu_mem draws it; none where the holders are not known to be parts of one card."""
        sizes: dict[str, int] = {}
        for h in holders:
            name = _LOOK.get(h.kind, "live")
            sizes[name] = sizes.get(name, 0) + (h.nbytes or 0)
        if self.device is None or not self.capacity or not 0 < sum(sizes.values()) <= self.capacity:
            return []
        looks = [one.id for one in LOOKS if one.id in sizes]
        parts = [Part(look(name).words, sizes[name], look(name).mark, name) for name in looks]
        share = f"{100 * sum(sizes.values()) / self.capacity:.0f} %"
        return [Bar(f"GPU {self.device}", parts, self.capacity, share), Legend(looks)]

    def _steps(self) -> list[Block]:
        if not self.next_steps:
            return []
        found: list[Block] = [Title("What to do next")]
        for number, step in enumerate(self.next_steps, 1):
            found += [Text(f"{number}. {step.why}"), Code(step.line)]
        return found

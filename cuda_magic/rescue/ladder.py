"""The ladder: rungs in order, each skipped with a reason or measured in bytes and seconds, until enough is free."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .options import RUNGS
from .rungs import Did, Rung, load
from .situation import Room, Situation

__all__ = ["RungResult", "attempt", "climb"]


@dataclass(frozen=True)
class RungResult:
    """What one rung did after one failed attempt.

    `state` is ``ran``, ``on`` (in force for the repeat), ``failed`` or ``skipped``. `freed_bytes` is how much more
    this statement could take afterwards, None where it could not be read.
    """

    id: str
    state: str
    reason: str = ""
    freed_bytes: int | None = None
    seconds: float = 0.0
    attempt: int = 1
    moved_bytes: int = 0
    cycles: tuple[tuple[str, int], ...] = ()
    line: int | None = None
    """First line of the statement, None in a script."""


def _freed(rung: str, before: Room | None, after: Room | None) -> int | None:
    if before is None or after is None:
        return None
    if rung == "compact":
        return max(after.largest, after.driver) - max(before.largest, before.driver)
    if rung == "caches":
        return after.driver - before.driver
    return after.total - before.total


def attempt(rung: Rung, s: Situation, number: int) -> tuple[RungResult, Did | None]:
    """Try one rung after the failure of attempt `number`; what it did is None where it was skipped."""
    started = time.perf_counter()
    reason = s.options.excluded(rung.id) or rung.skip(s)
    if reason:
        return RungResult(rung.id, "skipped", reason, attempt=number), None
    before = s.room()
    did = rung.run(s)
    seconds = time.perf_counter() - started
    if did.state == "skipped":
        return RungResult(rung.id, did.state, did.reason, seconds=seconds, attempt=number), None
    freed = _freed(rung.id, before, s.room())
    return RungResult(rung.id, did.state, did.reason, freed, seconds, number, did.moved, did.cycles), did


def climb(s: Situation, number: int) -> tuple[list[RungResult], bool]:
    """Try the rungs after a failed attempt; what each did, and whether to repeat the statement now.

    Where nothing can be measured (no library that is known, or a request of unknown size) the statement is repeated
    once after the cheap rungs, if one of them gave something back or nobody can tell.
    """
    results: list[RungResult] = []
    done: set[str] = s.memory.setdefault("rungs done", set())
    freed = 0
    measured = s.room() is not None
    for name in RUNGS:
        if name in done:
            continue
        rung = load(name)
        if s.spent and not rung.changes:
            continue
        result, did = attempt(rung, s, number)
        results.append(result)
        if did is not None:
            if not rung.again:
                done.add(name)
            freed += max(0, result.freed_bytes or 0)
            if name == "collect" and number > 1:
                s.measure_again()
            if did.repeat:
                return results, True
        if s.stuck or s.spent:
            continue
        enough = s.enough() if did is not None else False
        if enough:
            return results, True
        if name == "caches" and (s.room() is None or s.request is None) and _once(s, measured, freed):
            return results, True
    return results, False


def _once(s: Situation, measured: bool, freed: int) -> bool:
    """Whether a repeat is worth its while although nobody can say that it will fit."""
    if s.fault.kind.id == "context" or (measured and not freed) or s.memory.get("blind"):
        return False
    s.memory["blind"] = True
    return True

"""Room is made at the very call that ran out of memory: nothing but that one op runs twice.

By the rungs that cost nothing (holders, collect, caches): where nothing can be met inside the allocation. Those that
change what is allocated how (compact, expandable and the rest) work for whole statements.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .classify import classify, judge
from .ladder import attempt as try_rung
from .rungs import load
from .situation import Situation, device_of

if TYPE_CHECKING:
    from ..memory.allocator import Allocator, Ops
    from .classify import Fault
    from .options import GuardOptions

__all__ = ["AtCall", "CallRescue"]

CHEAP = ("holders", "collect", "caches")
MOST = 12
"""Times that one op may be tried again."""


@dataclass(frozen=True)
class CallRescue:
    """What was done for one kind of op. `requested` is the largest request, `freed` and `seconds` are sums."""

    op: str
    times: int
    requested: int | None
    freed_bytes: int
    seconds: float
    how: tuple[str, ...]
    backward: bool = False
    """Whether it ran on a thread of autograd's, so inside backward."""


class AtCall:
    """Judges errors of single ops and makes room for them, during one guarded cell."""

    def __init__(self, options: GuardOptions, shell: Any, allocator: Allocator, ops: Ops) -> None:
        self.options, self.shell, self.allocator, self.ops = options, shell, allocator, ops
        self.namespace: dict[str, Any] = {}
        self.notes: list[str] = []
        self._less: dict[str, int] = {}
        self.absorbed = 0
        """Out-of-memory errors that nobody else has seen."""
        self._found: dict[str, CallRescue] = {}
        self._lock = threading.RLock()
        self._cheap = False
        self._main = threading.get_ident()

    @property
    def rescues(self) -> tuple[CallRescue, ...]:
        """So far, in the order in which the ops first failed."""
        return tuple(self._found.values())

    def said(self) -> list[str]:
        """The notes, and what ran another way than with enough memory."""
        return self.notes + [
            f"{op.removesuffix('.default')}: cuDNN found no room for the workspace that it wanted ({errors} times) and "
            "may have taken another algorithm; the last digits can then differ from those of a run with enough memory"
            for op, errors in self._less.items()
        ]

    # -- asked by the mode
    def less_workspace(self, op: str, errors: int) -> None:
        with self._lock:
            self._less[op] = self._less.get(op, 0) + errors
            self.absorbed += errors

    def judge(self, error: BaseException) -> Fault | None:
        fault = classify(error)
        if fault is None:
            return None
        fault = judge(fault, self.allocator)
        return fault if fault.kind.repeat == "ladder" else None

    def make_room(self, problem: Any) -> bool:
        with self._lock:
            if problem.tries == 0:
                self._cheap = False
            started = time.perf_counter()
            fault: Fault = problem.fault
            device = device_of(fault, self.allocator)
            if device is None or problem.tries >= MOST:
                return False
            how, freed = self._make(fault, device)
            if how:
                self.absorbed += fault.error == "OutOfMemoryError"
                self._note(problem.op, fault.sizes.requested, freed, time.perf_counter() - started, how)
            return bool(how)

    def _make(self, fault: Fault, device: int) -> tuple[str, int]:
        """(what made room, bytes); empty where nothing did."""
        if self._cheap:
            return "", 0
        self._cheap = True
        return self._cheap_rungs(fault, device)

    def _cheap_rungs(self, fault: Fault, device: int) -> tuple[str, int]:
        s = Situation(fault, self.options, self.allocator, device, self.namespace, self.shell)
        before = s.room()
        names = []
        for name in CHEAP:
            result, did = try_rung(load(name), s, 1)
            if did is None:
                continue
            if result.freed_bytes:
                names.append(name)
            enough = s.enough()
            after = s.room()
            freed = after.total - before.total if after is not None and before is not None else 0
            if enough or (enough is None and name == "caches" and names):
                return ", ".join(names) or name, max(0, freed)
        return "", 0

    def _note(self, op: str, requested: int | None, freed: int, seconds: float, how: str) -> None:
        old = self._found.get(op) or CallRescue(op, 0, None, 0, 0.0, ())
        sizes = [size for size in (old.requested, requested) if size is not None]
        self._found[op] = CallRescue(
            op,
            old.times + 1,
            max(sizes, default=None),
            old.freed_bytes + freed,
            old.seconds + seconds,
            old.how if how in old.how else (*old.how, how),
            old.backward or threading.get_ident() != self._main,
        )

"""The guard of one cell, and of one function of a script: next to nothing before a statement, the ladder behind.

The path of a cell that succeeds is light: no collection, no CUDA call, and what only a failure needs (`failed`,
`outcome`, the ladder) is not imported.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

from ..allocation.session import Session
from ..machine import machine
from ..memory.torch import distributed
from ..render.units import bytes_text
from . import figures, randomness, waiting
from .report import Report

if TYPE_CHECKING:
    import ast
    from types import CodeType

    from ..allocation.handler import Done
    from ..cells.inside import Inside
    from ..cells.rescuer import Step
    from ..memory.allocator import Allocator
    from .atcall import AtCall
    from .classify import Fault
    from .ladder import RungResult
    from .options import GuardOptions
    from .situation import Situation

__all__ = ["GuardRun", "Trial", "count_ooms", "to_stderr"]

SHARE = 0.25
"""Of a card: below it no operation is watched, where requests cannot be met."""
_INSTEAD = "an operation that finds no room is tried again by itself"
_TOLD: set[str] = set()
"""Reasons why requests cannot be met that were said: once a kernel."""
_SHOWN = "the plain cell would have shown this error and gone on; the guard ends the cell"


def to_stderr(line: str) -> None:
    """One line, shown at once."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class Trial:
    """What is known of one statement: what goes back before a repeat, and what its failures were."""

    attempts = 0
    plain = 0
    """Repeats that --retries counts."""
    fault: Fault | None = None
    device: int | None = None
    status = "error"
    refused: tuple[str, ...] = ()
    """Why it does not run again."""
    random: Mapping[str, Any] | None = None
    """Random states before the first attempt, where the user allows a repeat."""
    figures: frozenset[int] = frozenset()
    ranks: tuple[tuple[str, int], ...] = ()
    """Collectives that each group of this rank had entered."""
    signature: object = None
    stuck = False
    """The last two attempts failed alike."""
    over = False
    """The repeat showed that none can succeed."""
    held: int | None = None
    """Bytes allocated when the request failed."""
    situation: Situation | None = None

    def __init__(self) -> None:
        self.memory: dict[str, Any] = {}
        """What the rungs remember from one attempt to the next."""


class GuardRun:
    """The rescuer of one guarded cell (see `cuda_magic.cells.rescuer`).

    Parameters
    ----------
    options
        What was asked for.
    shell
        The IPython shell whose references to earlier failures may be let go; None in a script.
    say
        Takes one line for each repeat.
    bind
        Takes the report, on success too.
    """

    def __init__(
        self,
        options: GuardOptions,
        shell: Any = None,
        say: Callable[[str], None] = to_stderr,
        bind: Callable[[Report], None] = lambda report: None,
    ) -> None:
        self.options, self.shell, self.bind = options, shell, bind
        self.say: Callable[[str], None] = (lambda line: None) if options.quiet else say
        self.rungs: list[RungResult] = []
        self.notes: list[str] = []
        self.rescued = False
        self.inner = False
        """A guarded function, which may run inside a guarded cell."""
        self.trial = Trial()
        self.step: Step | None = None
        self.done: list[ast.AST] = []
        """The statements that have ended."""
        self.namespace: dict[str, Any] = {}
        self.roots: tuple[Any, ...] = ()
        self.calls: AtCall | None = None
        self.modes = ExitStack()
        """What will be in force around the next attempt."""
        self.after: list[Callable[[], tuple[str, int]]] = []
        """Rungs that were in force: each ends here, and says what it did and how many errors it met."""
        self.ooms: int | None = None
        """The allocator's own count of out-of-memory errors when the cell began."""
        self.seen = 0
        """Errors of that count that reached the guard."""
        self.session: Session | None = None
        """Makes room inside the allocation, from the first statement on."""
        self._waits = ""
        self._collects = False
        """Whether Python's collector is to be switched on again."""
        self._in_force = ExitStack()
        self._inside: Inside | None = None
        """In force around an attempt that calls a magic."""
        self._closed = False

    @property
    def over(self) -> bool:
        """Whether a repeat showed that none can succeed."""
        return self.trial.over

    # -- while a cell runs
    def before(self, step: Step, namespace: dict[str, Any]) -> None:
        allocator: Allocator | None = None
        if self.ooms is None:
            allocator = machine().allocator()
            if allocator is not None:
                allocator.settle()  # what an earlier cell had to leave elsewhere
            self.ooms = count_ooms(allocator)
        self.namespace = namespace
        self._arm(allocator, step, namespace)
        if self.step is None or step.index != self.step.index:
            if self.step is not None:
                self.done.append(self.step.node)  # what they read is asked only in a rescue
            self.step, self.trial = step, Trial()
            self.trial.ranks = distributed.position()
            if self.options.consent:
                self.trial.figures = figures.numbers()
                self.trial.random = randomness.take(allocator or machine().allocator())
        self.trial.attempts += 1

    def _arm(self, allocator: Allocator | None, step: Step, namespace: dict[str, Any]) -> None:
        """From here on room is made where memory is asked for. A statement may have imported the library."""
        if self.session is None:
            options = self.options
            moving = not options.no_move and not options.only
            own = bool(options.shrink or options.otherwise or options.wait)
            self.session = Session(
                namespace,
                errors=self._errors,
                say=self._say_room,
                moves=moving,
                own_way=own,
                limit=options.limit,
            )
        allocator = allocator or machine().allocator()
        self.session.begin(allocator, step.code)
        if self.session.reason and allocator is not None and allocator.started() and self.session.reason not in _TOLD:
            _TOLD.add(self.session.reason)
            self.say(f"cuda_guard: requests for memory cannot be met here: {self.session.reason}; {_INSTEAD}")
        if self.session.reason and self.options.limit is not None:
            note = f"--limit is not held here: {self.session.reason}"
            self.notes += [] if note in self.notes else [note]

    def _say_room(self, line: str) -> None:
        self.say(f"cuda_guard: {line}")

    def _errors(self, device: int) -> str:
        """Let go of earlier failures, and of shown values if the user says so; which."""
        from .rungs.holders import let_go

        return let_go(machine().allocator(), device, self.namespace, self.shell, self.options.free_outputs)

    def during(self, step: Step) -> AbstractContextManager[Any] | None:
        inside, code = None, step.code
        if code is not None and ("run_line_magic" in code.co_names or "run_cell_magic" in code.co_names):
            inside = self._in_magic(code)
        self._inside = inside
        if self.trial.attempts < 2 and not self._unmet():
            return inside
        entered = self._in_force = self.modes.pop_all()
        for mode in (self._at_call(), inside):
            if mode is not None:
                try:
                    entered.enter_context(mode)
                except BaseException:
                    entered.close()
                    raise
        return entered

    def _unmet(self) -> bool:
        """Whether requests cannot be met here, and a share of the card is used: then an operation is tried again."""
        allocator = machine().allocator()
        if self.session is None or not self.session.reason or allocator is None or not allocator.started():
            return False
        for device in allocator.devices():
            memory = allocator.driver_memory(device)
            if memory is not None and allocator.stats(device).reserved > SHARE * memory[1]:
                return True
        return False

    def _in_magic(self, code: CodeType) -> Inside | None:
        """What raises an error that a magic would show itself."""
        if self.shell is None:
            return None
        from ..cells.inside import Inside
        from .classify import known

        return Inside(self.shell, code, known)

    def _at_call(self) -> AbstractContextManager[Any] | None:
        """Each op watched; None where that cannot be."""
        if self.options.excluded("retry"):
            return None
        allocator = machine().allocator()
        ops = allocator.ops() if allocator is not None else None
        if allocator is None or ops is None:
            return None
        reason = ops.retry_refused()
        if reason:
            note = f"no op is repeated at the call: {reason}"
            self.notes += [] if note in self.notes else [note]
            return None
        if self.calls is None:
            from .atcall import AtCall

            self.calls = AtCall(self.options, self.shell, allocator, ops)
        self.calls.namespace = self.namespace
        return ops.at_call(self.calls)

    # -- after a failure
    def noticed(self, error: BaseException, step: Step) -> bool:
        self._hold_collector()
        again = False
        try:
            from .failed import noticed

            again = noticed(self, error, step)
        finally:
            if not again:
                self.let_collector()
        return again

    def recover(self, step: Step, namespace: dict[str, Any], lost: tuple[str, ...] = ()) -> bool:
        from .failed import recover

        if self._inside is not None:
            self._inside.put_back(namespace)
        try:
            return recover(self, step, namespace, lost)
        finally:
            self.let_collector()

    def _hold_collector(self) -> None:
        """No collection of Python's own from here until what is free has been read again.

        What it gave back between the two readings would be taken for what the statement itself had made and needs
        again: too much then seems to be needed.
        """
        if gc.isenabled():
            gc.disable()
            self._collects = True

    def let_collector(self) -> None:
        """Python may collect again, if it did before."""
        if self._collects:
            self._collects = False
            gc.enable()

    def attempt_ended(self) -> None:
        """Rungs that were in force: surely off, even where an interrupt came into their exit, and what they did."""
        while self.after:
            note, errors = self.after[-1]()
            self.after.pop()
            self.seen += errors
            self.notes += [note] if note else []

    # -- at the end of a cell
    def gave_up(self, error: BaseException, step: Step) -> Report | None:
        if self._inside is not None and self._inside.took:
            self.notes.append(_SHOWN)
        self._close()
        if self.trial.fault is None:
            self.bind(self._report("error"))
            return None
        report = self._report(self.trial.status, error)
        self.bind(report)
        return report

    def finished(self) -> None:
        self._close()
        calls = self.calls.rescues if self.calls is not None else ()
        if calls:
            times = sum(call.times for call in calls)
            ops = "one operation" if times == 1 else f"{times} operations"
            self.say(f"cuda_guard: {ops} ran out of GPU memory; room was made and nothing else was repeated")
        made = self.made()
        summary = self._summary() if made else ""
        if summary:
            self.say(f"cuda_guard: {summary}")
        if self._waits:  # under an error the report says it
            self.say(f"cuda_guard: {self._waits}")
        self.bind(self._report("rescued" if self.rescued or calls or made else "ok"))

    def made(self) -> list[Done]:
        """What made room inside the allocation."""
        handler = self.session.handler if self.session is not None else None
        return handler.helped() if handler is not None else []

    def _summary(self) -> str:
        """One line at the end of a cell for which room was made; empty where that was never enough."""
        assert self.session is not None and self.session.handler is not None
        times = self.session.handler.requests - self.session.handler.failed
        if not times:
            return ""
        count = "once" if times == 1 else "twice" if times == 2 else f"{times} times"
        out = self.session.out_bytes
        went = f" ({bytes_text(out)} went to the host)" if out else ""
        repeated = self.trial.attempts > 1 or bool(self.calls is not None and self.calls.rescues)
        return f"GPU memory ran out {count}; room was made{went}" + ("" if repeated else " and nothing was repeated")

    def left(self) -> None:
        """An interrupt may have come where nobody was told of it: what is in force ends now."""
        self.let_collector()
        self._in_force.close()
        if self._inside is not None:
            self._inside.__exit__()
        if not self._closed:
            self._close()

    def _close(self) -> None:
        self.modes.close()
        self.attempt_ended()
        if self.session is not None:
            self.session.end()
        allocator = machine().allocator()
        before = count_ooms(allocator) if allocator is not None and allocator.parked() else None
        waits = waiting.note(self.shell, self.namespace, ended=not self.inner)
        if before is not None:  # no room on the way back: no error of the user's
            self.seen += count_ooms(allocator) - before
        if waits:
            self.notes.append(waits)
            self._waits = waits
        allocator = machine().allocator() if self.rungs or self.calls is not None else None
        if allocator is not None:
            allocator.release_host(excess=True)
        self._closed = True

    def _report(self, status: str, error: BaseException | None = None) -> Report:
        unseen = self.ooms is not None and count_ooms(machine().allocator()) > self.ooms + self.seen
        session = self.session
        asked = session is not None and session.handler is not None and session.handler.requests
        if status == "ok" and not self.notes and not unseen and not asked:
            return _nothing_to_rescue(machine().label)
        from .outcome import report

        return report(self, status, error)


@functools.cache
def _nothing_to_rescue(label: str) -> Report:
    return Report("ok", label=label)


def count_ooms(allocator: Allocator | None) -> int:
    """Out-of-memory errors that the library has raised so far, on all devices, but those that paging dealt with."""
    if allocator is None:
        return 0
    return sum(allocator.ooms(device) for device in allocator.devices()) - allocator.absorbed()

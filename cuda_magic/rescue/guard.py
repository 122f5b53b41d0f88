"""The guard of one cell, and of one function of a script: marks before a statement, the ladder after its failure.

The path of a cell that succeeds is light: no collection, no CUDA call, and the ladder's modules are not imported.
"""

from __future__ import annotations

import ast
import functools
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ..cells.rescuer import Step
from ..machine import machine
from ..memory.torch import ranks
from . import figures, marks, randomness, waiting
from .options import NAMES, GuardOptions
from .report import Report

if TYPE_CHECKING:
    from ..memory.allocator import Allocator, Paged
    from .atcall import AtCall
    from .classify import Fault
    from .ladder import RungResult
    from .setaside import SetAside
    from .situation import Situation

__all__ = ["Guard", "GuardRun", "guard"]

F = TypeVar("F", bound=Callable[..., Any])


OWN_STEPS = ("expandable", "wait", "shrink", "else", "activations", "page", "cudamalloc")
"""Rungs whose repeats are not counted by --retries: each is tried once, or ends by itself."""

_NO_MARKS = marks.Marks(None, {}, {})
"""Of a statement that cannot change anything; nobody writes to it."""


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


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
        say: Callable[[str], None] = _to_stderr,
        bind: Callable[[Report], None] = lambda report: None,
    ) -> None:
        self.options, self.shell, self.bind = options, shell, bind
        self.say: Callable[[str], None] = (lambda line: None) if options.quiet else say
        self.rungs: list[RungResult] = []
        self.notes: list[str] = []
        self.rescued = False
        self.inner = False
        """A guarded function, which may run inside a guarded cell."""
        self._calls: AtCall | None = None
        self._waits = ""
        self._done: list[ast.AST] = []
        self._acts = True
        self._marker: marks.Marker | None = None
        self._modes = ExitStack()
        self._in_force = ExitStack()
        self._closed = False
        self._after: list[Callable[[], tuple[str, int]]] = []
        self._ooms: int | None = None
        self._seen = 0
        self._step: Step | None = None
        self._worst: tuple[int, Step | None, Fault | None] = (1, None, None)
        self.namespace: dict[str, Any] = {}
        self.roots: tuple[Any, ...] = ()
        self.set_aside: SetAside | None = None
        if options.reserve:
            from .setaside import SetAside

            self.set_aside = SetAside(options.reserve, self.notes)
        self._new_statement()

    def _new_statement(self) -> None:
        self.attempts = self.plain = 0
        self.fault: Fault | None = None
        self.device: int | None = None
        self.status = "error"
        self.refused: list[str] = []
        self._random: dict[str, Any] | None = None
        self._figures: frozenset[int] = frozenset()
        self._saved: list[Callable[[], None]] = []
        self._kept: tuple[str, ...] = ()
        self._marks: marks.Marks | None = _NO_MARKS
        """None: they could not be taken."""
        self._signature: object = None
        self._stuck = False
        self.over = False
        """The repeat showed that none can succeed."""
        self._held: int | None = None
        self._situation: Situation | None = None
        self._memory: dict[str, Any] = {}

    # -- while a cell runs
    def before(self, step: Step, namespace: dict[str, Any]) -> None:
        allocator: Allocator | None = None
        if self._ooms is None:
            allocator = machine().allocator()
            if allocator is not None:
                allocator.settle()  # what an earlier cell had to leave elsewhere
            self._ooms = _count_ooms(allocator)
        self.namespace = namespace
        last = self._step
        new = last is None or step.index != last.index
        if new:
            if last is not None:
                self._done.append(last.node)  # what they read is asked only in a rescue
                if self._acts or self.attempts > 1:
                    self._new_statement()
            self._step, self.attempts = step, 0
            self._acts = marks.may_act(step.node)
            if self.set_aside is not None:
                self.set_aside.before(allocator or machine().allocator())
        self.attempts += 1
        if not self._acts:
            return
        self._marks = None
        allocator = allocator or machine().allocator()
        if new:
            self._figures = figures.numbers()
            if self.options.checkpoint:
                self._checkpoint(step, namespace)
        if self._marker is None:
            self._marker = marks.Marker()
        taken = self._marker.take(step, namespace, allocator, self._kept)
        if new:
            self._random = randomness.take(taken.draw, allocator)
        taken.draw.clear()
        self._marks = taken

    def _checkpoint(self, step: Step, namespace: Mapping[str, Any]) -> None:
        from ..errors import Refused
        from . import checkpoint

        read = marks.names_read(step.node)
        names = [name for name in self.options.checkpoint if name in namespace]
        if not any(checkpoint.uses(name, read, namespace, not step.source) for name in names):
            return
        for name in names:  # all together: an optimizer reaches the model's parameters
            try:
                self._saved += checkpoint.save([name], namespace)
                self._kept += (name,)
            except Refused as refused:
                self.notes.append(f"{name}: {refused}")

    def during(self, step: Step) -> AbstractContextManager[Any] | None:
        if self.attempts < 2 and not self.options.retry_at_call:
            return None
        entered = self._in_force = self._modes.pop_all()
        calls = self._at_call()
        if calls is not None:
            try:
                entered.enter_context(calls)
            except BaseException:
                entered.close()
                raise
        return entered

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
        if self._calls is None:
            from .atcall import AtCall

            self._calls = AtCall(self.options, self.shell, allocator, ops)
        self._calls.namespace = self.namespace
        return ops.at_call(self._calls)

    def _attempt_ended(self) -> None:
        """Rungs that were in force: surely off, even where an interrupt came into their exit, and what they did."""
        while self._after:
            note, errors = self._after[-1]()
            self._after.pop()
            self._seen += errors
            self.notes += [note] if note else []

    def _made_by_the_repeat(self, error: BaseException) -> bool:
        """Whether a plain run would not have met this error: then the earlier fault stands."""
        if self.attempts < 2 or self.fault is None:
            return False
        from .repeated import find

        row = find(error)
        if row is None:
            return False
        self.notes.append(row.why)
        self.over = not row.ladder
        return True

    def noticed(self, error: BaseException, step: Step) -> bool:
        from .classify import classify, judge
        from .situation import device_of, room_of

        self._attempt_ended()
        fault = classify(error)
        if fault is None and self._made_by_the_repeat(error):
            fault = self.fault
        elif fault is not None:
            self._seen += fault.error == "OutOfMemoryError"  # what the allocator's own count rose by
        if fault is None:
            self.fault, self.status = None, "error"
            return False
        if self.over:
            return True  # so that the first error is the one that shows
        allocator = machine().allocator()
        fault = self.fault = judge(fault, allocator)
        self.device = device_of(fault, allocator)
        smaller = bool(self.options.shrink or self.options.otherwise)
        if fault.kind.repeat != "ladder" and not (fault.kind.id == "too-large" and smaller):
            self.status = "not-repeated"
            return False
        room = room_of(allocator, self.device)
        self._held = _held(room.allocated, fault.sizes.allocated) if room is not None else None
        signature = (fault.kind.id, fault.sizes.requested, self._held or fault.sizes.allocated)
        self._stuck, self._signature = signature == self._signature, signature
        self.refused = (self._marks or _NO_MARKS).entered(self.namespace)
        if not self.options.repeat_anyway:
            self.refused += self._changed(allocator)
        if self.refused:
            self.status = "refused"
            return False
        self.status = "failed"
        if allocator is not None:
            self._memory["recorded"] = allocator.recorded(error)
        return self.plain < self.options.retries or smaller or self.options.wait > 0

    def _changed(self, allocator: Allocator | None) -> list[str]:
        if self._marks is None:
            return ["what it may change could not be marked"]
        return self._marks.changed(self.namespace, allocator)

    def recover(self, step: Step, namespace: dict[str, Any], lost: tuple[str, ...] = ()) -> bool:
        from .ladder import climb
        from .situation import Situation, room_of

        assert self.fault is not None
        if self.over:
            self.status = "failed"
            return False
        gone = [name for name in lost if name not in self._kept]
        if gone and not self.options.repeat_anyway:
            self.refused = [f"rebound, the earlier value is gone: {', '.join(gone)}"]
            self.status = "refused"
            return False
        allocator = machine().allocator()
        if not self._put_back():
            return False
        room = room_of(allocator, self.device)
        request = self.fault.sizes.requested
        need = None
        if request is not None and room is not None and self._held is not None:
            need = request + max(0, self._held - room.allocated)
        situation = self._situation = Situation(
            fault=self.fault,
            options=self.options,
            allocator=allocator,
            device=self.device,
            namespace=namespace,
            shell=self.shell,
            held=self._held,
            need=need,
            stuck=self._stuck,
            spent=self.plain >= self.options.retries or self.fault.kind.id == "too-large",
            read_before=frozenset().union(*map(marks.names_read, self._done)),
            memory=self._memory,
            node=step.node,
            roots=self.roots,
            reserve=self.set_aside.held if self.set_aside is not None else None,
            enter=self._modes.enter_context,
            after=self._after.append,
            say=self.say,
            readings=_read_devices,
        )
        try:
            results, repeat = climb(situation, self.attempts)
        except BaseException:
            self._modes.close()
            raise
        self.rungs += results
        if not repeat:
            self._modes.close()
            return False
        if self._random is not None:
            randomness.put_back(self._random, allocator)
            figures.close_new(self._figures)
        last = results[-1]
        if last.id not in OWN_STEPS:
            self.plain += 1
        self.rescued = True
        self._announce(step, last)
        return True

    def _put_back(self) -> bool:
        try:
            allocator = machine().allocator()
            if allocator is not None and self._marks is not None and self._marks.tensors is not None:
                allocator.undo(self._marks.tensors)
            for back in self._saved:
                back()
        except Exception as error:  # noqa: BLE001 - out of memory on the way back, or the user's own load_state_dict
            self.refused = [f"the checkpoint could not be put back ({type(error).__name__}); the state is mixed"]
            self.status = "refused"
            return False
        return True

    def _announce(self, step: Step, last: RungResult) -> None:
        where = f"line {step.first_line}" if step.source else "the function"
        how = f"{last.id}: {last.reason}" if last.id in ("shrink", "else") else "room was made"
        self.say(f"cuda_guard: {where} ran out of GPU memory; {how}; it runs again (attempt {self.attempts + 1})")

    # -- at the end of a cell
    def gave_up(self, error: BaseException, step: Step) -> Report | None:
        self._close()
        if self.fault is None:
            self.bind(self._report("error", None))
            return None
        report = self._report(self.status, error)
        self.bind(report)
        return report

    def finished(self) -> None:
        self._close()
        calls = self._calls.rescues if self._calls is not None else ()
        if calls:
            times = sum(call.times for call in calls)
            ops = "one operation" if times == 1 else f"{times} operations"
            self.say(f"cuda_guard: {ops} ran out of GPU memory; room was made and nothing else was repeated")
        if self._waits:  # under an error the report says it
            self.say(f"cuda_guard: {self._waits}")
        self.bind(self._report("rescued" if self.rescued or calls else "ok", None))

    def left(self) -> None:
        """An interrupt may have come where nobody was told of it: what is in force ends now."""
        self._in_force.close()
        if not self._closed:
            self._close()

    def _close(self) -> None:
        self._modes.close()
        self._attempt_ended()
        allocator = machine().allocator()
        before = _count_ooms(allocator) if allocator is not None and allocator.parked() else None
        waits = waiting.note(self.shell, self.namespace, ended=not self.inner)
        if before is not None:  # no room on the way back: no error of the user's
            self._seen += _count_ooms(allocator) - before
        if waits:
            self.notes.append(waits)
            self._waits = waits
        allocator = machine().allocator() if self.rungs or self._calls is not None else None
        if allocator is not None:
            allocator.release_host(excess=True)
        if self.set_aside is not None:
            self.set_aside.after(not self.options.no_move)
        self._closed = True

    def _paged(self) -> Paged | None:
        """What was paged during this cell; None where nothing was."""
        tried = any(r.id == "page" and r.state == "on" for r in self.rungs)
        if not tried and not (self._calls is not None and any("page" in c.how for c in self._calls.rescues)):
            return None
        allocator = machine().allocator()
        ops = allocator.ops() if allocator is not None else None
        return ops.paged() if ops is not None else None

    def _absorbed(self) -> int:
        """Out-of-memory errors that were dealt with at the call."""
        paged = self._paged()
        return (self._calls.absorbed if self._calls is not None else 0) + (paged.errors if paged is not None else 0)

    def _report(self, status: str, error: BaseException | None) -> Report:
        handled = 0
        if self._ooms is not None:
            handled = max(0, _count_ooms(machine().allocator()) - self._ooms - self._seen - self._absorbed())
        if status == "ok" and not handled and not self.notes:
            return _nothing_to_rescue(machine().label)
        fault, step = self.fault, self._step
        common: dict[str, Any] = {
            "attempts": max(1, self.attempts),
            "rungs": tuple(self.rungs),
            "notes": (*self.notes, *(self._calls.notes if self._calls is not None else ())),
            "handled": handled,
            "calls": self._calls.rescues if self._calls is not None else (),
            "paged": self._paged(),
            "label": machine().label,
        }
        if status in ("ok", "error", "rescued") or fault is None or step is None:
            if self.rescued:
                attempts = max((r.attempt for r in self.rungs), default=0) + 1
                common["attempts"] = attempts if status == "rescued" else common["attempts"]
            return Report(status, **common)
        from .advice import next_steps
        from .situation import Situation
        from .survey import survey

        s = self._situation or Situation(
            fault, self.options, machine().allocator(), self.device, self.namespace, self.shell, readings=_read_devices
        )
        s.fault = fault
        where = survey(s, error)
        behind = ranks.left_behind()
        if behind:
            common["notes"] += (behind,)
        if self.refused:
            common["notes"] += ("not repeated, since that would not give the same numbers: " + "; ".join(self.refused),)
        room, sizes = where.room, fault.sizes
        script = not step.source
        return Report(
            status,
            line=None if script else step.first_line,
            last_line=None if script else step.last_line,
            kind=fault.kind.id,
            sentence=fault.sentence,
            error=fault.error,
            device=self.device if self.device is not None else sizes.device,
            requested=sizes.requested,
            free=room.driver if room else sizes.free,
            cached=room.cached if room else sizes.unallocated,
            largest_free=room.largest if room else None,
            capacity=where.capacity,
            holders=where.holders,
            next_steps=next_steps(s, where, self.refused, step.node),
            loops=isinstance(step.node, (ast.For, ast.AsyncFor, ast.While)),
            **common,
        )


def _held(now: int, told: int | None) -> int:
    """Bytes allocated when the request failed: what unfinished expressions held is gone by now, the error names it.

    Its figure has two decimals, so a small difference is none.
    """
    return told if told is not None and told > now + (16 << 20) else now


@functools.cache
def _nothing_to_rescue(label: str) -> Report:
    return Report("ok", label=label)


def _count_ooms(allocator: Allocator | None) -> int:
    return sum(allocator.ooms(device) for device in allocator.devices()) if allocator is not None else 0


def _read_devices() -> Any:
    try:
        return machine().devices().read(slow=False)
    except Exception:  # noqa: BLE001 - no reading is no reason to lose the rescue
        return None


class Guard:
    """What `guard` gives: a decorator of one function that may be repeated, or a context manager.

    A ``with`` block cannot be repeated: there the guard only adds the report below the error.
    `report` is that of the last run.
    """

    def __init__(self, options: GuardOptions) -> None:
        self.options = options
        self.report: Report | None = None
        self._run: GuardRun | None = None

    def _bind(self, report: Report) -> None:
        self.report = report

    def _new(self, options: GuardOptions) -> GuardRun:
        from ..kernel.holders import current_shell

        run = GuardRun(options, current_shell(), bind=self._bind)
        run.inner = True
        return run

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            return self._call(function, args, kwargs)

        guarded.guard = self  # type: ignore[attr-defined]
        return guarded  # type: ignore[return-value]

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = self._new(self.options)
        run.roots = (function, *args, *kwargs.values())
        step = _whole()
        names: dict[str, Any] = getattr(function, "__globals__", {})
        given = {f"argument {i + 1}": a for i, a in enumerate(args)} | {f"argument {k}": v for k, v in kwargs.items()}
        first: Exception | None = None
        while True:
            run.before(step, {**names, **given})
            try:
                with run.during(step) or nullcontext():
                    value = function(*args, **kwargs)
            except Exception as error:
                run.namespace = {**names, **given}
                if not run.noticed(error, step):
                    self._show(run.gave_up(error, step))
                    raise
                failure = first if run.over and first is not None else error
                first = failure
                traceback.clear_frames(error.__traceback__)
                run.namespace = names  # and no copy of it, which would hold every value once more
            else:
                run.finished()
                return value
            # outside of except: now the failed call's tensors are gone
            if not run.recover(step, names):
                self._show(run.gave_up(failure, step))
                raise failure
            del failure

    def _show(self, report: Report | None) -> None:
        if report is not None:
            _to_stderr(repr(report))

    def __enter__(self) -> Guard:
        self._run = self._new(GuardOptions(retries=0, quiet=self.options.quiet))
        self._run.before(_whole(), _caller_names())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run, self._run = self._run, None
        assert run is not None
        if error is None:
            run.finished()
            return
        run.noticed(error, _whole())
        self._show(run.gave_up(error, _whole()))


def _caller_names() -> dict[str, Any]:
    return sys._getframe(2).f_globals


def _whole() -> Step:
    """A function, or a block, as one step."""
    return Step(0, "", 1, 1, frozenset(), False, None)  # type: ignore[arg-type]


@overload
def guard(function: F) -> F: ...
@overload
def guard(
    *,
    retries: int = 3,
    wait: float = 0.0,
    shrink: str | None = None,
    grow: str | None = None,
    checkpoint: tuple[str, ...] = (),
    repeat_anyway: bool = False,
    no_move: bool = False,
    move_anyway: bool = False,
    retry_at_call: bool = False,
    only: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    reserve: int | str = 0,
    park: str | None = None,
    quiet: bool = False,
) -> Guard: ...
def guard(function: Any = None, **options: Any) -> Any:
    """``%%cuda_guard`` for scripts: a decorator of a function that may be repeated as a whole.

    Parameters
    ----------
    retries, wait, grow, checkpoint, repeat_anyway, no_move, move_anyway, retry_at_call, only, without, quiet
        As the options of ``%%cuda_guard``; names are those of the function's module.
    reserve : int or str
        Bytes, or ``"1GiB"``: set aside to serve only when the memory is full.
    park : str
        ``"cuda:1"``: another card where tensors wait, in place of the host.
    shrink : str
        ``"batch_size"`` or ``"batch_size=8"``: a global variable of the function's module.

    Raises
    ------
    UserError
        For an option or a rung that does not exist.

    Examples
    --------
    >>> @cuda_magic.guard(shrink="batch_size=8")
    ... def step(): ...
    >>> with cuda_magic.guard():  # no repeat: the report below the error
    ...     train()
    """
    from ..errors import UserError, nearest
    from ..render.units import parse_bytes
    from .options import other_card

    known = {f for f in GuardOptions.__dataclass_fields__ if f not in ("otherwise", "report", "free_outputs")}
    for name in options:
        if name not in known:
            raise UserError(f"guard: no option {name!r}.{nearest(name, known)}")
    for name in (*options.get("only", ()), *options.get("without", ())):
        if name not in NAMES:
            raise UserError(f"guard: no rung {name!r}.{nearest(name, NAMES)}")
    if isinstance(options.get("shrink"), str):
        name, _, floor = options["shrink"].partition("=")
        options["shrink"] = (name, int(floor or 1))
    if isinstance(options.get("reserve"), str):
        try:
            options["reserve"] = parse_bytes(options["reserve"])
        except ValueError as error:
            raise UserError(f"guard: reserve: {error}.") from None
    if options.get("park") is not None:
        options["park"] = other_card(str(options["park"]), "guard: park")
    made = Guard(GuardOptions(**options))
    return made if function is None else made(function)

"""`cuda_magic.guard`: the guard for scripts, of a function, which runs again only if it may, or around a block."""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar, overload

from ..cells.rescuer import Step
from ..errors import UserError, nearest
from .guard import GuardRun, to_stderr
from .options import NAMES, GuardOptions
from .report import Report

__all__ = ["Guard", "guard"]

F = TypeVar("F", bound=Callable[..., Any])

_OF_CELLS = ("otherwise", "report", "free_outputs", "wait_is_set")
"""Options that a script has not."""


class Guard:
    """What `guard` gives: a decorator of one function, or a context manager.

    Room is made where memory is asked for, in both. After an error outside of torch's allocator a ``with`` block cannot
    be repeated: there the guard adds the report below it.
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
        _refuse_what_runs_later(function)

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            return self._call(function, args, kwargs)

        guarded.guard = self  # type: ignore[attr-defined]
        return guarded  # type: ignore[return-value]

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = self._new(self.options)
        run.roots = (function, *args, *kwargs.values())
        try:
            return self._attempts(run, function, args, kwargs)
        finally:
            run.let_collector()

    def _attempts(
        self, run: GuardRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        step = _whole()
        names: dict[str, Any] = getattr(function, "__globals__", {})
        first: Exception | None = None
        while True:
            run.before(step, names)
            try:
                with run.during(step) or nullcontext():
                    value = function(*args, **kwargs)
            except Exception as error:
                if not run.noticed(error, step):
                    self._show(run.gave_up(error, step))
                    raise
                failure = first if run.over and first is not None else error
                first = failure
                traceback.clear_frames(error.__traceback__)
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
            to_stderr(repr(report))

    def __enter__(self) -> Guard:
        self._run = self._new(replace(self.options, retries=0))
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


def _refuse_what_runs_later(function: Any) -> None:
    """A call of a coroutine function or a generator function runs nothing of it: there would be nothing to guard."""
    if not callable(function):
        raise UserError(f"guard: {function!r} is no function; options are given by name, as in guard(retries=2).")
    for test, kind, when in (
        (inspect.iscoroutinefunction, "a coroutine function", "is awaited"),
        (inspect.isasyncgenfunction, "a generator", "is looped over"),
        (inspect.isgeneratorfunction, "a generator", "is looped over"),
    ):
        if test(function):
            name = getattr(function, "__name__", "the function")
            raise UserError(f"guard: {name} is {kind}, which runs only when it {when}; guard a function that it calls.")


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
    repeat: bool = False,
    no_move: bool = False,
    only: tuple[str, ...] | str = (),
    without: tuple[str, ...] | str = (),
    limit: int | str | None = None,
    quiet: bool = False,
) -> Guard: ...
def guard(function: Any = None, **options: Any) -> Any:
    """``%%cuda_guard`` for scripts: a decorator of a function, or a context manager around a block.

    A function is repeated, as a whole, only with `repeat`, `shrink` or `wait`; otherwise the guard adds the report
    below the error.

    Parameters
    ----------
    retries, wait, grow, no_move, only, without, quiet
        As the options of ``%%cuda_guard``; several names as a tuple, or in one text with commas.
    repeat : bool
        You know that the function can run again from its start. Random states go back, nothing else does.
    limit : int or str
        Bytes of the current device, or ``"10GiB"``, that may be used meanwhile.
    shrink : str
        ``"batch_size"`` or ``"batch_size=8"``: a global variable of the function's module.

    Raises
    ------
    UserError
        For an option or a rung that does not exist or is gone, and a function whose call runs nothing (``async``, a
        generator).

    Examples
    --------
    >>> @cuda_magic.guard(shrink="batch_size=8")
    ... def step(): ...
    >>> with cuda_magic.guard():
    ...     train()
    """
    from ..render.units import parse_bytes
    from .options import GONE, shrunk

    known = {f for f in GuardOptions.__dataclass_fields__ if f not in _OF_CELLS}
    for name in options:
        flag = "--" + name.replace("_", "-")
        if flag in GONE:
            raise UserError(f"guard: {name} is gone: {GONE[flag].replace('--repeat', 'repeat=True')}.")
        if name not in known:
            raise UserError(f"guard: no option {name!r}.{nearest(name, known)}")
    for name in ("only", "without"):  # one name, or several with commas, as on a cell's first line
        if isinstance(options.get(name), str):
            options[name] = tuple(part.strip() for part in options[name].split(",") if part.strip())
    for name in (*options.get("only", ()), *options.get("without", ())):
        if name not in NAMES:
            raise UserError(f"guard: no rung {name!r}.{nearest(name, NAMES)}")
    if isinstance(options.get("shrink"), str):
        options["shrink"] = shrunk(options["shrink"], "guard: shrink")
    if isinstance(options.get("limit"), str):
        try:
            options["limit"] = parse_bytes(options["limit"])
        except ValueError as error:
            raise UserError(f"guard: limit: {error}.") from None
    chosen = GuardOptions(**options)
    if chosen.retries < 0 or not chosen.wait >= 0:  # so that nan is refused too
        raise UserError("guard: retries and wait are 0 or more.")
    if chosen.grow and not chosen.shrink:
        raise UserError("guard: grow needs shrink, whose variable goes down.")
    made = Guard(chosen)
    return made if function is None else made(function)

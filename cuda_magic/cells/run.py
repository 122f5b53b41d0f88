"""Runs the body of a cell magic as the plain cell would run, one top-level statement at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any, TypeVar

from IPython.display import display

from ..errors import UserError
from .body import Body, Compiled
from .failure import Failure
from .names import Saved
from .rescuer import Rescuer

__all__ = ["run", "run_body", "run_plain"]

T = TypeVar("T")


def run(magics: Any, body: str, rescuer: Rescuer) -> Any:
    """Run `body` with `rescuer` told of each statement.

    Parameters
    ----------
    magics
        The loaded magics: their ``shell`` and ``hooks`` are used.
    body
        The cell below the magic's line.
    rescuer
        What is done about a statement that fails.

    Returns
    -------
    object
        The value of the last expression, for IPython to display, or None; a coroutine of it where the cell awaits.

    Raises
    ------
    UserError
        If the cell awaits and this magic is not its first line. Nothing has run then.
    """
    __tracebackhide__ = True
    return _start(magics, body, rescuer, None)


def run_plain(magics: Any, body: str, done: Callable[[], Any] | None = None) -> Any:
    """Run `body` as the plain cell, for a magic that only watches.

    `done` is called when the cell has ended, by an error too; what it returns is displayed below, unless None.
    Returns and raises what `run` does.
    """
    __tracebackhide__ = True
    return _start(magics, body, None, done)


def _start(magics: Any, body: str, rescuer: Rescuer | None, done: Callable[[], Any] | None) -> Any:
    __tracebackhide__ = True
    hooks = magics.hooks
    awaited, hooks.awaited = hooks.awaited, False
    translated = hooks.take(body)
    if translated.awaits and not awaited:
        raise UserError(f"a cell that awaits needs %%{hooks.name} as its very first line.")
    cell = Body.below_magic(hooks, body, translated)
    run = _cell(hooks, cell, rescuer, done)
    return run if awaited else _drive(run)


def run_body(hooks: Any, cell: Body, rescuer: Callable[[], Rescuer]) -> Any:
    """Run a cell that IPython has read itself. `rescuer` makes what is told of each statement, or says why it cannot.

    Returns None; a coroutine where the cell awaits. It raises what the cell raises.
    """
    __tracebackhide__ = True
    run = _cell(hooks, cell, rescuer(), None)
    return run if cell.awaits else _drive(run)


def _drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    __tracebackhide__ = True
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    except _Stopped as stopped:
        error = stopped.error
    else:
        coroutine.close()
        error = RuntimeError("a cell without await waited")  # excluded by _start
    try:
        raise error
    finally:
        del error


class _Stopped(BaseException):
    """Carries a StopIteration of the cell's out of a coroutine, where Python would make a RuntimeError of it."""

    def __init__(self, error: StopIteration) -> None:
        self.error: BaseException = error


def _evaluate(shell: Any, code: CodeType, carry: bool) -> Any:
    __tracebackhide__ = True
    if not carry:
        return eval(code, shell.user_global_ns, shell.user_ns)
    try:
        return eval(code, shell.user_global_ns, shell.user_ns)
    except StopIteration as error:
        raise _Stopped(error) from None


def _whole(error: BaseException) -> BaseException:
    return error.error if isinstance(error, _Stopped) else error


async def _cell(hooks: Any, cell: Body, rescuer: Rescuer | None, done: Callable[[], Any] | None) -> Any:
    __tracebackhide__ = True
    value = None
    stored, carry, watched = hooks.stored, not cell.awaits, rescuer is not None
    try:
        for statement in cell.statements():
            watched = rescuer is not None and not statement.plain
            if rescuer is None or statement.plain:
                result = _evaluate(hooks.shell, statement.code, carry)
                if statement.step.awaits:
                    result = await result
            else:
                result = await _guarded(hooks, statement, rescuer, carry)
            if statement.shown:
                value = result
            del result  # of a statement that is done; `value` is what the cell is worth
    except BaseException as error:
        if rescuer is not None:
            _ask(rescuer.left, None)
        if done is not None:
            hooks.show.expect(_whole(error), _ask(done, None), refused=cell.refused)
        elif not watched or cell.refused is not None:
            hooks.show.expect(_whole(error), refused=cell.refused)
        raise
    if rescuer is not None:
        _ask(rescuer.finished, None)
    if done is not None and (below := _ask(done, None)) is not None:
        display(below)
    # The outer cell ends in a parenthesis: IPython's own check for a semicolon cannot see ours. Like IPython's, it
    # has no effect in a cell that is not stored.
    return None if stored and cell.silenced else value


async def _guarded(hooks: Any, statement: Compiled, rescuer: Rescuer, carry: bool) -> Any:
    """The value of one statement, repeated as often as the rescuer makes room for it."""
    __tracebackhide__ = True
    shell, step = hooks.shell, statement.step
    namespace = shell.user_ns
    first: Failure | None = None
    while True:
        saved = Saved(step, namespace)
        _ask(rescuer.before, None, step, namespace)
        try:
            modes = _ask(rescuer.during, None, step)
            if modes is None:
                result = _evaluate(shell, statement.code, carry)
                return await result if step.awaits else result
            with _Around(modes):
                result = _evaluate(shell, statement.code, carry)
                return await result if step.awaits else result
        except BaseException as error:
            result = None
            whole = _whole(error)
            if not _ask(rescuer.noticed, False, whole, step):
                hooks.show.expect(whole, _ask(rescuer.gave_up, None, whole, step))
                del whole
                raise
            failure = _ask(Failure, None, whole, shell)
            if failure is None:
                hooks.show.expect(whole)
                raise
            del whole
            first = first or failure
            del failure
        # Outside `except`: nothing refers to the failed frames any more, so their memory can be given back.
        made: dict[str, Any] = {}
        try:
            made = _ask(saved.made, made, namespace)
            lost = saved.put_back(namespace)
            del saved
            repeat = _ask(rescuer.recover, False, step, namespace, lost)
        except BaseException as interrupt:  # the user's, while room was being made
            interrupt.__context__ = first.error
            first.attach(interrupt, "", f"{type(interrupt).__name__}: while the statement was being rescued")
            hooks.show.expect(interrupt, _ask(rescuer.gave_up, None, first.error, step))
            namespace.update(made)
            raise
        if not repeat:
            namespace.update(made)  # as the plain cell leaves it: only what may hold memory is gone
            break
        del made
    original = first.error
    first.attach(original)
    hooks.show.expect(original, _ask(rescuer.gave_up, None, original, step), first.text)
    del first
    try:
        if carry and isinstance(original, StopIteration):
            raise _Stopped(original)
        raise original
    finally:
        del original


class _Around:
    """The rescuer's modes around one attempt; an error of theirs is told and does not replace the user's."""

    def __init__(self, modes: AbstractContextManager[Any]) -> None:
        self._modes, self._entered = modes, False

    def __enter__(self) -> None:
        self._entered = _ask(self._enter, False)

    def _enter(self) -> bool:
        self._modes.__enter__()
        return True

    def __exit__(self, *error: Any) -> None:
        if not self._entered:
            return
        try:
            self._modes.__exit__(*error)
        except (Exception, SystemExit, GeneratorExit) as own:  # noqa: BLE001 - ours; the user's goes on
            if own is not error[1]:
                _tell(own)


def _ask(method: Callable[..., T], default: T, *arguments: Any) -> T:
    """What `method` says, or `default` if it fails: an error of ours never stops or hides the user's cell."""
    try:
        return method(*arguments)
    # SystemExit too: an attribute of one of the user's objects may raise it while we look for what holds memory
    except (Exception, SystemExit, GeneratorExit) as own:  # noqa: BLE001 - see above
        _tell(own)
        return default


def _tell(own: BaseException) -> None:
    try:
        text = str(own)
    except (Exception, SystemExit, GeneratorExit):  # noqa: BLE001 - it may be of a class of the user's
        text = "(its text cannot be read)"
    sys.stderr.write(f"cuda_magic: an error of its own, the cell goes on without it: {type(own).__name__}: {text}\n")

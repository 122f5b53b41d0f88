"""A failed attempt: its frames forgotten, its traceback shown as the plain cell would show it."""

from __future__ import annotations

import builtins
import inspect
import os
import sys
import traceback
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import IPython
from IPython.display import display

from .postmortem import Noted

__all__ = ["Failure", "Show", "forget"]

_IPYTHON = str(Path(IPython.__file__).parent) + os.sep
_OURS = str(Path(__file__).parent.parent) + os.sep
_RUN = str(Path(__file__).with_name("run.py"))
_INSIDE = (str(Path(__file__).with_name("inside.py")), "_raise")
"""What lies above belongs to a magic that would have shown the error itself."""
_GROUP: type[BaseException] | None = (  # Python 3.11 has them, and IPython 8 gives them to Python to print
    getattr(builtins, "BaseExceptionGroup", None) if IPython.version_info[0] >= 8 else None
)
_OUTER_CELL = ("get_ipython", "run_cell_magic")


def forget(error: BaseException) -> None:
    """Drop the frames of an error and of those it came from or holds: frames hold what their variables held."""
    for one in _related(error):
        traceback.clear_frames(one.__traceback__)
        for frame, _ in traceback.walk_tb(one.__traceback__):
            if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
                frame.f_locals  # noqa: B018 - up to Python 3.12 a snapshot taken earlier lives on until it is renewed
        one.__traceback__ = None


def _related(error: BaseException) -> list[BaseException]:
    """The error, those that it came from and those that it holds, each once."""
    found: dict[int, BaseException] = {}
    todo = [error]
    while todo:
        one = todo.pop()
        if id(one) not in found:
            found[id(one)] = one
            todo += [e for e in (one.__cause__, one.__context__, *_members(one)) if e is not None]
    return list(found.values())


def _members(error: BaseException) -> tuple[BaseException, ...]:
    try:
        members = getattr(error, "exceptions", ())  # of an exception group
    except Exception:  # noqa: BLE001 - of the user's
        return ()
    return tuple(e for e in members if isinstance(e, BaseException)) if isinstance(members, tuple) else ()


def _holds_group(error: BaseException | None) -> bool:
    """Whether IPython prints this error in Python's own form (it asks the contexts only)."""
    while error is not None:
        if _GROUP is not None and isinstance(error, _GROUP):
            return True
        error = error.__context__
    return False


def _below_us(tb: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that is the cell's own; None if the error left no frame of the cell.

    Whatever stands above our frames called the magic. Below them the cell begins, unless it calls the magic again.
    """
    found, inside, shown = tb, False, False
    while tb is not None:
        code = tb.tb_frame.f_code
        in_magic = _place(tb) == _INSIDE
        if code.co_filename == _RUN or in_magic:
            found, inside, shown = tb.tb_next, True, in_magic
        elif inside and not _is_machinery(code) and not _in_magic(tb):
            break
        tb = tb.tb_next
    while shown and found is not None and _is_machinery(found.tb_frame.f_code):
        found = found.tb_next  # the magic would have left them out
    one = found
    while one is not None:
        while one.tb_next is not None and one.tb_next.tb_frame.f_code.co_filename == _INSIDE[0]:
            one.tb_next = one.tb_next.tb_next
        one = one.tb_next
    return found


def _place(tb: TracebackType) -> tuple[str, str]:
    return tb.tb_frame.f_code.co_filename, tb.tb_frame.f_code.co_name


def _in_magic(tb: TracebackType | None) -> bool:
    """Whether an error of a magic's own code is raised from here on."""
    while tb is not None:
        if _place(tb) == _INSIDE:
            return True
        tb = tb.tb_next
    return False


def _is_machinery(code: CodeType) -> bool:
    name = code.co_filename
    return (
        name.startswith((_OURS, _IPYTHON, "<decorator-gen"))
        or "decorator" in (Path(name).stem, Path(name).parent.name)  # IPython 7.34 wraps magics by that package
        or code.co_names == _OUTER_CELL
        or "__tracebackhide__" in code.co_varnames
    )


def _noted(error: BaseException, tb: TracebackType | None, shell: Any) -> Noted | None:
    """What the debugger is to find; of the error itself from `tb` on."""
    try:
        return Noted([(one, tb if one is error else one.__traceback__) for one in _related(error)], shell.user_ns)
    except Exception:  # noqa: BLE001 - shown without it
        return None


class Failure:
    """An error whose frames are forgotten, with the text of its traceback; what is raised if no rescue succeeds.

    Parameters
    ----------
    error
        The error, while its frames are still there.
    shell
        IPython's shell.
    """

    def __init__(self, error: BaseException, shell: Any) -> None:
        self.error = error
        tb = _below_us(error.__traceback__)
        shower = shell.InteractiveTB
        last = getattr(shower, "tb", None)  # not there before the first error
        records = _Records(shower)
        try:
            if _holds_group(error) or isinstance(error, SyntaxError):
                self.text = traceback.format_exception(type(error), error, tb)
            else:
                self.text = list(shower.structured_traceback(type(error), error, tb, tb_offset=0))
        except Exception:  # noqa: BLE001 - a repr of the user's may fail
            self.text = traceback.format_exception(type(error), error, tb)
        finally:
            shower.tb = last  # it keeps the frames of what it formatted
            records.forget()
        self._noted = _noted(error, tb, shell)
        del tb
        forget(error)

    def attach(self, error: BaseException, *lines: str) -> None:
        """Let IPython show the kept text for `error`, with `lines` below; the debugger finds the frames as noted."""
        if self._noted is not None:
            self._noted.put_back()
        try:
            error._render_traceback_ = _Text([*self.text, *lines])  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001 - it takes no attributes: shown as the debugger sees it
            pass
        del self, error  # the frames that were made anew keep this one


class _Records:
    """Breaks the cycles in which IPython 8 and 9 (stack_data) leave the frames that they formatted.

    Without this the frames would live until a collection, and with them what their variables hold.
    """

    def __init__(self, shower: Any) -> None:
        self._shower, self._seen = shower, []  # type: ignore[var-annotated]
        self._get = getattr(shower, "get_records", None)
        if self._get is not None:
            shower.get_records = self._get_records

    def _get_records(self, *args: Any, **options: Any) -> Any:
        records = self._get(*args, **options)  # type: ignore[misc]
        self._seen += records or ()
        return records

    def forget(self) -> None:
        if self._get is not None:
            vars(self._shower).pop("get_records", None)
        for record in self._seen:
            for part in (getattr(record, "_sd", None), record):
                if hasattr(part, "__dict__"):
                    vars(part).clear()
        self._seen.clear()


class _Text:
    """What ``_render_traceback_`` is called for: the text, and no reference to the error (which would be a cycle)."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def __call__(self) -> list[str]:
        return self.lines


class Show:
    """Shows the next error of a shell without our frames, and what is to stand under it; once.

    IPython calls ``showtraceback`` for each error of a cell. For the error that leaves our cell it is first relieved
    of the frames between IPython's ``run_code`` and the cell, so that traceback, ``%debug``, ``%tb`` and
    ``sys.last_traceback`` are those of the plain cell. Nothing of this is in place unless an error is on its way.
    """

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self._error: int | None = None
        self._below: Any = None
        self._text: list[str] | None = None
        self._refused = False
        self._before: Any = None

    def expect(
        self,
        error: BaseException,
        below: Any = None,
        text: list[str] | None = None,
        refused: BaseException | None = None,
    ) -> None:
        """`error` is about to leave the cell; `below` is displayed under it; `text` replaces its traceback.

        `refused` is the error if the compiler raised it: the plain cell shows it as no error of running code.
        """
        if self._error == id(error) and below is None and text is None:
            return  # told of already, with what belongs below
        self.cancel()
        self._error, self._below = id(error), below
        self._text = text or None
        self._refused = error is refused
        self._before = vars(self.shell).get("showtraceback")
        self.shell.showtraceback = self._showtraceback

    def cancel(self) -> None:
        """Nothing is expected any more."""
        if self._error is None:
            return
        self._error = None
        if vars(self.shell).get("showtraceback") == self._showtraceback:
            if self._before is None:
                del self.shell.showtraceback
            else:
                self.shell.showtraceback = self._before

    def _showtraceback(self, *args: Any, **options: Any) -> None:
        given = args[0] if args else options.get("exc_tuple")
        error = given[1] if given else sys.exc_info()[1]
        ours, below, text = id(error) == self._error, self._below, self._text
        self.cancel()
        self._below = self._text = None
        if not ours or error is None:
            self.shell.showtraceback(*args, **options)
            return
        top = error.__traceback__
        if top is not None:
            top.tb_next = _below_us(top.tb_next)
        if text is not None and _holds_group(error):
            for name, value in _last(type(error), error, top):
                setattr(sys, name, value)
            sys.stderr.write("".join(text))
        elif self._refused:
            self.shell.showtraceback()
        else:
            self.shell.showtraceback(*args, **options)
            if text is not None:  # where IPython formats a traceback, its debugger finds it here
                self.shell.InteractiveTB.tb = top
        if below is not None:
            display(below)


def _last(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> list[tuple[str, Any]]:
    """What Python keeps of the last error that was shown."""
    kept: list[tuple[str, Any]] = [("last_type", kind), ("last_value", error), ("last_traceback", tb)]
    return [*kept, ("last_exc", error)] if sys.version_info >= (3, 12) else kept

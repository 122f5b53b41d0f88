"""Where modules were called, by the frames of an error; and the text of the functions that those frames ran."""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from ..kernel.holders import frame_locals, frames
from ..memory.saved import spoken

if TYPE_CHECKING:
    from ..memory.saved import Place
    from ..memory.variables import Search

__all__ = ["Lines", "trees"]

_BETWEEN = ("torch/nn/modules/module.py", "torch/_dynamo/", "torch/utils/_contextlib.py", "torch/_compile.py")
"""Files of torch's that lie between a call and the ``forward`` that it comes to."""


def _all_frames(error: BaseException) -> Iterator[FrameType]:
    return frames(vars(BaseException)["__traceback__"].__get__(error))


class Lines:
    """The lines at which the modules that an error's frames lie in were called."""

    def __init__(self, error: BaseException, namespace: Mapping[str, Any], search: Search) -> None:
        paths: dict[int, list[str]] = {}
        for met in search.met:
            if met.kind == "module":
                paths.setdefault(id(met.value), []).append(spoken(met.path)[0])
        self._lines: dict[str, str] = {}
        caller = ""
        traceback = vars(BaseException)["__traceback__"].__get__(error)
        while traceback is not None:
            frame, line = traceback.tb_frame, traceback.tb_lineno
            file = frame.f_code.co_filename.replace(os.sep, "/")
            if not any(part in file for part in _BETWEEN):
                module = frame_locals(frame).get("self")
                if caller:
                    for path in paths.get(id(module), ()):
                        self._lines.setdefault(path, caller)
                if frame.f_globals is namespace:
                    name = frame.f_code.co_name
                    caller = f"line {line}" + (f" of {name}" if name != "<module>" else "")
                else:
                    caller = f"{file.rsplit('/', 1)[-1]}:{line}"
            traceback = traceback.tb_next

    def of(self, place: Place) -> str:
        """``called at line 5``: of the module, else of the one that it is in; empty where that is not known."""
        if not any(spoken(name)[1] for name in place.through):
            return ""  # what variables of the notebook keep may be of any cell
        path = place.name
        while path:
            if path in self._lines:
                return f"called at {self._lines[path]}"
            path = path.rpartition(".")[0]
        return ""


def trees(error: BaseException | None, names: set[str]) -> list[ast.AST]:
    """The parsed text of functions with these names among the frames of an error."""
    codes: dict[CodeType, None] = {}
    for frame in _all_frames(error) if error is not None else ():
        if frame.f_code.co_name in names:
            codes[frame.f_code] = None
    found: list[ast.AST] = []
    for code in codes:
        try:
            found.append(ast.parse(textwrap.dedent(inspect.getsource(code))))
        except (OSError, SyntaxError, TypeError, ValueError):
            continue
    return found

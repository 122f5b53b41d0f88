"""Whether code on the stack deals with an out-of-memory error itself: then it gets the error, as it was written to.

`find_executable_batch_size`, Lightning's batch finder, and a loop of the user's that halves a batch catch the error and
ask for less. Who catches it only to raise it again, or to log it, deals with nothing.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import textwrap
from types import CodeType, FrameType
from typing import NamedTuple

__all__ = ["deals_with_it"]

_NAMES = ("OutOfMemoryError", "should_reduce_batch_size", "is_oom_error", "is_out_of_cpu_memory", "is_oom")
"""Names that a handler of the error uses: torch's class; accelerate's, Lightning's and toma's tests of its text."""
_WORDS = ("out of memory", "out_of_memory", "oom")
_BROAD = ("RuntimeError", "Exception", "BaseException")
_OURS = ("cuda_magic", "IPython", "ipykernel", "torch", "asyncio", "traitlets", "tornado")
_NOTEBOOK = ("<ipython-input", "/ipykernel_", "<stdin>")
_cache: dict[tuple[CodeType, str, str], tuple[_Try, ...]] = {}
"""By the file and the package too: codes of the same text are equal."""


class _Try(NamedTuple):
    """The lines of a `try` whose handler deals with the error."""

    first: int
    last: int


def deals_with_it(frame: FrameType | None = None) -> bool:
    """Whether a frame of this thread is inside such a `try`; `frame` is the innermost one.

    On autograd's own thread, which has no frames, those of the thread that waits for the backward pass count.
    """
    at: FrameType | None = frame or sys._getframe(1)
    while at is not None:
        if any(one.first <= at.f_lineno <= one.last for one in _tries(at)):
            return True
        at = at.f_back
    return False


def _tries(frame: FrameType) -> tuple[_Try, ...]:
    code = frame.f_code
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    key = (code, code.co_filename, package)
    if key in _cache:
        return _cache[key]
    notebook = any(mark in code.co_filename for mark in _NOTEBOOK) or package == "__main__"
    found: tuple[_Try, ...] = ()
    if package not in _OURS and _hints(code, notebook):
        try:
            found = tuple(_parsed(code, notebook))
        except (OSError, SyntaxError, ValueError, TypeError):  # no source: it is not known
            found = ()
    if len(_cache) > 1000:
        _cache.clear()
    _cache[key] = found
    return found


def _hints(code: CodeType, notebook: bool) -> bool:
    """Whether a look at the source is worth its while."""
    if any(name in code.co_names for name in _NAMES) or (notebook and "RuntimeError" in code.co_names):
        return True
    texts = [const.lower() for const in code.co_consts if isinstance(const, str)]
    return any(word in text for text in texts for word in _WORDS[:1])


def _parsed(code: CodeType, notebook: bool) -> list[_Try]:
    if code.co_name == "<module>":
        source, above = "".join(linecache.getlines(code.co_filename)), 0
        if not source:
            return []
    else:
        lines, first = inspect.getsourcelines(code)
        source, above = textwrap.dedent("".join(lines)), first - 1
    tree = ast.parse(source)
    return [
        _Try(node.body[0].lineno + above, (node.body[-1].end_lineno or node.body[-1].lineno) + above)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and any(_deals(handler, notebook) for handler in node.handlers)
    ]


def _deals(handler: ast.ExceptHandler, notebook: bool) -> bool:
    if isinstance(handler.body[-1], ast.Raise) and not _leaves(handler.body):
        return False  # it is logged, or told in other words
    kinds = _names([handler.type]) if handler.type is not None else {"BaseException"}
    if "OutOfMemoryError" in kinds:
        return True
    if not kinds & {*_BROAD}:
        return False
    if _names(handler.body) & {*_NAMES} or any(word in text for text in _texts(handler.body) for word in _WORDS):
        return True
    return notebook and "RuntimeError" in kinds


def _leaves(body: list[ast.stmt]) -> bool:
    """Whether a handler that ends in ``raise`` has another way out before."""
    return any(isinstance(node, (ast.Return, ast.Continue, ast.Break)) for one in body for node in ast.walk(one))


def _names(nodes: list[ast.stmt] | list[ast.expr]) -> set[str]:
    found = set()
    for one in nodes:
        for node in ast.walk(one):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
    return found


def _texts(nodes: list[ast.stmt]) -> list[str]:
    return [
        node.value.lower()
        for one in nodes
        for node in ast.walk(one)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]

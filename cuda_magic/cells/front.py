"""A guarded cell as the plain cell: IPython reads it without the magic's line, and its statements run under the guard.

A cell magic is a call with the cell as a string: IPython translates, parses and compiles the call, and then the magic
does the same with the cell. Here the line is taken off before IPython reads the cell. What is then done once, and by
IPython itself, is all that the plain cell costs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from .translate import blank, commented, spare

if TYPE_CHECKING:
    import ast

    from .hooks import Hooks
    from .rescuer import Rescuer

__all__ = ["Front"]

Prepare = Callable[[str, "list[ast.stmt]", bool], "Rescuer"]
"""(the line's options, the cell's statements, whether --all put the line there): what is told of the statements."""

with warnings.catch_warnings():
    warnings.simplefilter("ignore", SyntaxWarning)
    _CALL = compile("None()", "<cuda_guard>", "eval")


def _calling(function: Callable[[], Any]) -> CodeType:
    """Code that calls `function`: IPython runs nothing else than code."""
    return _CALL.replace(co_consts=tuple(function if one is None else one for one in _CALL.co_consts))


class _Taken(NamedTuple):
    """The line of a cell that IPython is about to run."""

    raw: str
    """The cell as typed."""
    line: str
    """What stands behind the magic's name."""
    above: list[str]
    """Lines that stand above its body in the cell that runs, so that its lines keep their numbers."""
    by_all: bool


class Front:
    """Takes the first line off guarded cells, and guards their statements.

    Only of a cell of the user's, while none runs: below another magic, in a script or in a nested cell the line is the
    cell magic that it is.

    Parameters
    ----------
    hooks
        The shell's.
    name
        The cell magic.
    prepare
        Makes what is told of the statements; what it raises fails the cell before any of them has run.
    """

    has_side_effects = True
    """IPython's check whether a cell is complete then leaves this transformer out."""

    def __init__(self, hooks: Hooks, name: str, prepare: Prepare) -> None:
        self.hooks, self.shell, self.name, self.prepare = hooks, hooks.shell, name, prepare
        self.everywhere: str | None = None
        """The line of cells that have none, while --all holds."""
        self._taken: _Taken | None = None
        self._ready = False
        self._before: Any = None
        self._spared: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Before IPython's own transformers: to them the body is the cell."""
        self.shell.input_transformers_cleanup.insert(0, self)

    def remove(self) -> None:
        """Undo `install`; a second call does nothing."""
        self._forget()
        if self in self.shell.input_transformers_cleanup:
            self.shell.input_transformers_cleanup.remove(self)

    def __call__(self, lines: list[str]) -> list[str]:
        """The lines of a cell without the magic's. It must never raise: an error here would break every cell."""
        if self.hooks.running or self.hooks.translating:
            return lines
        try:
            self._forget()
            left = self._without(lines)
            if self._taken is not None:
                self._spared = spare(self.shell)
        except Exception:  # noqa: BLE001 - see above; the line is then the cell magic that it is
            self._taken = None
            return lines
        return left

    def _without(self, lines: list[str]) -> list[str]:
        start = next((i for i, line in enumerate(lines) if line.strip()), len(lines))
        if start == len(lines) or self._anothers():
            return lines
        found, _, line = lines[start][2:].rstrip().partition(" ")
        if lines[start].startswith("%%") and found == self.name:
            body = "".join(lines[start + 1 :])
            if body.strip():  # of an empty one IPython says what is missing
                above = [text.rstrip("\n") for text in lines[: start + 1]] + blank(body)
                self._taken = _Taken("".join(lines), line, commented(above), False)
                return lines[start + 1 :]
        elif self.everywhere is not None and not lines[start].lstrip().startswith((f"%{self.name}", f"%%{self.name}")):
            self._taken = _Taken("".join(lines), self.everywhere, [], True)
        return lines

    def _anothers(self) -> bool:
        """Whether somebody else takes whole cells and runs them, as ipyparallel under %autopx: they are his, unread."""
        own, kind = vars(self.shell), type(self.shell)
        return all(
            name in own and getattr(own[name], "__func__", None) is not getattr(kind, name)
            for name in ("run_cell", "run_ast_nodes")
        )

    def read(self) -> list[str] | None:
        """The cell without its line is Python now: what stands above it. None for any other cell."""
        if self._taken is None or self._ready or self.hooks.running:
            return None
        self._ready = True
        self._before = vars(self.shell).get("run_ast_nodes")
        self.shell.run_ast_nodes = self._run_ast_nodes
        return self._taken.above

    def begins(self, raw: str) -> None:
        """A cell begins to run. Another than the one that was read last: somebody did not run that one."""
        if self._taken is not None and self._taken.raw.rstrip("\n") != raw.rstrip("\n"):
            self._forget()

    def _forget(self) -> _Taken | None:
        taken = self._taken if self._ready else None
        self._taken = None
        self._spared()
        if self._ready:
            self._ready = False
            if vars(self.shell).get("run_ast_nodes") == self._run_ast_nodes:
                if self._before is None:
                    del self.shell.run_ast_nodes
                else:
                    self.shell.run_ast_nodes = self._before
        return taken

    async def _run_ast_nodes(
        self,
        nodelist: list[ast.stmt],
        cell_name: str,
        interactivity: str = "last_expr",
        compiler: Any = compile,
        result: Any = None,
    ) -> bool | None:
        """In place of the shell's own, for one cell."""
        taken = self._forget()
        if taken is None or not nodelist:
            failed: bool | None = await self.shell.run_ast_nodes(nodelist, cell_name, interactivity, compiler, result)
            return failed
        from .body import Body
        from .run import run_body

        cell = Body.of_cell(self.shell, nodelist, cell_name, interactivity, compiler)

        def run() -> Any:
            __tracebackhide__ = True
            return run_body(self.hooks, cell, lambda: self.prepare(taken.line, nodelist, taken.by_all))

        failed = await self.shell.run_code(_calling(run), result, async_=cell.awaits)
        if result is not None and cell.refused is not None and result.error_in_exec is cell.refused:
            result.error_before_exec, result.error_in_exec = cell.refused, None  # the compiler's, not the cell's
        return failed

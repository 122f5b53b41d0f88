"""What a shell tells us of each cell: its raw text, whether it is stored, and where an await must go."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from IPython.core.magic import no_var_expand

if TYPE_CHECKING:
    from .failure import Show
    from .front import Front
    from .translate import Translated

__all__ = ["AWAITING", "Hooks"]

AWAITING = "_cuda_magic_await"
"""Name of the hidden cell magic that a cell which awaits is rewritten to call."""


_CALL = "get_ipython().run_cell_magic("
"""What IPython makes of a cell magic, followed by the reprs of its name, its line and its body."""


def _arguments(call: str, before: str) -> tuple[str, str]:
    """(line, body) of a cell magic's call."""
    rest = call[len(before) :]
    quote, body = rest[4:5], rest[5:-3]
    if (
        rest.startswith("'', ")
        and rest.endswith(f"{quote})\n")
        and quote not in body
        and body.count("\\") == body.count("\\n")
    ):
        return "", body.replace("\\n", "\n")  # no other escape: Python's parser is spared
    tree: Any = compile(call, "<>", "eval", ast.PyCF_ONLY_AST)
    _, line, last = (argument.value for argument in tree.body.args)
    return line, last


class Hooks:
    """The event callbacks, the input transformer and the hidden magic of one shell; `remove` undoes `install`.

    No release of IPython awaits what a cell magic returns. So a cell that awaits below one of our magics is rewritten,
    from ``get_ipython().run_cell_magic('cuda_guard', ...)`` to ``await`` of a hidden magic that returns a coroutine.

    Parameters
    ----------
    shell
        IPython's shell.
    names
        The cell magics whose cells may await.
    """

    def __init__(self, shell: Any, names: Iterable[str] = ("cuda_guard", "gpu_mem")) -> None:
        self.shell = shell
        self.front: Front | None = None
        """Takes the first line off guarded cells; set by who loads the magics."""
        self.names = tuple(names)
        self.before: Callable[[], None] | None = None
        """Called before each cell; it never raises."""
        self._show: Show | None = None
        self.raw: str | None = None
        """The running cell as typed; None if it is not one of the user's."""
        self.stored = False
        """Whether the running cell goes into the history."""
        self._depth = 0
        self.awaited = False
        """Whether the magic that is being called will be awaited."""
        self.name = self.names[0]
        """The cell magic called last."""
        self.translating = False
        """Whether a body below one of our magics is being translated."""
        self._last: tuple[str, Translated] | None = None

    @property
    def show(self) -> Show:
        """Shows the errors of cells that ran below one of our magics."""
        if self._show is None:
            from .failure import Show

            self._show = Show(self.shell)
        return self._show

    @property
    def number(self) -> int:
        """n of the running cell's ``In[n]``: IPython 9 counts up before it runs a cell, 7 and 8 after."""
        number: int = self.shell.displayhook.prompt_count if self.stored else self.shell.execution_count
        return number

    @property
    def running(self) -> bool:
        """Whether a cell runs: what is read now is no cell of the user's, but a body below a magic, or a script."""
        return self._depth > 0

    def translate(self, body: str) -> Translated:
        """`body` as Python; kept until a cell has run, since a front end and the magic ask for the same one again."""
        if self._last is None or self._last[0] != body:
            from .translate import translate

            before, self.translating = self.translating, True
            try:
                self._last = body, translate(self.shell, body)
            finally:
                self.translating = before
        return self._last[1]

    def take(self, body: str) -> Translated:
        """`translate`, for the one who runs it: it is not kept any longer, nor may a second one run the same tree."""
        translated = self.translate(body)
        self._last = None
        return translated

    def install(self) -> None:
        """Register everything. Loading the extension calls this."""
        self.shell.events.register("pre_execute", self._pre_execute)
        self.shell.events.register("pre_run_cell", self._pre_run_cell)
        self.shell.events.register("post_execute", self._post_execute)
        self.shell.input_transformers_post.append(self._transform)
        if self.front is not None:
            self.front.install()
        self.shell.register_magic_function(self._awaiting, "cell", AWAITING)

    def remove(self) -> None:
        """Undo `install`; a second call does nothing."""
        if self._show is not None:
            self._show.cancel()
        if self.front is not None:
            self.front.remove()
        if self._transform not in self.shell.input_transformers_post:
            return
        self.shell.input_transformers_post.remove(self._transform)
        self.shell.events.unregister("pre_execute", self._pre_execute)
        self.shell.events.unregister("pre_run_cell", self._pre_run_cell)
        self.shell.events.unregister("post_execute", self._post_execute)
        self.shell.magics_manager.magics["cell"].pop(AWAITING, None)

    def _pre_execute(self) -> None:  # fires for silent runs too, which have no pre_run_cell
        if self._show is not None:
            self._show.cancel()
        self.raw, self.stored, self.awaited = None, False, False
        self._depth += 1

    def _post_execute(self) -> None:
        self._depth = max(0, self._depth - 1)  # for an empty cell IPython says the end alone
        self._last = None  # what an automagic, an alias or autocall means may be another thing by now

    def _pre_run_cell(self, info: Any) -> None:
        if self.before is not None:
            self.before()
        self.raw, self.stored = info.raw_cell, bool(info.store_history)
        if self.front is not None:
            self.front.begins(info.raw_cell)

    @no_var_expand
    def _awaiting(self, line: str, cell: str) -> Any:
        """The cell magic named first on the line, with its cell's coroutine for a value."""
        __tracebackhide__ = True
        name, _, rest = line.partition(" ")
        self.awaited = True
        try:
            return self.shell.find_cell_magic(name)(rest, cell)
        finally:
            self.awaited = False

    def _transform(self, lines: list[str]) -> list[str]:
        """Put an await before a call of ours. It must never raise: an error here would break every cell."""
        if self.front is not None and not self.translating and (above := self.front.read()) is not None:
            return [*above, *lines]
        before, self.translating = self.translating, True
        try:
            return self._transformed(lines)
        except Exception:  # noqa: BLE001 - see above
            return lines
        finally:
            self.translating = before

    def _transformed(self, lines: list[str]) -> list[str]:
        if len(lines) != 1 or not lines[0].startswith(_CALL):
            return lines
        for name in self.names:
            if lines[0].startswith(f"{_CALL}{name!r}, "):
                break
        else:
            return lines
        line, body = _arguments(lines[0], f"{_CALL}{name!r}, ")
        self.name = name
        if self._last is not None and self._last[1].warns:
            self._last = None
        try:
            translated = self.translate(body)
        except SyntaxError:
            # IPython reports the mistake best itself: it gets the cell, with the magic's line as a comment.
            return [f"# %%{name} {line}".rstrip() + "\n", *self.shell.transform_cell(body).splitlines(keepends=True)]
        if not translated.awaits or self.running:  # below another cell magic nobody could await: the magic says so
            return lines
        return [f"await get_ipython().run_cell_magic({AWAITING!r}, {f'{name} {line}'!r}, {body!r})\n"]

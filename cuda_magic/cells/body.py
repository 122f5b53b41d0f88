"""The body of a cell, compiled one top-level statement at a time, as IPython's ``run_ast_nodes`` does it."""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from IPython.core.displayhook import DisplayHook

from .names import bound
from .rescuer import Step

__all__ = ["Body", "Compiled", "Translated", "translate"]


@dataclass(frozen=True)
class Translated:
    """A body as Python: its magics translated, and whether it awaits at its top level."""

    source: str
    awaits: bool


def translate(shell: Any, body: str) -> Translated:
    """What IPython makes of `body`.

    Raises
    ------
    SyntaxError
        If the body does not compile.
    """
    source = shell.transform_cell(body)
    code = compile(source, "<>", "exec", _flags(shell))
    return Translated(source, bool(code.co_flags & inspect.CO_COROUTINE))


def _flags(shell: Any) -> int:
    return ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if shell.autoawait else 0


@dataclass(frozen=True)
class Compiled:
    """One statement ready to run. `shown`: its value is the value of the cell."""

    step: Step
    code: CodeType
    shown: bool


class Body:
    """A cell's body under the file name, the number and the line numbers that the plain cell would have.

    Parameters
    ----------
    shell
        IPython's shell.
    body
        The cell below the magic's line.
    source
        The same with its magics translated.
    raw
        The whole cell as the user typed it, or None if unknown.
    number
        n of ``In[n]``.
    magic
        Name of the cell magic, for the first line where `raw` is not known.
    """

    def __init__(self, shell: Any, body: str, source: str, raw: str | None, number: int, *, magic: str) -> None:
        self.shell = shell
        self.source = source
        above = [f"%%{magic}"]
        if raw is not None and raw.rstrip("\n").endswith(body.rstrip("\n")):
            whole, part = raw.rstrip("\n"), body.rstrip("\n")
            # %cuda_guard --all: the cell has no line of the magic's, and nothing stands above
            above = whole[: len(whole) - len(part)].split("\n")[:-1] if len(whole) != len(part) else []
        else:
            raw = None
        for text in body.splitlines():  # transform_cell drops leading blank lines
            if text.strip():
                break
            above.append("")
        padded = "".join(f"# {line}\n" if line else "\n" for line in above) + source
        self._lines = padded.splitlines()
        self.name = shell.compile.cache(padded, number, raw_code=raw or padded)
        self.nodes: list[ast.stmt] = shell.transform_ast(shell.compile.ast_parse(padded, filename=self.name)).body

    def statements(self) -> Iterator[Compiled]:
        """Each top-level statement, compiled when its turn comes: an earlier one may change the compiler's flags."""
        mode = self.shell.ast_node_interactivity
        nodes = list(self.nodes)
        if not nodes:
            return
        name = _assigned_name(nodes[-1])
        if mode == "last_expr_or_assign" and name is not None:
            load = ast.copy_location(ast.Expr(ast.Name(name, ast.Load())), nodes[-1])
            nodes.append(ast.fix_missing_locations(load))
        for index, node in enumerate(nodes):
            last = index == len(nodes) - 1
            tree: ast.mod
            if last and isinstance(node, ast.Expr) and mode != "none":
                # The magic returns this value and the outer cell displays it, once and by its own rules.
                tree, kind = ast.Expression(node.value), "eval"
            elif mode == "all" or (mode == "last" and last):
                tree, kind = ast.Interactive([node]), "single"
            else:
                tree, kind = ast.Module([node], []), "exec"
            with self.shell.compile.extra_flags(_flags(self.shell)):
                code: CodeType = self.shell.compile(tree, self.name, kind)
            rename = getattr(self.shell, "_update_code_co_name", None)  # IPython 7.34 and 8: "<cell line: n>"
            if rename is not None:
                code = rename(code)
            first, end = node.lineno, node.end_lineno or node.lineno
            step = Step(
                index=index,
                source="\n".join(self._lines[first - 1 : end]),
                first_line=first,
                last_line=end,
                names_bound=bound(code),
                awaits=bool(code.co_flags & inspect.CO_COROUTINE),
                node=node,
            )
            yield Compiled(step, code, kind == "eval")

    @property
    def silenced(self) -> bool:
        """Whether the last token is a semicolon."""
        if not self.source.rstrip().endswith(";") and "#" not in self.source.rstrip().rpartition("\n")[2]:
            return False  # spares the tokenizer
        check = getattr(DisplayHook, "semicolon_at_end_of_expression", _ends_in_semicolon)
        try:
            return bool(check(self.source))
        except Exception:  # noqa: BLE001 - it raises on what it cannot tokenize
            return False


def _assigned_name(node: ast.stmt) -> str | None:
    """The name that ``last_expr_or_assign`` displays."""
    target: ast.expr | None = None
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        target = node.target
    return target.id if isinstance(target, ast.Name) else None


_BLANK = (tokenize.ENDMARKER, tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT)


def _ends_in_semicolon(source: str) -> bool:
    """For IPython 7.34, which has no such function."""
    words = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type not in _BLANK]
    return bool(words) and words[-1].string == ";"

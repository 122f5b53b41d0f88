"""The body of a cell as Python, as IPython makes it of what was typed; no tokenizer where it would find nothing."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from IPython.core import inputtransformer2
from IPython.core.interactiveshell import InteractiveShell

__all__ = ["Translated", "blank", "commented", "compiler_flags", "may_await", "may_warn", "spare", "translate"]


class Translated(NamedTuple):
    """A body as Python: its magics translated, parsed, and whether it awaits at its top level."""

    source: str
    tree: ast.Module
    """Parsed below `above` empty lines."""
    above: int
    awaits: bool
    warns: bool
    """Whether parser or compiler may have warned of something; the plain cell says so each time that it asks them."""


def translate(shell: Any, body: str) -> Translated:
    """What IPython makes of `body`.

    Raises
    ------
    SyntaxError
        If the body cannot be parsed, or may await and cannot be compiled. Else what only the compiler finds is raised
        when the statement's turn comes, as in the plain cell.
    """
    source = _transformed(shell, body)
    above = 1 + len(blank(body))  # the magic's own line
    # "<>" is where IPython tries a cell first: warnings of the compiler name it
    try:
        tree = shell.compile.ast_parse("\n" * above + source, "<>")
    except SyntaxError:
        shell.transform_cell(body)  # the tokenizer may have said it first, in words of its own
        raise
    awaits, warns = False, may_warn(source)
    waits = may_await(source)
    if warns or waits:
        try:
            code = compile(tree, "<>", "exec", shell.compile.flags | compiler_flags(shell), True)
        except SyntaxError:
            if waits:
                raise
        else:
            awaits = bool(code.co_flags & inspect.CO_COROUTINE)
    return Translated(source, tree, above, awaits, warns)


_KNOWN = [getattr(inputtransformer2, name) for name in ("MagicAssign", "SystemAssign", "EscapedCommand", "HelpEnd")]
"""IPython's own transformers of tokens, the same since 7.0."""

_MAY_TRANSFORM = re.compile(
    r"\?|!(?!=)|\\[{}]|(?:^|=)[\s\\]*%|^[\s\\]*[,;/]|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", re.MULTILINE
)
"""What one of them acts on, in whatever token: ``?``, ``!``, ``= %``, and a line that begins with one of ``% , ; /``.

And what ends a line for `str.splitlines` alone.
"""


_METHODS = frozenset(("transform_cell", "do_token_transforms", "do_one_token_transform"))


def spare(shell: Any) -> Callable[[], None]:
    """Let the shell read its next cell without its tokenizer, where that would find nothing; undone by what it returns.

    Finding that nothing is there to transform takes IPython longer than all else that is done with a cell.
    """
    manager, kind = shell.input_transformer_manager, inputtransformer2.TransformerManager
    mine = vars(manager)
    if (
        type(shell).transform_cell is not InteractiveShell.transform_cell
        or "transform_cell" in vars(shell)
        or type(manager) is not kind
        or not _METHODS.isdisjoint(mine)
        or manager.token_transformers != _KNOWN
    ):
        return lambda: None  # somebody's own

    def undo() -> None:
        if mine.get("do_token_transforms") is quick:
            del mine["do_token_transforms"]

    def quick(lines: list[str]) -> list[str]:
        undo()
        if _MAY_TRANSFORM.search("".join(lines)) is None:
            return lines
        done: list[str] = manager.do_token_transforms(lines)
        return done

    manager.do_token_transforms = quick
    return undo


def _transformed(shell: Any, body: str) -> str:
    """``shell.transform_cell(body)``."""
    undo = spare(shell)
    try:
        source: str = shell.transform_cell(body)
    finally:
        undo()
    return source


def compiler_flags(shell: Any) -> int:
    """What IPython adds to the compiler's own flags."""
    return ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if shell.autoawait else 0


def blank(body: str) -> list[str]:
    """An empty line for each blank one that the body begins with: IPython's translation drops them."""
    if not body[:1].isspace():
        return []
    return list(itertools.takewhile(lambda text: not text, (line.strip() for line in body.splitlines())))


# All else is compiled once, statement by statement.
_MAY_WARN = tuple(
    (part, re.compile(pattern))
    for part, pattern in (
        ("\\", r"""\\[^\n\\'"abfnrtv0-7xNuU]|\\[4-7][0-7][0-7]"""),  # unknown escapes
        ("", r"\d(?:and|else|for|if|in|is|not|or)\b"),  # numbers that run into a keyword
        ("is", r"\bis\b"),  # a literal's identity
        ("assert", r"\bassert\b"),  # of a tuple
        ("finally", r"\bfinally\b"),  # return in it
        (
            "",
            r"""[(\[](?:(?<=["'\d)\]}.].)|(?<=["'\d)\]}.]\s.)|(?<=None.)|(?<=True.)|(?<=False.))""",
        ),  # constants called or subscripted
    )
)
"""(what must be there, and how) for a warning of parser or compiler; more is found than there is."""


def may_await(source: str) -> bool:
    """Whether a cell may await; more than do."""
    return "await" in source or "async" in source


def commented(lines: list[str]) -> list[str]:
    """What stands above a body as lines that do nothing."""
    return [f"# {line}\n" if line else "\n" for line in lines]


def may_warn(source: str) -> bool:
    return any(part in source and pattern.search(source) for part, pattern in _MAY_WARN)

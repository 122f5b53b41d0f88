"""The body of a cell as Python, as IPython makes it of what was typed; no tokenizer where it would find nothing."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from typing import Any, NamedTuple

from IPython.core import inputtransformer2
from IPython.core.interactiveshell import InteractiveShell

__all__ = ["Translated", "blank", "compiler_flags", "translate"]


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
    awaits, warns = False, _may_warn(source)
    may_await = "await" in source or "async" in source
    if warns or may_await:
        try:
            code = compile(tree, "<>", "exec", shell.compile.flags | compiler_flags(shell), True)
        except SyntaxError:
            if may_await:
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


class _Quick:
    """A shell, and its manager of transformers too, for `InteractiveShell.transform_cell`: as both, but no tokenizer.

    Finding that nothing is there to transform takes IPython longer than all else that is done with a cell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell, self._manager = shell, shell.input_transformer_manager
        self.input_transformer_manager = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shell, name)

    def transform_cell(self, cell: str) -> str:
        manager = self._manager
        lines = (cell if cell.endswith("\n") else cell + "\n").splitlines(keepends=True)
        for transform in manager.cleanup_transforms + manager.line_transforms:
            lines = transform(lines)
        source = "".join(lines)
        if _MAY_TRANSFORM.search(source) is None:
            return source
        done: str = "".join(manager.do_token_transforms(lines))
        return done


def _transformed(shell: Any, body: str) -> str:
    """``shell.transform_cell(body)``."""
    manager, kind = shell.input_transformer_manager, inputtransformer2.TransformerManager
    source: str
    if (
        type(shell).transform_cell is not InteractiveShell.transform_cell
        or "transform_cell" in vars(shell)
        or type(manager) is not kind
        or not _METHODS.isdisjoint(vars(manager))
        or manager.token_transformers != _KNOWN
    ):
        source = shell.transform_cell(body)  # somebody's own
    else:
        source = InteractiveShell.transform_cell(_Quick(shell), body)
    return source


_METHODS = frozenset(("transform_cell", "do_token_transforms", "do_one_token_transform"))


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


def _may_warn(source: str) -> bool:
    return any(part in source and pattern.search(source) for part, pattern in _MAY_WARN)

"""The body of a cell, compiled one top-level statement at a time, as IPython's ``run_ast_nodes`` does it."""

from __future__ import annotations

import ast
import codeop
import inspect
import io
import linecache
import tokenize
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from IPython.core.displayhook import DisplayHook

from .names import bound, perhaps_bound
from .rescuer import Step
from .translate import Translated, blank, commented, compiler_flags, may_await, may_warn

if TYPE_CHECKING:
    from .hooks import Hooks

__all__ = ["Body", "Compiled"]


class Statement(Step):
    """A top-level statement, or the first of some that bind constants.

    Its text and the names that it binds are found when somebody asks.
    """

    def __init__(self, index: int, nodes: list[ast.stmt], code: CodeType, lines: list[str]) -> None:
        first, last = nodes[0], nodes[-1]
        self.index, self.node = index, first
        self.first_line, self.last_line = first.lineno, last.end_lineno or last.lineno
        self.awaits = bool(code.co_flags & inspect.CO_COROUTINE)
        self.code: CodeType = code
        self._lines = lines

    @property
    def source(self) -> str:  # type: ignore[override]
        return "\n".join(self._lines[self.first_line - 1 : self.last_line])

    @property
    def names_bound(self) -> frozenset[str]:  # type: ignore[override]
        return bound(self.code)

    @property
    def names_perhaps_bound(self) -> Iterable[str]:
        return perhaps_bound(self.code)


class Compiled(NamedTuple):
    """One statement ready to run.

    `shown`: its value is the value of the cell. `plain`: it only gives constants a name, which asks for no memory.
    """

    step: Step
    code: CodeType
    shown: bool = False
    plain: bool = False


class Body:
    """The statements of a cell, each compiled as IPython would compile it.

    Parameters
    ----------
    shell
        IPython's shell.
    nodes
        Its statements, after IPython's transformers of the tree.
    name
        The file name that they are compiled for; IPython keeps the cell's text under it.
    interactivity
        Which of them are shown, as ``shell.ast_node_interactivity`` says it.
    returned
        Whether the last expression's value is given back and not shown: the cell magic's, which the outer cell shows.
    compiler
        The shell's own, or another that the cell is to be compiled with.
    in_turn
        Whether a statement is compiled when its turn comes, and not before: somebody could tell.
    """

    def __init__(
        self,
        shell: Any,
        nodes: list[ast.stmt],
        name: str,
        interactivity: str,
        *,
        returned: bool,
        compiler: Any,
        in_turn: bool,
    ) -> None:
        self.shell, self.nodes, self.name = shell, nodes, name
        self._mode, self._returned, self._compiler, self._in_turn = interactivity, returned, compiler, in_turn
        self.awaits = False
        """Whether it awaits at its top level."""
        self.refused: BaseException | None = None
        """What the compiler said of a statement that could be parsed."""

    @property
    def _lines(self) -> list[str]:
        return [line.rstrip("\n") for line in linecache.getlines(self.name)]

    @classmethod
    def below_magic(cls, hooks: Hooks, body: str, translated: Translated) -> Body:
        """The cell below a magic's line, under the file name, number and line numbers that the plain cell would have.

        `translated` is `body` as Python.
        """
        shell, raw = hooks.shell, hooks.raw
        above = [f"%%{hooks.name}"]
        if raw is not None and raw.rstrip("\n").endswith(body.rstrip("\n")):
            whole, part = raw.rstrip("\n"), body.rstrip("\n")
            above = whole[: len(whole) - len(part)].split("\n")[:-1]
        else:
            raw = None
        padded = "".join(commented([*above, *blank(body)])) + translated.source
        name = shell.compile.cache(padded, hooks.number, raw_code=raw or padded)
        tree = translated.tree
        if len(above) + len(blank(body)) != translated.above or translated.warns:
            tree = shell.compile.ast_parse(padded, filename=name)
        made = cls(
            shell,
            shell.transform_ast(tree).body,
            name,
            shell.ast_node_interactivity,
            returned=True,
            compiler=shell.compile,
            in_turn=translated.warns or _in_turn(translated.source),
        )
        made.awaits = translated.awaits
        return made

    @classmethod
    def of_cell(cls, shell: Any, nodes: list[ast.stmt], name: str, interactivity: str, compiler: Any) -> Body:
        """The cell that IPython has read and parsed."""
        source = "".join(linecache.getlines(name))
        made = cls(
            shell,
            nodes,
            name,
            interactivity,
            returned=False,
            compiler=compiler,
            in_turn=may_warn(source) or _in_turn(source),
        )
        if may_await(source):
            flags = compiler.flags | compiler_flags(shell)
            # of a cell with a mistake of the compiler's those before the mistake run
            made.awaits = _awaits(nodes, name, flags) or any(_awaits([node], name, flags) for node in nodes)
        return made

    def statements(self) -> Iterator[Compiled]:
        """Each top-level statement, compiled when its turn comes at the latest.

        All are compiled before the first one runs where nobody can tell: nothing awaits, no earlier statement can
        change the compiler's flags, and it warns of nothing. Each costs a third then, since the compiler is at it.
        """
        rename = getattr(self.shell, "_update_code_co_name", None)  # IPython 7.34 and 8: "<cell line: n>"
        units = self._units(together=rename is None and self._mode not in ("all", "last"))
        lines = self._lines
        codes = [] if self._in_turn else self._compile_ahead(units)
        for i, (index, nodes, tree, kind, plain) in enumerate(units):
            code = codes[i] if i < len(codes) else self._compile(nodes[0], tree, kind)
            if rename is not None:
                code = rename(code)
            yield Compiled(Statement(index, nodes, code, lines), code, kind == "eval", plain)

    def _units(self, together: bool) -> list[tuple[int, list[ast.stmt], ast.mod, str, bool]]:
        """(index of the last statement, statements, what is compiled, how, whether they only name constants)."""
        nodes, mode = list(self.nodes), self._mode
        if not nodes:
            return []
        name = _assigned_name(nodes[-1]) if mode == "last_expr_or_assign" else None
        if name is not None:
            nodes.append(ast.fix_missing_locations(ast.Expr(ast.Name(name, ast.Load()))))  # on line 1, as IPython's
        found: list[tuple[int, list[ast.stmt], ast.mod, str, bool]] = []
        index = -1
        while index < len(nodes) - 1:
            index += 1
            node = nodes[index]
            last = index == len(nodes) - 1
            if together and (group := _constants(nodes, index)):  # one code has one name, and shows nothing
                index += len(group) - 1
                found.append((index, group, ast.Module([*group], []), "exec", True))
            elif last and isinstance(node, ast.Expr) and mode != "none":
                shown = ast.Expression(node.value) if self._returned else ast.Interactive([node])
                found.append((index, [node], shown, "eval" if self._returned else "single", False))
            elif mode == "all" or (mode == "last" and last):
                found.append((index, [node], ast.Interactive([node]), "single", False))
            else:
                found.append((index, [node], ast.Module([node], []), "exec", False))
        return found

    def _compile_ahead(self, units: list[tuple[int, list[ast.stmt], ast.mod, str, bool]]) -> list[CodeType]:
        codes: list[CodeType] = []
        try:
            for _, nodes, tree, kind, _ in units:
                codes.append(self._compile(nodes[0], tree, kind))
        except Exception:  # noqa: BLE001 - it is raised when the statement's turn comes
            self.refused = None
        return codes

    def _compile(self, node: ast.stmt, tree: ast.mod, kind: str) -> CodeType:
        """As the shell's compiler does it, without its search for new ``__future__`` flags where none can be."""
        compiler, flags = self._compiler, compiler_flags(self.shell)
        try:
            if isinstance(node, ast.ImportFrom) or type(compiler).__call__ is not codeop.Compile.__call__:
                with compiler.extra_flags(flags):
                    code: CodeType = compiler(tree, self.name, kind)
            else:
                code = compile(tree, self.name, kind, compiler.flags | flags, True)  # type: ignore[call-overload]
        except BaseException as error:
            self.refused = error
            raise
        return code

    @property
    def silenced(self) -> bool:
        """Whether the last token is a semicolon."""
        source = "".join(linecache.getlines(self.name))
        if not source.rstrip().endswith(";") and "#" not in source.rstrip().rpartition("\n")[2]:
            return False  # spares the tokenizer
        check = getattr(DisplayHook, "semicolon_at_end_of_expression", _ends_in_semicolon)
        try:
            return bool(check(source))
        except Exception:  # noqa: BLE001 - it raises on what it cannot tokenize
            return False


def _awaits(nodes: list[ast.stmt], name: str, flags: int) -> bool:
    """Whether these statements await; False where they do not compile, which is said when their turn comes."""
    try:
        code = compile(ast.Module([*nodes], []), name, "exec", flags, True)
    except Exception:  # noqa: BLE001 - see above
        return False
    return bool(code.co_flags & inspect.CO_COROUTINE)


def _in_turn(source: str) -> bool:
    """Whether a statement may change how a later one is compiled, or wait."""
    return "__future__" in source or may_await(source)


def _constants(nodes: list[ast.stmt], start: int) -> list[ast.stmt]:
    """The statements from `start` on that only give a constant a name: they cannot fail, and run as one.

    None of them has the constant of another, since Python would make one object of the two.
    """
    found: list[ast.stmt] = []
    seen = set()
    for node in nodes[start:]:
        if type(node) is not ast.Assign or type(node.value) is not ast.Constant or len(node.targets) != 1:
            break
        if type(node.targets[0]) is not ast.Name or node.value.value in seen:
            break
        seen.add(node.value.value)
        found.append(node)
    return found


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

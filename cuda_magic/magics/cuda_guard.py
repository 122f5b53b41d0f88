"""``%%cuda_guard``: can this cell survive running out of GPU memory?"""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import Refused, UserError
from .options import Option, Spec

if TYPE_CHECKING:
    from ..rescue.guard import GuardRun
    from ..rescue.report import Report

RUNGS = (
    "holders",
    "collect",
    "caches",
    "compact",
    "expandable",
    "wait",
    "shrink",
    "else",
    "spill",
    "activations",
    "cudamalloc",
)
NAMES = (*RUNGS, "retry")

SPEC = Spec(
    name="cuda_guard",
    summary=(
        "Run the cell exactly as it would run without this line;"
        " where GPU memory runs out make room before any error, so that nothing runs twice."
    ),
    options=(
        Option("--limit", "the memory of the card that may be used while the cell runs; alone: by this kernel", "SIZE"),
        Option("--retries", "repeats of one statement (3)", "N", {"type": int}),
        Option(
            "--wait", "wait for other processes that hold the card, at most so long (0)", "SECONDS", {"type": float}
        ),
        Option("--shrink", "lower this integer variable, not below FLOOR, and repeat", "NAME[=FLOOR]"),
        Option("--grow", "raise this variable by the same factor as --shrink lowers the other", "NAME"),
        Option(
            "--else",
            "other values for these variables, once, when all else failed",
            "NAME=EXPR ...",
            {"nargs": "+", "action": "extend", "dest": "otherwise", "metavar": "NAME=EXPR"},
        ),
        Option("--repeat", "the statement may run again from its start: only you can know that"),
        Option("--free-outputs", "release shown values (Out, _) that hold GPU memory too"),
        Option("--no-move", "leave every tensor's memory where it is: caches, earlier errors and garbage only"),
        Option("--only", "use these rungs alone", "RUNG,...", {}, NAMES),
        Option("--without", "leave these rungs out", "RUNG,...", {}, NAMES),
        Option("--report", "bind the report to this variable, on success too", "NAME"),
        Option("--quiet", "no lines to stderr"),
        Option("--all", "guard every following cell, with these options"),
        Option("--off", "end --all"),
    ),
    examples=(
        ("%%cuda_guard", "run the cell, rescued where it can be"),
        ("%cuda_guard", "the report of the last guarded cell"),
        ("%%cuda_guard --limit 10GiB", "as on a card of 10 GiB"),
        ("%cuda_guard --limit 10GiB", "the same for every cell of this kernel; --limit 0 ends it"),
        ("%%cuda_guard --shrink batch_size=8", "lower batch_size until the statement fits"),
        ("%%cuda_guard --shrink bs --grow accum", "the same, with as many more steps of accumulation"),
        ("%%cuda_guard --wait 60", "wait up to a minute for other processes"),
        ("%%cuda_guard --else device='cpu'", "at last, with another value"),
        ("%%cuda_guard --repeat", "a statement that can run again without harm, such as an evaluation"),
        ("%%cuda_guard --only holders,collect,caches", "no more than what costs nothing"),
        ("%cuda_guard --all", "guard every following cell"),
    ),
)

_last: list[Report] = []


@cache
def _rooms() -> tuple[Any, Any, Any, Any]:
    """What reads the line, runs and rescues a cell, loaded with the first guarded one."""
    from ..cells.run import run
    from ..rescue.guard import GuardRun
    from .guard_line import check, options

    return options, check, run, GuardRun


def run(magics: Any, line: str, cell: str | None) -> Any:
    """The value of the guarded cell, or the report of the last one."""
    __tracebackhide__ = True
    options, _, run_cell, _ = _rooms()
    made, given = options(line, magics.settings)
    if cell is None:
        return _line(magics, line, made, given)
    return run_cell(magics, cell, _guard(magics, made, given, lambda: _tree(magics.hooks, cell), lenient=False))


def prepare(magics: Any, line: str, nodes: list[ast.stmt], by_all: bool) -> GuardRun:
    """The guard of a cell that IPython has read: of these statements, with the options of this line."""
    made, given = _rooms()[0](line, magics.settings)
    return _guard(magics, made, given, lambda: ast.Module(nodes, []), lenient=by_all)


def _guard(magics: Any, made: Any, given: Any, tree: Callable[[], Any], *, lenient: bool) -> GuardRun:
    if given.all or given.off:
        raise UserError("cuda_guard: --all and --off stand on a line of their own, as in %cuda_guard --all")
    _, check, _, guard_run = _rooms()
    if made.names or made.limit:
        made = check(made, magics.shell, tree(), lenient=lenient)

    def bind(report: Report) -> None:
        _last[:] = [report]
        if made.report:
            magics.shell.user_ns[made.report] = report

    guard: GuardRun = guard_run(made, magics.shell, bind=bind)
    return guard


def _tree(hooks: Any, body: str) -> Any:
    """The body of a cell; None where it does not compile, which IPython says best when the cell runs."""
    try:
        return hooks.translate(body).tree
    except SyntaxError:
        return None


def _line(magics: Any, line: str, made: Any, given: Any) -> Any:
    if given.all and given.off:
        raise UserError("cuda_guard: --all and --off contradict each other.")
    if given.off and set(line.split()) != {"--off"}:
        raise UserError("cuda_guard: --off ends --all, and goes with no other option.")
    if given.all:
        from .guard_line import check, words

        check(made, magics.shell, None)
        magics.hooks.front.everywhere = " ".join(word for word in words(line) if word != "--all")
        return None
    if given.off:
        magics.hooks.front.everywhere = None
        return None
    if given.limit is not None and line.split(maxsplit=1)[0].partition("=")[0] == "--limit" and len(_words(line)) <= 2:
        _limit(made.limit)
        return None
    if line.strip():
        raise UserError(
            "cuda_guard: options belong on a cell's first line, %%cuda_guard; %cuda_guard shows the report."
        )
    if not _last:
        raise UserError("cuda_guard: no cell has been guarded yet; put %%cuda_guard on the first line of one.")
    return _last[0]


def _words(line: str) -> list[str]:
    from .guard_line import words

    return words(line)


def _limit(nbytes: int | None) -> None:
    """The limit of the kernel; 0 ends it."""
    from ..allocation.session import limit_kernel

    try:
        limit_kernel(nbytes or None)
    except Refused as refused:
        raise Refused(f"cuda_guard: --limit: {refused}") from None


def before_cell() -> None:
    """Where torch has been imported, its calls of the driver come to us from now on (`allocation.session.ready`)."""
    if "torch" in sys.modules:
        from ..allocation.session import ready

        with contextlib.suppress(Exception):  # no cell fails for it, and a guarded one says why it cannot be
            ready()


def may_close() -> None:
    """Refuse to unload while tensors are on the host: they would stay there for good.

    Raises
    ------
    Refused
        With what to do.
    """
    from ..allocation.session import left
    from ..render.units import bytes_text

    waiting = left()
    if waiting:
        raise Refused(
            f"cuda_magic stays loaded: {bytes_text(waiting)} of this kernel's tensors are on the host, since the card "
            "has no room for them; delete what is no longer needed, then run %gpu_mem --free and unload again."
        )


def close() -> None:
    """Forget the last report (on unloading), and bring back what still waits elsewhere."""
    from ..allocation import session
    from ..rescue.waiting import bring_back

    _last.clear()
    bring_back()
    session.close()

"""``%%cuda_guard``: can this cell survive running out of GPU memory?"""

from __future__ import annotations

import keyword
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import UserError, nearest
from .options import Option, Spec

if TYPE_CHECKING:
    from ..cells.everywhere import Everywhere
    from ..rescue.options import GuardOptions
    from ..rescue.report import Report

RUNGS = (
    "holders",
    "collect",
    "caches",
    "reserve",
    "compact",
    "expandable",
    "wait",
    "shrink",
    "else",
    "spill",
    "activations",
    "page",
    "cudamalloc",
)
NAMES = (*RUNGS, "retry")

SPEC = Spec(
    name="cuda_guard",
    summary=(
        "Run the cell exactly as it would run without this line;"
        " on out of GPU memory make room and repeat the statement."
    ),
    options=(
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
        Option("--checkpoint", "keep the state of these objects on the host, put it back before a repeat", "NAME,..."),
        Option("--repeat-anyway", "repeat a statement although it changed what cannot be put back"),
        Option("--retry-at-call", "watch each operation from the start: one that runs out of memory is repeated alone"),
        Option("--free-outputs", "let go of shown values (Out, _) that hold GPU memory too"),
        Option("--no-move", "never move tensors on the card"),
        Option("--move-anyway", "move tensors although something may remember their addresses"),
        Option("--only", "use these rungs alone", "RUNG,...", {}, NAMES),
        Option("--without", "leave these rungs out", "RUNG,...", {}, NAMES),
        Option("--park", "tensors that make room wait on this other card and not on the host", "DEVICE"),
        Option("--reserve", "set this much aside, to serve only when the memory is full (0)", "SIZE"),
        Option("--report", "bind the report to this variable, on success too", "NAME"),
        Option("--quiet", "no line to stderr for each repeat"),
        Option("--all", "guard every following cell, with these options"),
        Option("--off", "end --all"),
    ),
    examples=(
        ("%%cuda_guard", "run the cell, rescued where it can be"),
        ("%cuda_guard", "the report of the last guarded cell"),
        ("%%cuda_guard --shrink batch_size=8", "lower batch_size until the statement fits"),
        ("%%cuda_guard --shrink bs --grow accum", "the same, with as many more steps of accumulation"),
        ("%%cuda_guard --wait 60", "wait up to a minute for other processes"),
        ("%%cuda_guard --else device='cpu'", "at last, with another value"),
        ("%%cuda_guard --checkpoint model,optimizer", "a training loop that may start again"),
        ("%%cuda_guard --retry-at-call", "a training loop that goes on at the very operation that failed"),
        ("%%cuda_guard --only holders,collect,caches", "no more than what costs nothing"),
        ("%%cuda_guard --reserve 1GiB", "1 GiB more at the moment when it is needed, nothing repeated"),
        ("%%cuda_guard --park cuda:1", "what has to make room waits on the other card"),
        ("%cuda_guard --all", "guard every following cell"),
    ),
)

_last: list[Report] = []
_everywhere: list[Everywhere] = []


def _words(line: str) -> list[str]:
    """The words of a line; what stands in quotes or brackets is one word, and stays as it is typed."""
    words: list[str] = []
    word, quote, depth = "", "", 0
    for c in line:
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c.isspace() and not depth:
            words += [word] if word else []
            word = ""
            continue
        word += c
    if quote or depth > 0:
        raise UserError(f"cuda_guard: {line.strip()!r}: a quote or a bracket is not closed.")
    return [*words, word] if word else words


def _name(text: str, flag: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise UserError(f"cuda_guard: {flag} takes the name of a variable, not {text!r}.")
    return text


def _listed(text: str | None, flag: str, what: str) -> tuple[str, ...]:
    """The names of a list with commas; none where the option is not given."""
    names = tuple(n.strip() for n in (text or "").split(",") if n.strip())
    if text is not None and not names:
        raise UserError(f"cuda_guard: {flag} names at least {what}, not {text!r}.")
    return names


def _rungs(text: str | None, flag: str) -> tuple[str, ...]:
    names = _listed(text, flag, "a rung, as in holders,collect")
    for name in names:
        if name not in NAMES:
            hint = nearest(name, NAMES) or f" Rungs: {', '.join(NAMES)}"
            raise UserError(f"cuda_guard: {flag} knows no rung {name!r}.{hint}")
    return names


def _shrink(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    name, equals, floor = text.partition("=")
    if equals and (not floor.isdigit() or int(floor) < 1):
        raise UserError(f"cuda_guard: --shrink {text}: the smallest value is an integer of 1 or more, as in {name}=8.")
    return _name(name, "--shrink"), int(floor) if equals else 1


def _size(text: str | None, flag: str) -> int:
    from ..render.units import parse_bytes

    try:
        return parse_bytes(text.strip("'\"")) if text else 0
    except ValueError:
        raise UserError(f"cuda_guard: {flag} takes a size such as 2GiB or 512MiB, not {text!r}.") from None


def _check_rungs(given: Any) -> None:
    """Refuse an option whose rung --only or --without leaves out, and a choice that leaves none."""
    only, without = _rungs(given.only, "--only"), _rungs(given.without, "--without")
    if not set(only or NAMES) - set(without):
        raise UserError(
            "cuda_guard: --only and --without leave no rung." if only else "cuda_guard: --without leaves no rung."
        )
    for option, value, *rungs in (
        ("--wait", given.wait, "wait"),
        ("--shrink", given.shrink, "shrink"),
        ("--else", given.otherwise, "else"),
        ("--park", given.park, "spill", "activations", "page"),
        ("--reserve", given.reserve, "reserve"),
        ("--retry-at-call", given.retry_at_call, "retry"),
    ):
        if not value:
            continue
        if not set(rungs) - set(without):
            raise UserError(f"cuda_guard: {option} and --without {','.join(rungs)} contradict each other.")
        if only and not set(rungs) & set(only):
            said = " or ".join(filter(None, (", ".join(rungs[:-1]), rungs[-1])))
            example = ",".join((*only, rungs[0]))
            raise UserError(f"cuda_guard: {option} needs {said} in --only, as in --only {example}.")
    if given.park and given.no_move:
        raise UserError("cuda_guard: --park and --no-move contradict each other.")


def options(line: str, settings: Any) -> tuple[GuardOptions, Any]:
    """The options of a line, and the parsed line itself; kept: a cell that runs again has the same line.

    Raises
    ------
    UserError
        One sentence with the nearest right spelling.
    """
    return _options(line, settings.retries, settings.wait, settings.quiet)


@lru_cache(maxsize=32)
def _options(line: str, default_retries: int, default_wait: float, default_quiet: bool) -> tuple[GuardOptions, Any]:
    from ..rescue.options import GuardOptions, other_card

    given = SPEC.parse(_words(line))
    otherwise = []
    for text in given.otherwise or ():
        name, equals, expression = text.partition("=")
        if not equals or not expression:
            raise UserError(f"cuda_guard: --else takes NAME=EXPR, as in device='cpu', not {text!r}.")
        try:
            compile(expression, "--else", "eval")
        except SyntaxError:
            raise UserError(f"cuda_guard: --else {text}: {expression!r} is no Python expression.") from None
        otherwise.append((_name(name, "--else"), expression))
    if given.no_move and given.move_anyway:
        raise UserError("cuda_guard: --no-move and --move-anyway contradict each other.")
    if given.grow and not given.shrink:
        raise UserError("cuda_guard: --grow needs --shrink NAME, whose variable goes down.")
    _check_rungs(given)
    retries = default_retries if given.retries is None else given.retries
    wait = default_wait if given.wait is None else given.wait
    if retries < 0 or not wait >= 0:  # so that nan is refused too
        raise UserError("cuda_guard: --retries and --wait are 0 or more.")
    checkpoint = tuple(
        _name(name, "--checkpoint")
        for name in _listed(given.checkpoint, "--checkpoint", "one object, as in model,optimizer")
    )
    shrink = _shrink(given.shrink)
    if shrink and given.grow == shrink[0]:
        raise UserError(f"cuda_guard: --shrink and --grow name the same variable, {given.grow}.")
    made = GuardOptions(
        retries=retries,
        wait=wait,
        shrink=shrink,
        grow=_name(given.grow, "--grow") if given.grow else None,
        otherwise=tuple(otherwise),
        checkpoint=checkpoint,
        repeat_anyway=given.repeat_anyway,
        retry_at_call=given.retry_at_call,
        no_move=given.no_move,
        move_anyway=given.move_anyway,
        free_outputs=given.free_outputs,
        only=_rungs(given.only, "--only"),
        without=_rungs(given.without, "--without"),
        report=_name(given.report, "--report") if given.report else None,
        quiet=given.quiet or default_quiet,
        park=other_card(given.park, "cuda_guard: --park") if given.park is not None else None,
        reserve=_size(given.reserve, "--reserve"),
    )
    return made, given


def _check_names(made: GuardOptions, shell: Any, hooks: Any, body: str) -> None:
    """Refuse what cannot work before anything runs: names that are nowhere, or that the cell itself assigns."""
    if not (made.checkpoint or made.otherwise or made.shrink or made.grow or made.report):
        return
    import ast

    asked = dict.fromkeys(made.checkpoint, "--checkpoint")
    asked |= {n: "--else" for n, _ in made.otherwise}
    if made.shrink:
        asked[made.shrink[0]] = "--shrink"
    if made.grow:
        asked[made.grow] = "--grow"
    try:
        tree = hooks.translate(body).tree
    except SyntaxError:
        return  # IPython says it best, when the cell runs
    assigned = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    if made.report in assigned:
        raise UserError(
            f"cuda_guard: --report {made.report}: the cell itself assigns {made.report}, "
            "and the report would replace it."
        )
    for name, flag in asked.items():
        if flag != "--checkpoint" and name in assigned:
            raise UserError(
                f"cuda_guard: {flag} {name}: the cell itself assigns {name}, so a repeat would set it again; "
                "assign it in an earlier cell."
            )
        if name not in shell.user_ns and name not in assigned:
            known = [n for n in shell.user_ns if isinstance(n, str) and not n.startswith("_")]
            raise UserError(f"cuda_guard: {flag} names {name!r}, which does not exist.{nearest(name, known)}")


@cache
def _rooms() -> tuple[Any, Any]:
    """What runs and rescues a cell, loaded with the first guarded one."""
    from ..cells.run import run
    from ..rescue.guard import GuardRun

    return run, GuardRun


def run(magics: Any, line: str, cell: str | None) -> Any:
    """The value of the guarded cell, or the report of the last one."""
    __tracebackhide__ = True
    made, given = options(line, magics.settings)
    if cell is None:
        return _line(magics, line, given)
    if given.all or given.off:
        raise UserError("cuda_guard: --all and --off stand on a line of their own, as in %cuda_guard --all")
    run_cell, guard_run = _rooms()
    _check_names(made, magics.shell, magics.hooks, cell)

    def bind(report: Report) -> None:
        _last[:] = [report]
        if made.report:
            magics.shell.user_ns[made.report] = report

    return run_cell(magics, cell, guard_run(made, magics.shell, bind=bind))


def _line(magics: Any, line: str, given: Any) -> Any:
    if given.all and given.off:
        raise UserError("cuda_guard: --all and --off contradict each other.")
    if given.all or given.off:
        from ..cells.everywhere import Everywhere

        close_everywhere()
        if given.all:
            words = [word for word in _words(line) if word != "--all"]
            _everywhere.append(Everywhere(magics.hooks, " ".join(words)))
            _everywhere[0].install()
        return None
    if line.strip():
        raise UserError(
            "cuda_guard: options belong on a cell's first line, %%cuda_guard; %cuda_guard shows the report."
        )
    if not _last:
        raise UserError("cuda_guard: no cell has been guarded yet; put %%cuda_guard on the first line of one.")
    return _last[0]


def close() -> None:
    """Forget the last report and end --all (on unloading), and bring back what still waits elsewhere."""
    from ..rescue.waiting import bring_back

    _last.clear()
    close_everywhere()
    bring_back()


def close_everywhere() -> None:
    """End --all."""
    while _everywhere:
        _everywhere.pop().remove()

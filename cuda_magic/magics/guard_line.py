"""What stands on the first line of a guarded cell, checked before anything runs. One sentence for each mistake."""

from __future__ import annotations

import ast
import builtins
import keyword
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ..errors import UserError, nearest
from ..rescue.options import GONE, NAMES, RUNGS, GuardOptions, shrunk, whole_number
from ..rescue.report import Report
from .cuda_guard import SPEC

__all__ = ["check", "options", "words"]

LEAST = 1 << 20
"""Bytes: a smaller size is a unit forgotten."""
_ASKED_FOR = {
    "wait": "--wait SECONDS",
    "shrink": "--shrink NAME",
    "else": "--else NAME=EXPR",
}
"""Rungs that do nothing unless asked for, and how."""
_PLAIN = GuardOptions()
_MOVING = ("compact", "spill")
"""Rungs that --no-move leaves out."""


def words(line: str) -> list[str]:
    """The words of a line as they are typed; what stands in quotes or brackets is one word."""
    found: list[str] = []
    word, quote, depth = "", "", 0
    for c in line + " ":
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c.isspace() and not depth:
            found += [word] if word else []
            word = ""
            continue
        word += c
    if quote or depth > 0:
        raise UserError(f"cuda_guard: {line.strip()!r}: a quote or a bracket is not closed.")
    return found


def _bare(word: str) -> str:
    """A word without the quotes that stand around all of it."""
    whole = len(word) > 1 and word[0] in "'\"" and word.find(word[0], 1) == len(word) - 1
    return word[1:-1] if whole else word


def _name(text: str, flag: str) -> str:
    if text.isidentifier() and not keyword.iskeyword(text):
        return text
    part = any(mark in text for mark in ".[") and text[:1].isidentifier()
    hint = f"; give it a name of its own in an earlier cell, as in size = {text}" if part else ""
    raise UserError(f"cuda_guard: {flag} takes the name of a variable, not {text!r}{hint}.")


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


def _size(text: str, flag: str) -> int:
    from ..render.units import parse_bytes

    try:
        size = parse_bytes(text.strip("'\""))
    except ValueError:
        raise UserError(f"cuda_guard: {flag} takes a size such as 2GiB or 512MiB, not {text!r}.") from None
    if 0 < size < LEAST:
        raise UserError(f"cuda_guard: {flag} {text}: that is next to nothing; a size has a unit, as in 1GiB.")
    return size


def _check_rungs(given: Any) -> None:
    """Refuse an option whose rung --only or --without leaves out, and a choice that leaves none."""
    only, without = _rungs(given.only, "--only"), _rungs(given.without, "--without")
    asked = {"wait": given.wait, "shrink": given.shrink, "else": given.otherwise}
    for rung, how in _ASKED_FOR.items():
        option = how.split()[0]
        if not asked[rung]:
            continue
        if rung in without:
            raise UserError(f"cuda_guard: {option} and --without {rung} contradict each other.")
        if only and rung not in only:
            raise UserError(f"cuda_guard: {option} needs {rung} in --only, as in --only {','.join((*only, rung))}.")
    left = [rung for rung in RUNGS if (not only or rung in only) and rung not in without]
    if not left:
        who = "--only and --without leave" if only and without else "--only leaves" if only else "--without leaves"
        raise UserError(f"cuda_guard: {who} no rung that makes room.")
    if given.no_move and all(rung in _MOVING for rung in left):
        raise UserError(f"cuda_guard: --only {','.join(left)} and --no-move leave no rung.")
    idle = [rung for rung in left if rung in asked and not asked[rung]]
    if only and idle == left:
        raise UserError(f"cuda_guard: --only {left[0]} needs {_ASKED_FOR[left[0]]}.")


def _otherwise(given: list[str] | None) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, expression = text.partition("=")
        if not equals or not expression:
            raise UserError(
                f"cuda_guard: --else takes NAME=EXPR with no space around =, as in device='cpu', not {text!r}."
            )
        try:
            compile(expression, "--else", "eval")
        except SyntaxError:
            raise UserError(f"cuda_guard: --else {text}: {expression!r} is no Python expression.") from None
        if name in found:
            raise UserError(f"cuda_guard: --else gives {name} two values.")
        found[_name(name, "--else")] = expression
    return tuple(found.items())


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
    typed = [_bare(word) for word in words(line)]
    gone = next((flag for word in typed if (flag := word.partition("=")[0]) in GONE), None)
    if gone is not None:
        raise UserError(f"cuda_guard: {gone} is gone: {GONE[gone]}.")
    given = SPEC.parse(typed)
    otherwise = _otherwise(given.otherwise)
    if given.grow and not given.shrink:
        raise UserError("cuda_guard: --grow needs --shrink NAME, whose variable goes down.")
    _check_rungs(given)
    retries = default_retries if given.retries is None else given.retries
    wait = default_wait if given.wait is None else given.wait
    if retries < 0:
        raise UserError(f"cuda_guard: --retries is 0 or more, not {retries}.")
    if not wait >= 0:  # so that nan is refused too
        raise UserError(f"cuda_guard: --wait is 0 seconds or more, not {wait:g}.")
    shrink = None
    if given.shrink is not None:
        shrink = shrunk(given.shrink, "cuda_guard: --shrink")
        _name(shrink[0] or given.shrink, "--shrink")
    if shrink and given.grow == shrink[0]:
        raise UserError(f"cuda_guard: --shrink and --grow name the same variable, {given.grow}.")
    made = GuardOptions(
        retries=retries,
        wait=wait,
        wait_is_set=given.wait is None,
        shrink=shrink,
        grow=_name(given.grow, "--grow") if given.grow else None,
        otherwise=otherwise,
        repeat=given.repeat,
        no_move=given.no_move,
        free_outputs=given.free_outputs,
        only=_rungs(given.only, "--only"),
        without=_rungs(given.without, "--without"),
        report=_name(given.report, "--report") if given.report is not None else None,
        quiet=given.quiet or default_quiet,
        limit=_size(given.limit, "--limit") if given.limit is not None else None,
    )
    return made, given


def check(made: GuardOptions, shell: Any, tree: ast.AST | None, lenient: bool = False) -> GuardOptions:
    """Refuse what cannot work in this cell: names that are nowhere or of the wrong kind, a card that is not there.

    Parameters
    ----------
    made
        The options.
    shell
        Has the user's names.
    tree
        The cell's body; None: there is none.
    lenient
        For a cell that ``--all`` guards: what cannot work there is left out, for this cell.

    Returns
    -------
    GuardOptions
        What is in force.

    Raises
    ------
    UserError
        One sentence; nothing has run.
    """
    nodes = list(ast.walk(tree)) if tree is not None else []
    assigned = frozenset(n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))
    for part, sentence in _wrong(made, shell, assigned):
        if not lenient:
            raise UserError(f"cuda_guard: {sentence}")
        made = replace(made, **{part: getattr(_PLAIN, part)})
    return replace(made, grow=None) if made.grow and made.shrink is None else made


def _wrong(made: GuardOptions, shell: Any, assigned: frozenset[str]) -> Iterator[tuple[str, str]]:
    """(option, what is wrong with it), in the order of their fields."""
    names: Mapping[Any, Any] = shell.user_ns
    floor = made.shrink[1] if made.shrink else 1
    asked = [("otherwise", "--else", name) for name, _ in made.otherwise]
    asked += [("shrink", "--shrink", made.shrink[0])] if made.shrink else []
    asked += [("grow", "--grow", made.grow)] if made.grow else []
    for option, flag, name in asked:
        if name in assigned:
            yield (
                option,
                (
                    f"{flag} {name}: the cell itself assigns {name}, so a repeat would set it again; "
                    "assign it in an earlier cell."
                ),
            )
        elif name not in names and name not in assigned:
            known = [n for n in names if isinstance(n, str) and not n.startswith("_")]
            yield option, f"{flag} names {name!r}, which does not exist.{nearest(name, known)}"
        elif option in ("shrink", "grow") and not whole_number(names[name]):
            kind = type(names[name]).__name__
            yield option, f"{flag} {name}: {name} is no whole number (int) but of the class {kind}."
        elif option == "shrink" and names[name] < floor:
            yield option, f"--shrink {name}={floor}: {name} is {names[name]} already, below that."
    for name, expression in made.otherwise:
        missing = _unknown(expression, names, assigned)
        if missing:
            hint = f"; a text stands in quotes, as in {name}={missing!r}" if expression == missing else ""
            yield "otherwise", f"--else {name}={expression}: there is no {missing}{hint}."
    yield from _wrong_report(made.report, shell, assigned)
    if made.limit is not None:
        wrong = _wrong_limit(made.limit)
        if wrong:
            yield "limit", wrong


def _unknown(expression: str, names: Mapping[str, Any], assigned: frozenset[str]) -> str:
    """The first name that an expression reads and nobody has given a value; empty if there is none."""
    nodes = list(ast.walk(ast.parse(expression, mode="eval")))
    own = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    own |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    read = [n.id for n in nodes if isinstance(n, ast.Name) and n.id not in own]
    return next((n for n in read if n not in names and n not in assigned and not hasattr(builtins, n)), "")


def _wrong_report(name: str | None, shell: Any, assigned: frozenset[str]) -> Iterator[tuple[str, str]]:
    if name is None:
        return
    old = shell.user_ns.get(name)
    if name in assigned:
        yield "report", f"--report {name}: the cell itself assigns {name}, and the report would replace it."
    elif name in getattr(shell, "user_ns_hidden", ()) or hasattr(builtins, name):
        yield "report", f"--report {name}: {name} is a name of Python's or IPython's own; choose another."
    elif old is not None and not isinstance(old, Report):
        kind = type(old).__name__
        yield "report", f"--report {name}: {name} is there already ({kind}), and the report would replace it."


def _wrong_limit(limit: int) -> str:
    """Why a cell cannot run within so many bytes; empty where it may."""
    from ..machine import machine
    from ..render.units import bytes_text

    if not limit:
        return "--limit 0 leaves nothing; %cuda_guard --limit 0, on a line of its own, ends the kernel's limit."
    allocator = machine().allocator()
    used = [allocator.stats(device).allocated for device in allocator.devices()] if allocator is not None else []
    if used and max(used) > limit:
        return f"--limit {bytes_text(limit)}: {bytes_text(max(used))} are in use already."
    return ""

"""Setting and unsetting: all that a line asks for, or nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ..errors import Refused, UserError, nearest
from .catalogue import CATALOGUE, find
from .state import Progress, progress
from .verdict import Situation, faults

__all__ = ["apply", "check", "known", "parse", "quoted", "set_at", "undo", "words"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_before: list[dict[str, str | None]] = []
"""What stood before each change, the last one at the end."""
set_at: dict[str, tuple[str | None, Progress]] = {}
"""The value that we gave each variable, and how far the process had come then."""


def words(line: str) -> list[str]:
    """The words of a line. Quotes and brackets group; one pair of quotes around a value is taken off.

    Raises
    ------
    UserError
        If a quote or bracket is left open.
    """
    found: list[str] = []
    word, quote, depth, started = "", "", 0, False
    for c in line:
        if quote:
            if c == quote:
                quote = ""
            else:
                word += c
        elif c in "'\"":
            quote, started = c, True
        elif c.isspace() and not depth:
            if started or word:
                found.append(word)
            word, started = "", False
        else:
            depth += (c == "[") - (c == "]")
            word += c
    if quote or depth > 0:
        raise UserError(f"cuda_env: {quote or '['} is not closed in {line.strip()!r}.")
    return [*found, word] if started or word else found


def quoted(line: str) -> set[str]:
    """The names whose value stands in quotes on `line`."""
    return {m[1] for m in re.finditer(r"""(?:^|\s)["']?(\w+)=["']""", line)}


def parse(assignments: Sequence[str]) -> dict[str, str]:
    """Names to values of ``NAME=VALUE`` words.

    Raises
    ------
    UserError
        If a word is no assignment, a name is no name, or one name has two values.
    """
    wanted: dict[str, str] = {}
    if "=" in assignments:
        raise UserError("cuda_env: write NAME=VALUE without spaces around the equals sign.")
    for word in assignments:
        name, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"cuda_env: {word!r} has no value; write {word}=VALUE.")
        if not _NAME.fullmatch(name):
            raise UserError(f"cuda_env: {name!r} is not the name of a variable.")
        if wanted.setdefault(name, value) != value:
            raise UserError(f"cuda_env: {name} is given two values, {wanted[name]} and {value}; write one.")
    return wanted


def check(name: str, value: str, situation: Situation, force: bool = False) -> tuple[str, ...]:
    """Whether `value` may be set; gives what there is to know about it.

    Raises
    ------
    UserError
        If the value is illegal, or the name looks like a misspelt one.
    Refused
        If the value is legal and setting it now would break the next CUDA call.
    """
    if "\0" in value:
        raise UserError(f"cuda_env: {name} holds a zero byte, which no environment can.")
    if find(name) is None:
        hint = _misspelt(name)
        if hint and not force:
            raise UserError(f"cuda_env: {name} is not known.{hint} (--force sets it all the same)")
        return ("not in the catalogue: set as it is",)
    refused, notes = faults(name, value, situation)
    if not refused:
        return notes
    if force:
        return (*notes, f"forced: {refused}")
    if "already imported" in refused:
        raise Refused(f"cuda_env: {name}={value} is refused: {refused}.")
    raise UserError(f"cuda_env: {name}={value} is not legal: {refused}{'' if refused[-1] in '.?' else '.'}")


def _misspelt(name: str) -> str:
    known = [v.name for v in CATALOGUE]
    return next((f" Did you mean {k!r}?" for k in known if _edits(name.upper(), k, 2) <= 2), "")


def _edits(a: str, b: str, most: int) -> int:
    """Levenshtein distance of two names, `most` + 1 where it is larger."""
    if abs(len(a) - len(b)) > most:
        return most + 1
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))
    return row[-1]


def apply(wanted: dict[str, str | None]) -> None:
    """Set (or with None unset) all of `wanted` in this process; `undo` takes it back."""
    _before.append({name: os.environ.get(name) for name in wanted})
    _put(wanted)


def undo() -> list[str]:
    """Back to what stood before the last change; the names concerned.

    Raises
    ------
    Refused
        If nothing was changed since the kernel started.
    """
    if not _before:
        raise Refused("cuda_env: nothing was changed since this kernel started.")
    earlier = _before.pop()
    _put(earlier)
    return list(earlier)


def _put(values: dict[str, str | None]) -> None:
    reached = progress()
    for name, value in values.items():
        set_at[name] = (value, reached)
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def known(name: str) -> None:
    """Raise UserError where `name` is not in the catalogue and not set."""
    if find(name) is None and name not in os.environ:
        names = [v.name for v in CATALOGUE]
        raise UserError(f"cuda_env: {name} is not in the catalogue and not set.{nearest(name, names)}")

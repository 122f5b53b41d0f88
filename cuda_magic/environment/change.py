"""Setting and unsetting: all that a line asks for, or nothing."""

from __future__ import annotations

import os
import re
import sys

from ..errors import Refused, UserError, nearest
from .catalogue import CATALOGUE, find, near
from .state import Progress, progress
from .typed import parse, words
from .verdict import Situation, faults

__all__ = ["apply", "check", "known", "ours", "parse", "quoted", "set_at", "undo", "words"]

_before: list[dict[str, str | None]] = []
"""What stood before each change, the last one at the end."""
set_at: dict[str, tuple[str | None, Progress]] = {}
"""The value that we gave each variable, and how far the process had come then."""


def quoted(line: str) -> set[str]:
    """The names whose value stands in quotes on `line`."""
    return {m[1] for m in re.finditer(r"""(?:^|\s)["']?(\w+)=["']""", line)}


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
        return (f"not in the catalogue: set as it is{near(name)}",)
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


def ours() -> list[str]:
    """The variables that were set here and still are, whether the catalogue has them or not; before a restart in place
    too, whose new process was told their names.
    """
    carried = getattr(sys.modules.get("cuda_magic.kernel.resume"), "carried", ())
    return [name for name in dict.fromkeys((*carried, *set_at)) if name in os.environ]


def known(name: str) -> None:
    """Raise UserError where `name` is not in the catalogue and not set."""
    if find(name) is None and name not in os.environ:
        names = [v.name for v in CATALOGUE]
        raise UserError(f"cuda_env: {name} is not in the catalogue and not set.{nearest(name, names)}")

"""How a user reaches a tensor that a name only leads to: by a closure, a default argument, an object's attribute."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..memory.parts import from_machinery, parts

if TYPE_CHECKING:
    from ..memory.allocator import Allocator

__all__ = ["readable"]

_MARK = re.compile(r"\(in ([^,()]+), [0-9]+\)((?:\.\w+|\[[^\]]*\])*)")
"""What the marks call the object, and the way from there on: they count, since most statements do not fail."""
_AGAIN = re.compile(r"(what [^,;]+ leads to)(?:, \1)+")
MOST = 5000
"""Objects that are looked at."""


def readable(sentences: Sequence[str], names: Mapping[str, Any], allocator: Allocator | None) -> list[str]:
    """The marks' sentences, with what the user would write in the place of their own words."""

    def text(match: re.Match[str]) -> str:
        start = _path(match[1], names, allocator)
        if start is not None:
            return start + match[2]
        return f"{match[2].lstrip('.')} of what {match[1]} leads to" if match[2] else f"what {match[1]} leads to"

    return [_AGAIN.sub(r"\1", _MARK.sub(text, sentence)) for sentence in sentences]


def _path(name: str, names: Mapping[str, Any], allocator: Allocator | None) -> str | None:
    """The way from a name to the one object below it that leads to tensors; None where there are several, or none."""
    if allocator is None or name not in names:
        return None
    seen = {id(names), *map(id, names.values())}  # what has a name of its own goes by that
    todo: deque[tuple[str, Any]] = deque([(name, names[name])])
    found: list[str] = []
    left = MOST
    while todo and left:
        left -= 1
        path, value = todo.popleft()
        if allocator.follows(value) and path != name:
            found.append(path)
            continue
        if from_machinery(value):
            continue
        for step, part in parts(value):
            if id(part) not in seen:
                seen.add(id(part))
                todo.append((path + step, part))
    return found[0] if len(found) == 1 and left else None

"""What happens to a value that is set at each moment of a process: the documentation's table, from the catalogue."""

from __future__ import annotations

from .catalogue import CATALOGUE
from .state import Progress
from .verdict import takes_effect

__all__ = ["MOMENTS", "markdown", "matrix"]

MOMENTS: tuple[tuple[str, Progress], ...] = (
    ("before import torch", Progress()),
    ("after import torch", Progress(imported=True)),
    ("after is_available()", Progress(imported=True, started=True)),
    ("after the first tensor on a GPU", Progress(imported=True, initialised=True, started=True, context=True)),
)
"""The four moments, and how far a process has come then."""


def matrix() -> list[tuple[str, tuple[str, ...], bool]]:
    """(variable, its state if it is set at each of `MOMENTS`, whether only documented) for the whole catalogue."""
    return [(v.name, tuple(takes_effect(v, at)[0] for _, at in MOMENTS), v.documented) for v in CATALOGUE]


def markdown() -> str:
    """The matrix as a table of Markdown."""
    lines = ["| variable | " + " | ".join(title for title, _ in MOMENTS) + " | |"]
    lines.append("|---" * (len(MOMENTS) + 2) + "|")
    for name, states, documented in matrix():
        lines.append(f"| {name} | {' | '.join(states)} | {'documented' if documented else ''} |")
    return "\n".join(lines)

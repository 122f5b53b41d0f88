"""``%%cuda_guard``: can this cell survive running out of GPU memory?"""

from __future__ import annotations

from typing import Any

from .options import Spec

SPEC = Spec(
    name="cuda_guard",
    summary=(
        "Run the cell exactly as it would run without this line;"
        " on out of GPU memory make room and repeat the statement."
    ),
    examples=(
        ("%%cuda_guard", "run the cell, rescued where it can be"),
        ("%cuda_guard", "the report of the last guarded cell"),
    ),
)


def run(magics: Any, line: str, cell: str | None) -> Any:
    """The value of the guarded cell, or the report of the last one."""
    __tracebackhide__ = True
    raise NotImplementedError


def close() -> None:
    """Bring back whatever is parked (on unloading)."""

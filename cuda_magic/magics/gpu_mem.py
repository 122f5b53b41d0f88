"""``%gpu_mem``: who holds the memory of each GPU, now?"""

from __future__ import annotations

from typing import Any

from .options import Spec

SPEC = Spec(
    name="gpu_mem",
    summary="Show who holds the memory of each GPU: a live panel, one reading, processes, variables, segments.",
    examples=(
        ("%gpu_mem", "live panel (a table where there is no widget front end)"),
        ("%gpu_mem --once", "one reading"),
    ),
)


def run(magics: Any, line: str, cell: str | None) -> Any:
    """The result of one ``%gpu_mem`` line or ``%%gpu_mem`` cell."""
    __tracebackhide__ = True
    raise NotImplementedError


def close() -> None:
    """Stop panels, the sampler and recordings (on unloading)."""

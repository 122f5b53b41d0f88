"""Errors that a repeat makes by itself: they are not the user's, and must not hide the one of the first attempt."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Row", "find"]


@dataclass(frozen=True)
class Row:
    """`ladder`: whether another rung may still help."""

    text: str
    why: str
    ladder: bool
    source: str


ROWS = (
    Row(
        r"Trying to backward through the graph a second time",
        "the failed attempt had used up the graph of an earlier statement: run the forward pass and the backward pass"
        " in one statement",
        ladder=False,
        source="torch/csrc/autograd/variable.cpp (ERR_BACKWARD_TWICE)",
    ),
    Row(
        r"never recomputed, or already unpacked once",
        "the failed attempt had used up a checkpointed graph of an earlier statement",
        ladder=False,
        source="torch/utils/checkpoint.py",
    ),
    Row(
        r"don't yet support saved tensor hooks",
        "activations: torch.func allows no hooks on what autograd saves",
        ladder=True,
        source="torch/_functorch/vmap.py",
    ),
)


def find(error: BaseException) -> Row | None:
    """The row of an error that a repeat raised, None where it is the user's own."""
    if not isinstance(error, RuntimeError):
        return None
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - it may be of a class of the user's
        return None
    return next((row for row in ROWS if re.search(row.text, text)), None)

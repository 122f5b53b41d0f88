"""What a result shows, as a short list of blocks that text.py and html.py both draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Bar", "Block", "Code", "Legend", "Note", "Part", "Picture", "Table", "Text", "Title"]


@dataclass(frozen=True)
class Title:
    """One heading; `label` (``PRACTICE``) stands beside it."""

    text: str
    label: str = ""


@dataclass(frozen=True)
class Text:
    """One paragraph."""

    text: str


@dataclass(frozen=True)
class Note:
    """A finding in a sentence; `severity` is info, warning or error, shown by a word and not by colour alone."""

    severity: str
    text: str


@dataclass(frozen=True)
class Code:
    """Lines to run."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows of ready text. `right` holds the indices of right-aligned columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[int] = field(default_factory=frozenset)
    caption: str = ""


@dataclass(frozen=True)
class Part:
    """One piece of a bar: `amount` in bytes, the character that text draws for it, and its look (palette.py)."""

    name: str
    amount: int
    mark: str = "#"
    look: str = "live"


@dataclass(frozen=True)
class Bar:
    """One device's memory as a bar of parts; `total` in bytes, what no part covers is free.

    `scale` is its length as a share of the longest bar beside it, which takes `columns` in text.
    """

    label: str
    parts: Sequence[Part]
    total: int
    after: str = ""
    scale: float = 1.0
    columns: int = 40


@dataclass(frozen=True)
class Legend:
    """What the looks of the bars above mean: ids of palette.py."""

    looks: Sequence[str]


@dataclass(frozen=True)
class Picture:
    """An SVG drawing made by us (already escaped), and the same in text."""

    svg: str
    text: str


Block = Title | Text | Note | Code | Table | Bar | Legend | Picture

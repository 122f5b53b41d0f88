"""Blocks as plain text: terminals, saved notebooks, nbconvert, papermill. No colour, no control characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from .blocks import Bar, Block, Code, Legend, Note, Picture, Table, Text, Title
from .palette import look

__all__ = ["bar_cells", "bar_text", "draw", "legend_text", "plain", "table_text", "width"]


def plain(text: str) -> str:
    """`text` with control characters made visible: names of processes and devices come from outside."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def width(text: str) -> int:
    """Columns that `text` takes in a terminal."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def draw(blocks: Iterable[Block]) -> str:
    """The blocks, one below the other."""
    return "\n".join(line for block in blocks for line in _lines(block))


def _lines(block: Block) -> list[str]:
    if isinstance(block, Title):
        return [plain(block.text) + (f"  [{block.label}]" if block.label else "")]
    if isinstance(block, Text):
        return [plain(line) for line in block.text.split("\n")]
    if isinstance(block, Note):
        first, *rest = block.text.split("\n")
        return [f"{block.severity.upper()}: {plain(first)}", *("  " + plain(line) for line in rest)]
    if isinstance(block, Code):
        return ["    " + plain(line) for line in block.text.split("\n")]
    if isinstance(block, Table):
        return table_text(block).split("\n")
    if isinstance(block, Bar):
        return [bar_text(block)]
    if isinstance(block, Legend):
        return [legend_text(block)]
    assert isinstance(block, Picture)
    return block.text.split("\n") if block.text else []


def table_text(table: Table) -> str:
    """Aligned columns with two spaces between, the heading underlined."""
    rows = [[plain(str(cell)).replace("\\n", " ") for cell in row] for row in table.rows]
    head = list(table.columns)
    widths = [max(width(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: list[str]) -> str:
        padded = []
        for i, cell in enumerate(cells):
            space = " " * (widths[i] - width(cell))
            padded.append(space + cell if i in table.right else cell + space)
        return "  ".join(padded).rstrip()

    lines = [*([line(head), "  ".join("-" * w for w in widths)] if any(head) else []), *map(line, rows)]
    return "\n".join(([table.caption] if table.caption else []) + lines)


def bar_cells(bar: Bar, columns: int = 0) -> str:
    """``[####==....]`` with one mark a part and a dot for what is free."""
    columns = max(1, round((columns or bar.columns) * bar.scale))
    cells = ""
    done = 0
    for part in bar.parts:
        done += max(part.amount, 0)
        end = min(columns, round(done / bar.total * columns)) if bar.total else 0
        cells += part.mark[:1] * (end - len(cells))
    return f"[{cells.ljust(columns, '.')}]"


def bar_text(bar: Bar, columns: int = 0) -> str:
    """The bar between its words."""
    return f"{plain(bar.label)} {bar_cells(bar, columns)} {plain(bar.after)}".rstrip()


def legend_text(legend: Legend) -> str:
    """The marks of the bars above, each with what it means."""
    return "  ".join(f"{one.mark} {one.words}" for one in map(look, legend.looks))

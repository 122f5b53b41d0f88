"""Blocks as HTML, every text escaped here in one place. Inline styles: a saved notebook keeps no stylesheet.

Where even these are stripped (GitHub), a bar and its legend are the marks that text draws: hidden by a style too.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from .blocks import Bar, Block, Code, Legend, Note, Picture, Table, Text, Title
from .palette import look, paint
from .text import bar_cells, plain
from .units import bytes_text

__all__ = ["draw", "escape"]

_EDGE = {"info": "#3b7dd8", "warning": "#c77700", "error": "#c62828"}
_CAPTION = "text-align:left;font-weight:bold;padding:4px 0;white-space:nowrap"
_CELL = "padding:2px 8px;text-align:{}"
# The colours are the picture's meaning: kept in print and where the user has forced colours of his own.
_TRUE = "print-color-adjust:exact;forced-color-adjust:none"
_STRIPPED = '<span style="display:none">{}</span>'


def escape(text: str) -> str:
    """`text` as HTML text, with control characters made visible."""
    return html.escape(plain(text), quote=True)


def draw(blocks: Iterable[Block]) -> str:
    """The blocks in one ``<div class="cuda-magic">``."""
    return '<div class="cuda-magic">' + "".join(map(_one, blocks)) + "</div>"


def _paragraphs(text: str) -> str:
    return "<br>".join(escape(line) for line in text.split("\n"))


def _one(block: Block) -> str:
    if isinstance(block, Title):
        label = f' <span style="border:1px solid;padding:0 4px">{escape(block.label)}</span>' if block.label else ""
        return f'<p style="margin:4px 0"><strong>{escape(block.text)}</strong>{label}</p>'
    if isinstance(block, Text):
        return f'<p style="margin:4px 0">{_paragraphs(block.text)}</p>'
    if isinstance(block, Note):
        colour = _EDGE.get(block.severity, _EDGE["info"])
        return (
            f'<p style="margin:4px 0;padding-left:8px;border-left:4px solid {colour}">'
            f"<strong>{escape(block.severity.upper())}:</strong> {_paragraphs(block.text)}</p>"
        )
    if isinstance(block, Code):
        lines = "\n".join(escape(line) for line in block.text.split("\n"))
        return f'<pre style="margin:4px 0 4px 12px">{lines}</pre>'
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Bar):
        return _bar(block)
    if isinstance(block, Legend):
        return _legend(block)
    assert isinstance(block, Picture)
    return block.svg


def _table(table: Table) -> str:
    def row(cells: Iterable[str], tag: str) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        drawn = []
        for i, cell in enumerate(cells):
            # numbers keep their line; words may wrap where a page is narrow, else its right columns are cut off
            style = _CELL.format("right;white-space:nowrap" if i in table.right else "left")
            drawn.append(f'<{tag}{scope} style="{style}">{escape(str(cell))}</{tag}>')
        return f"<tr>{''.join(drawn)}</tr>"

    caption = f'<caption style="{_CAPTION}">{escape(table.caption)}</caption>' if table.caption else ""
    head = f"<thead>{row(table.columns, 'th')}</thead>" if any(table.columns) else ""
    return f"<table>{caption}{head}<tbody>{''.join(row(r, 'td') for r in table.rows)}</tbody></table>"


def _bar(bar: Bar) -> str:
    pieces = []
    words = []
    for part in bar.parts:
        share = 100 * max(part.amount, 0) / bar.total if bar.total else 0
        name = f"{part.name} {bytes_text(part.amount)}"
        pieces.append(
            f'<span title="{escape(name)}" style="box-sizing:border-box;display:inline-block;height:12px;'
            f'width:{share:.1f}%;background:{paint(look(part.look))};border-right:1px solid;{_TRUE}"></span>'
        )
        words.append(name)
    spoken = escape(f"{bar.label}: " + (", ".join(words) or "empty"))
    return (
        f'<div style="margin:2px 0">{escape(bar.label)} <span role="img" aria-label="{spoken}" title="{spoken}" '
        f'style="display:inline-block;width:{45 * bar.scale:.1f}%;max-width:{480 * bar.scale:.0f}px;height:12px;'
        f'border:1px solid;line-height:0;vertical-align:middle;white-space:nowrap">{"".join(pieces)}'
        f"{_STRIPPED.format(escape(bar_cells(bar)))}</span> {escape(bar.after)}</div>"
    )


def _legend(legend: Legend) -> str:
    """Each look as a swatch with its words: the one legend, of every bar and of the chart."""
    items = []
    for one in map(look, legend.looks):
        swatch = (
            f'<span style="display:inline-block;width:14px;height:12px;border:1px solid;vertical-align:middle;'
            f'background:{paint(one)};{_TRUE}"></span>'
        )
        mark = _STRIPPED.format(escape(f"{one.mark} "))
        items.append(f'<span style="margin-right:14px;white-space:nowrap">{swatch} {mark}{escape(one.words)}</span> ')
    return f'<p style="margin:4px 0">{"".join(items)}</p>'

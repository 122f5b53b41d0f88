"""Blocks as HTML, every text escaped here in one place. Inline styles: a saved notebook keeps no stylesheet."""

from __future__ import annotations

import html
from collections.abc import Iterable

from .blocks import Bar, Block, Code, Note, Picture, Table, Text, Title
from .text import plain
from .units import bytes_text

__all__ = ["draw", "escape"]

# Colours that keep contrast on light and dark backgrounds; a part is also named in words below its bar.
PART_COLOURS = ("#3b7dd8", "#8fb8ee", "#b07cc6", "#d98b3a", "#8a8a8a", "#4f9d69", "#c0504d", "#5d6d7e")
_EDGE = {"info": "#3b7dd8", "warning": "#c77700", "error": "#c62828"}
_CAPTION = "text-align:left;font-weight:bold;padding:4px 0;white-space:nowrap"
_CELL = "padding:2px 10px;text-align:{};white-space:nowrap"


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
    assert isinstance(block, Picture)
    return block.svg


def _table(table: Table) -> str:
    def row(cells: Iterable[str], tag: str) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        drawn = []
        for i, cell in enumerate(cells):
            style = _CELL.format("right" if i in table.right else "left")
            drawn.append(f'<{tag}{scope} style="{style}">{escape(str(cell))}</{tag}>')
        return f"<tr>{''.join(drawn)}</tr>"

    caption = f'<caption style="{_CAPTION}">{escape(table.caption)}</caption>' if table.caption else ""
    head = f"<thead>{row(table.columns, 'th')}</thead>" if any(table.columns) else ""
    return f"<table>{caption}{head}<tbody>{''.join(row(r, 'td') for r in table.rows)}</tbody></table>"


def _bar(bar: Bar) -> str:
    pieces = []
    words = []
    for i, part in enumerate(bar.parts):
        share = 100 * max(part.amount, 0) / bar.total if bar.total else 0
        colour = PART_COLOURS[i % len(PART_COLOURS)]
        pieces.append(f'<span style="display:inline-block;height:12px;width:{share:.1f}%;background:{colour}"></span>')
        words.append(f"{part.name} {bytes_text(part.amount)}")
    spoken = escape(f"{bar.label}: " + (", ".join(words) or "empty"))
    return (
        f'<div style="margin:2px 0">{escape(bar.label)} <span role="img" aria-label="{spoken}" title="{spoken}" '
        f'style="display:inline-block;width:240px;height:12px;border:1px solid;line-height:0;vertical-align:middle">'
        f"{''.join(pieces)}</span> {escape(bar.after)}</div>"
    )

"""The history as a still picture: SVG for a saved notebook and its exports, one line a device in text."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..devices.replay import steps
from ..render.blocks import Legend, Picture
from ..render.html import draw, escape
from ..render.palette import look, pattern_svg
from ..render.units import bytes_text
from .history import Point, Row, thin
from .wire import FIELDS, MIB, PEAK, UNTOLD, USED, UTIL

__all__ = ["AT", "STACK", "picture", "stacked"]

STACK = ("live", "cached", "fragmented", "pools", "context", "kernels", "others", "untold", "unattributed")
"""Parts from the ground up, as the bars and the panel's chart have them."""
AT = {**{name: 4 + i for i, name in enumerate(FIELDS)}, "untold": UNTOLD}
POINTS = 120
"""Of each device, at most."""
SHOWN = 8
"""Devices, at most; the others are in the table."""
WIDE, HIGH, LEFT, TOP = 560, 70, 64, 18
GAP = 3.5
"""Readings apart by more than so many times the usual distance have a gap between them."""


def stacked(row: Row) -> dict[str, int] | None:
    """Each part's MiB, which add up to what is used; None where that is not known."""
    if not row or row[USED] is None:
        return None
    left = row[USED] or 0
    parts = {}
    for name in STACK:
        held = min(left, max(0, (row[AT[name]] if len(row) > AT[name] else 0) or 0))
        parts[name] = held
        left -= held
    parts["untold"] += left
    return parts


def _runs(points: Sequence[Point], at: int) -> list[list[tuple[float, dict[str, int], Row]]]:
    """The device's readings, cut where none was made or it was not there."""
    apart = sorted(b.time - a.time for a, b in pairwise(points))
    usual = max(apart[len(apart) // 2] if apart else 1.0, 1.0)
    runs: list[list[tuple[float, dict[str, int], Row]]] = []
    last = float("-inf")
    for point in points:
        row = point.rows[at] if at < len(point.rows) else ()
        parts = stacked(row)
        if parts is None:
            last = float("-inf")
            continue
        if point.time - last > GAP * usual:
            runs.append([])
        runs[-1].append((point.time, parts, row))
        last = point.time
    return runs


def picture(
    points: Sequence[Point], cards: Sequence[dict[str, Any]], marks: Sequence[dict[str, Any]] = ()
) -> Picture | None:
    """The picture; None while there is nothing to draw."""
    few = thin(list(points), POINTS)
    drawn = [i for i, card in enumerate(cards) if card["total"] and _runs(few, i)][:SHOWN]
    if len(few) < 2 or not drawn:
        return None
    began, ended = few[0].time, few[-1].time
    # the same for the same readings: a notebook that is run again does not change by it
    name = f"cmg{zlib.crc32(repr([(point.time, point.rows) for point in few]).encode()):08x}"
    looks: set[str] = set()
    rows, words = [], []
    for place, i in enumerate(drawn):
        svg, used = _device(few, i, cards[i], span=(began, ended), top=place * (HIGH + TOP + 8), name=name)
        rows.append(svg)
        looks |= used
        words.append(_line(points, i, cards[i]))
    high = len(drawn) * (HIGH + TOP + 8)
    rows += [_axis(began, ended, high), *(_mark(mark, began, ended, high) for mark in marks)]
    kept = [one for one in STACK if one in looks]
    defs = "".join(pattern_svg(look(one), f"{name}-{one}") for one in kept)
    clock = f"{_clock(began)} to {_clock(ended)} UTC"
    rest = sum(1 for i, card in enumerate(cards) if card["total"] and _runs(few, i)) - len(drawn)
    more = f"; {rest} more devices are not drawn" if rest > 0 else ""
    spoken = escape(f"Memory in use, {clock}{more}. " + ". ".join(words))
    return Picture(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDE + 10} {high + 20}" role="img" '
        f'aria-label="{spoken}" style="width:100%;max-width:760px;height:auto;display:block;forced-color-adjust:none" '
        f'font-size="11" fill="currentColor"><defs>{defs}</defs>{"".join(rows)}</svg>' + draw([Legend(kept)]),
        "\n".join([f"Memory in use, {clock}{more}", *words]),
    )


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(at))


def _line(points: Sequence[Point], at: int, card: dict[str, Any]) -> str:
    used = [point.rows[at][USED] if at < len(point.rows) else None for point in points]
    tops = [point.rows[at][PEAK] for point in points if at < len(point.rows) and len(point.rows[at]) > PEAK]
    highest = max([n for n in (*used, *tops) if n is not None], default=None)
    told = bytes_text(None if highest is None else highest * MIB)
    return f"GPU {card['id']} {steps(used, card['total'])} highest {told} of {bytes_text(card['total'] * MIB)}"


def _device(
    points: Sequence[Point], at: int, card: dict[str, Any], *, span: tuple[float, float], top: int, name: str
) -> tuple[str, set[str]]:
    """One device's areas, utilization and frame, and the looks that are seen in them."""
    total, ground = card["total"], top + TOP + HIGH

    def x(when: float) -> int:
        return LEFT + round(WIDE * (when - span[0]) / max(span[1] - span[0], 0.001))

    def y(mib: float) -> int:
        return int(ground - round(HIGH * min(mib, total) / total))

    runs = _runs(points, at)
    made, looks = [], set()
    base = [[0] * len(run) for run in runs]
    for part in STACK:
        if not any(parts[part] for run in runs for _, parts, _ in run):
            continue
        looks.add(part)
        path = ""
        for below, run in zip(base, runs, strict=True):
            tops = [low + parts[part] for low, (_, parts, _) in zip(below, run, strict=True)]
            over = "L".join(f"{x(when)} {y(high)}" for high, (when, _, _) in zip(tops, run, strict=True))
            back = "L".join(f"{x(run[k][0])} {y(below[k])}" for k in reversed(range(len(run))))
            # a reading alone has a width too
            path += f"M{over}L{back}Z" if len(run) > 1 else f"M{x(run[0][0]) - 1} {y(tops[0])}h2V{y(below[0])}h-2Z"
            below[:] = tops
        colour = look(part).colour
        made.append(f'<path d="{path}" fill="url(#{name}-{part})" stroke="{colour}" stroke-width="0.7"/>')
    busy = "".join(
        "M" + "L".join(f"{x(when)} {ground - round(HIGH * min(percent, 100) / 100)}" for when, percent in known)
        for run in runs
        if len(known := [(when, row[UTIL] or 0) for when, _, row in run if row[UTIL] is not None]) > 1
    )
    if busy:
        made.append(f'<path d="{busy}" fill="none" stroke="currentColor" stroke-width="0.8" opacity="0.7"/>')
    caps = [(when, row[PEAK] or 0) for run in runs for when, _, row in run if len(row) > PEAK and row[PEAK]]
    made += [f'<path d="M{x(when) - 4} {y(high)}h8" stroke="currentColor" stroke-width="2"/>' for when, high in caps]
    gib = f"{total / 1024:.0f} GiB"
    return (
        f'<text x="{LEFT}" y="{top + 13}" font-weight="bold">GPU {escape(card["id"])} {escape(card["name"])}</text>'
        f'<text x="{LEFT - 5}" y="{ground - HIGH + 9}" text-anchor="end">{gib}</text>'
        f'<text x="{LEFT - 5}" y="{ground}" text-anchor="end">0</text>{"".join(made)}'
        f'<path d="M{LEFT} {ground - HIGH}h{WIDE}M{LEFT} {ground}h{WIDE}" stroke="currentColor" stroke-width="0.5"/>',
        looks,
    )


def _axis(began: float, ended: float, ground: int) -> str:
    words = []
    for k, anchor in enumerate(("start", "middle", "end")):
        when = began + (ended - began) * k / 2
        words.append(f'<text x="{LEFT + WIDE * k // 2}" y="{ground + 12}" text-anchor="{anchor}">{_clock(when)}</text>')
    return "".join(words)


def _mark(mark: dict[str, Any], began: float, ended: float, high: int) -> str:
    """A thin line where a cell began, a flag where memory ran out or a rescue was made."""
    if not began <= mark["a"] <= ended:
        return ""
    x = LEFT + round(WIDE * (mark["a"] - began) / max(ended - began, 0.001))
    if mark["k"] == "cell":
        line = f'<path d="M{x} {TOP - 6}V{high}" stroke="currentColor" stroke-width="0.4" stroke-dasharray="1 3">'
        return f"{line}<title>In [{mark['n']}]</title></path>"
    word = "out of memory" if mark["k"] == "oom" else str(mark.get("x", "rescued"))
    flag = "▼" if mark["k"] == "oom" else "◆"
    return f'<text x="{x}" y="{TOP - 6}" text-anchor="middle">{flag}<title>{escape(word)}</title></text>'

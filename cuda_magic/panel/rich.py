"""The rich panel: one anywidget, JavaScript and CSS from this package, no build step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from ..render.palette import css, data

__all__ = ["Rich"]

_HERE = Path(__file__).parent


SCRIPTS = (
    "js/uPlot.iife.min.js",
    "js/words.js",
    "js/history.js",
    "js/kernel.js",
    "js/canvas.js",
    "js/chart.js",
    "js/export.js",
    "js/rows.js",
    "js/replay.js",
    "panel.js",
)
"""One after the other they are the panel's module: no build step, and no request for a second file."""


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def script() -> str:
    """The module, the palette in front of it."""
    return f"const LOOKS = {json.dumps(data())};\n" + "\n".join(map(_text, SCRIPTS))


class Rich(anywidget.AnyWidget):
    """What the page needs before the first tick. Ticks are custom messages: no state grows with them."""

    _esm = script()
    _css = _text("js/uPlot.min.css") + css() + _text("panel.css")
    key = traitlets.Unicode().tag(sync=True)
    """Names this panel on the control channel."""
    control = traitlets.Bool().tag(sync=True)
    """Whether the kernel hears the control channel."""
    beat = traitlets.Float().tag(sync=True)
    """Seconds between two signs of life of a page that is looked at."""
    interval = traitlets.Float().tag(sync=True)
    """Seconds between two readings."""
    alert = traitlets.Int().tag(sync=True)
    """Percent above which a device is named."""
    label = traitlets.Unicode().tag(sync=True)
    """``PRACTICE``, ``REPLAY`` or empty."""
    driver = traitlets.Unicode().tag(sync=True)
    """The driver's release."""
    cards = traitlets.List().tag(sync=True)
    """What changes rarely of each device (see wire.cards)."""
    who = traitlets.List().tag(sync=True)
    """Of each card its processes (see people.py)."""
    trouble = traitlets.Unicode().tag(sync=True)
    """Why there are no readings: the driver's sentence, or that no engine answers. Empty while there are."""
    base = traitlets.Float().tag(sync=True)
    """Seconds since the epoch from which times are counted."""
    hosts = traitlets.List().tag(sync=True)
    """Of a cluster: each host with its engines; a card's ``host`` is its place here. Empty for one machine."""
    frames = traitlets.List().tag(sync=True)
    """The values of each reading of a recording (see wire.values); empty where the readings come live."""
    times = traitlets.List().tag(sync=True)
    """Seconds from a recording's first reading to each of `frames`."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": "GPU memory panel"}

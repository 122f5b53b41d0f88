"""The rich panel: one anywidget, JavaScript and CSS from this package, no build step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

__all__ = ["Rich"]

_HERE = Path(__file__).parent


class Rich(anywidget.AnyWidget):
    """What the page needs before the first tick. Ticks are custom messages: no state grows with them."""

    _esm = (_HERE / "panel.js").read_text(encoding="utf-8")
    _css = (_HERE / "panel.css").read_text(encoding="utf-8")
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
    hosts = traitlets.List().tag(sync=True)
    """Of a cluster: each host with its engines; a card's ``host`` is its place here. Empty for one machine."""
    frames = traitlets.List().tag(sync=True)
    """The values of each reading of a recording (see wire.values); empty where the readings come live."""
    times = traitlets.List().tag(sync=True)
    """Seconds from a recording's first reading to each of `frames`."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": "GPU memory panel"}

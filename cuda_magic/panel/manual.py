"""A panel with a button, where what a thread sends is not shown: Colab (googlecolab/colabtools#3373)."""

from __future__ import annotations

from typing import Any

import ipywidgets

from ..devices.command import once
from ..devices.table import MemoryTable
from ..render import html
from ..render.blocks import Text

__all__ = ["show"]

HINT = "This front end does not show background updates: press Refresh, or run %gpu_mem --once in a cell."


def show(table: MemoryTable, alert: int) -> Any:
    """The reading, a Refresh button and a hint; no thread."""
    view = ipywidgets.HTML(table._repr_html_() + html.draw([Text(HINT)]))
    button = ipywidgets.Button(description="Refresh", tooltip="Read all devices again")

    def refresh(_: Any) -> None:
        view.value = once(alert)._repr_html_() + html.draw([Text(HINT)])

    button.on_click(refresh)
    return ipywidgets.VBox([button, view])

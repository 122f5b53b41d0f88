"""The live panel. ipywidgets is imported when a panel is first shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..devices.table import MemoryTable

__all__ = ["show", "stop"]


def show(shell: Any, table: MemoryTable, *, interval: float, alert: int) -> Any:
    """Show a live panel; gives the table itself where nothing can be live (terminal, no driver, no ipywidgets).

    Parameters
    ----------
    shell
        IPython's shell; only one with a kernel has a front end for widgets.
    table
        The first reading.
    interval
        Seconds between two readings.
    alert
        Percent above which a device is named.
    """
    if getattr(shell, "kernel", None) is None or not table.reading.status.ok:
        return table
    try:
        from .live import Panel
    except ImportError:
        return table
    return Panel.open(shell, table, interval, alert)


def stop() -> None:
    """Stop the panel, if there is one."""
    from .live import stop as stop_panel

    stop_panel()

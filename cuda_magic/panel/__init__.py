"""The live panel. ipywidgets is imported when a panel is first shown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..devices.replay import Replay

__all__ = ["close", "is_open", "over_time", "replay", "show", "stop"]


def show(magics: Any, *, interval: float, alert: int) -> Any:
    """Show a live panel; gives the table itself where nothing can be live.

    Parameters
    ----------
    magics
        The shell's magics; only a shell with a kernel has a front end for widgets.
    interval
        Seconds between two readings.
    alert
        Percent above which a device is named.

    Returns
    -------
    MemoryTable or None
        None where the panel is shown. The table in a terminal, without a driver or a card (there is nothing to
        follow then), and without ipywidgets.
    """
    from ..devices.command import once

    table = once(alert)
    shell = magics.shell
    if getattr(shell, "kernel", None) is None or not table.reading.status.ok or not table.reading.devices:
        close()
        return table
    try:
        from . import live
    except ImportError:
        return table
    if "google.colab" in sys.modules:
        from .manual import show as show_manual

        return show_manual(table, alert)
    live.Panel.open(shell, table, interval, alert)
    return None


def replay(magics: Any, recording: Replay, alert: int) -> Replay | None:
    """Show a recording in the panel.

    Returns
    -------
    Replay or None
        None where the panel is shown; the recording itself in a terminal and without ipywidgets.
    """
    if getattr(magics.shell, "kernel", None) is None:
        return recording
    try:
        from .playback import Playback
    except ImportError:
        return recording
    Playback.show(magics.shell, recording, alert)
    return None


def over_time() -> Any:
    """The readings of the panel that is shown, or was last."""
    from .report import HistoryTable

    live = sys.modules.get(f"{__name__}.live")
    return live.last() if live is not None else HistoryTable((), ())


def stop() -> str:
    """Stop the panel; gives the sentence that says so."""
    return "The panel is stopped; its last reading stays." if close() else "No panel is open."


def is_open() -> bool:
    """Whether a panel is shown."""
    live = sys.modules.get(f"{__name__}.live")
    return live is not None and live.current() is not None


def close() -> bool:
    """End the panel, its thread and its widgets, if there is one (on unloading)."""
    live = sys.modules.get(f"{__name__}.live")
    return bool(live is not None and live.stop())

"""``%gpu_mem``: who holds the memory of each GPU, now?"""

from __future__ import annotations

from typing import Any

from ..errors import UserError
from .options import Option, Spec

SPEC = Spec(
    name="gpu_mem",
    summary="Show who holds the memory of each GPU: a live panel, or one reading.",
    options=(
        Option("--once", "one reading, as a table that a saved notebook keeps"),
        Option("--df", "one reading as a pandas DataFrame, one row a device"),
        Option("--json", "one reading as a dict, sizes in bytes"),
        Option("--interval", "seconds between two readings of the panel (at least 0.25)", "S", {"type": float}),
        Option("--alert", "percent of a device's memory above which it is said", "PERCENT", {"type": int}),
        Option("--stop", "stop the panel"),
    ),
    examples=(
        ("%gpu_mem", "live panel (a table where there is no widget front end)"),
        ("%gpu_mem --once", "one reading"),
        ("%gpu_mem --df", "one reading as a DataFrame"),
        ("%gpu_mem --json", "one reading as a dict"),
        ("%gpu_mem --interval 2 --alert 90", "a panel that reads every two seconds and warns above 90 %"),
        ("%gpu_mem --stop", "stop the panel"),
    ),
)
FLOOR = 0.25
"""Shortest interval in seconds."""


def run(magics: Any, line: str, cell: str | None) -> Any:
    """The result of one ``%gpu_mem`` line."""
    if cell is not None:
        raise UserError("%%gpu_mem takes no cell; write %gpu_mem (one percent sign) on a line of its own.")
    options = SPEC.parse(line)
    settings = magics.settings
    alert = settings.alert if options.alert is None else options.alert
    interval = settings.interval if options.interval is None else options.interval
    if not 1 <= alert <= 100:
        raise UserError(f"gpu_mem: --alert takes a percentage from 1 to 100, not {alert}.")
    if interval < FLOOR:
        raise UserError(f"gpu_mem: --interval takes seconds from {FLOOR} on, not {interval:g}.")
    if options.stop:
        from .. import panel

        panel.stop()
        return None
    from ..devices.command import once

    table = once(alert)
    if options.df:
        return table.to_dataframe()
    if options.json:
        return table.to_dict()
    if options.once:
        return table
    from .. import panel

    return panel.show(magics.shell, table, interval=interval, alert=alert)


def close() -> None:
    """Stop the panel and its sampler (on unloading)."""
    import sys

    panel = sys.modules.get("cuda_magic.panel.live")
    if panel is not None:
        panel.stop()

"""Running a cell as the plain cell would run, statement by statement. With magics/, the place that knows IPython."""

from __future__ import annotations

from .run import run, run_plain

__all__ = ["run", "run_plain"]

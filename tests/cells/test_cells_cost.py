"""A guarded cell that succeeds costs no more than ``%%time`` on the same cell, and does nothing beside it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "guard_cost.py"
spec = importlib.util.spec_from_file_location("guard_cost", PATH)
guard_cost = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guard_cost)


@pytest.mark.parametrize("name", guard_cost.BODIES)
def test_no_dearer_than_time(shell, name):
    """Medians of interleaved runs: at most ``%%time``, with a tenth for noise; no collection and no import."""
    shell.run_line_magic("load_ext", "guarded_by_tests")
    try:
        seen = guard_cost.measure(shell, guard_cost.BODIES[name], rounds=100)
    finally:
        shell.run_line_magic("unload_ext", "guarded_by_tests")
    assert seen.guard <= seen.time * 1.1
    assert (seen.collections, seen.imports) == (0, [])

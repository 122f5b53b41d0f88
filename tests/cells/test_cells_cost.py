"""A guarded cell that succeeds costs what ``%%time`` does, and little for each statement; nothing else is done."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "guard_cost.py"
spec = importlib.util.spec_from_file_location("guard_cost", PATH)
guard_cost = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guard_cost)


@pytest.mark.parametrize("name", guard_cost.BODIES)
def test_about_as_dear_as_time(shell, name):
    """The users' guard, interleaved medians: ``%%time``, a tenth for noise, 50 microseconds a statement; no more."""
    shell.run_line_magic("load_ext", "cuda_magic")
    try:
        seen = guard_cost.measure(shell, guard_cost.BODIES[name], rounds=100)
    finally:
        shell.run_line_magic("unload_ext", "cuda_magic")
    statements = len(ast.parse(guard_cost.BODIES[name]).body)
    assert seen.guard <= seen.time * 1.1 + 50 * statements
    assert (seen.collections, seen.imports) == (0, [])

"""A guarded cell that succeeds collects nothing and imports nothing; benchmarks/guard_cost.py has its time."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "guard_cost.py"
spec = importlib.util.spec_from_file_location("guard_cost", PATH)
guard_cost = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guard_cost)


@pytest.mark.parametrize("name", guard_cost.BODIES)
def test_success_collects_and_imports_nothing(shell, name):
    """The users' guard on a cell that succeeds; how long it takes is shown as a ratio by the benchmark."""
    shell.run_line_magic("load_ext", "cuda_magic")
    try:
        seen = guard_cost.measure(shell, guard_cost.BODIES[name], rounds=20)
    finally:
        shell.run_line_magic("unload_ext", "cuda_magic")
    assert (seen.collections, seen.imports) == (0, [])

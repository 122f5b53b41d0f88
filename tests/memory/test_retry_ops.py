"""The retry at the call over torch's own list of operations, a part of it; all of it: benchmarks/retry_ops.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[2]


def test_operations_that_fail_once_give_the_numbers_of_one_run(tmp_path):
    """Every 25th of the list, forward and backward: results, gradients, inputs and random states bit by bit."""
    file = tmp_path / "ops.json"
    line = [sys.executable, "benchmarks/retry_ops.py", str(file), "--every", "25"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=170, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(file.read_text())["cpu"]
    assert found["raised"] == {}
    assert found["differs"] == []
    assert found["samples"] > 30
    assert found["operations that failed once"] > 40

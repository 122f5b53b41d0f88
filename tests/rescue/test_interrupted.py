"""The program behind the interrupts on a card works: run on the practice GPU, a few moments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str) -> dict:
    line = [sys.executable, "tests/gpu/interrupted.py", *words, "practice"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_interrupts_while_compacting_lose_nothing():
    """Moments drawn over the whole cell: all bytes there, nothing kept, nobody's error hidden."""
    found = run("compact", "60", "3")
    assert found["moments"] == 60
    assert found["failures"] == []
    assert found["errors of its own"] == 0, found["the first"]
    assert found["ends"].get("KeyboardInterrupt", 0) >= 4


def test_an_error_of_the_repeats_own_does_not_hide_the_memory_error():
    """The statement runs again and then raises LookupError."""
    assert run("compact", "0", "1")["failures"] == []

"""SIGINT at 1,000 random moments of rescued cells on a real card: no byte is lost and everything is put back.

``interrupted.py`` is the program; the rungs run side by side, each in a process with a limit of its own. MOMENTS sets
how many moments a rung gets, SEED where the draw begins.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]
ROOT = Path(__file__).resolve().parents[2]
RUNGS = ("compact", "spill", "activations", "page", "retry")
MOMENTS, SEED = int(os.environ.get("MOMENTS", "250")), int(os.environ.get("SEED", "1"))


def _start(rung: str, count: int, *words: str) -> subprocess.Popen:
    line = [sys.executable, "-W", "ignore", "tests/gpu/interrupted.py", rung, str(count), str(SEED), *words]
    return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def runs():
    """All programs at once: (rung, what) to the process."""
    started = {(rung, "moments"): _start(rung, MOMENTS) for rung in RUNGS}
    started |= {(rung, "own"): _start(rung, 0) for rung in ("compact", "spill")}
    started |= {(rung, "faults"): _start(rung, 0, "faults") for rung in ("compact", "spill", "activations", "page")}
    yield started
    for process in started.values():
        process.kill()
        process.wait()


def _found(process: subprocess.Popen) -> dict:
    out, err = process.communicate(timeout=390)
    assert process.returncode == 0, out[-1500:] + err[-3000:]
    return json.loads(out.strip().split("\n")[-1])


@pytest.mark.parametrize("rung", RUNGS)
def test_an_interrupt_at_any_moment_loses_nothing(runs, rung):
    """Data, the result of what finished, modes, hooks, settings, SIGINT's handler and the bytes allocated."""
    from record import record

    found = _found(runs[rung, "moments"])
    record(f"interrupts_{rung}", found)
    assert found["moments"] == MOMENTS
    assert found["failures"] == []
    assert found["errors of its own"] == 0, found["the first"]
    assert found["ends"].get("KeyboardInterrupt", 0) > MOMENTS // 3


@pytest.mark.parametrize("rung", ["compact", "spill"])
def test_the_users_own_error_shows_after_a_rescue(runs, rung):
    """The statement is rescued and then raises: that error, and nothing stays changed."""
    assert _found(runs[rung, "own"])["failures"] == []


@pytest.mark.parametrize("rung", ["compact", "spill", "activations", "page"])
def test_a_step_that_fails_loses_nothing(runs, rung):
    """A host allocation, a copy, memory on the card, each at its first, second ... call: the user's error or none."""
    from record import record

    found = _found(runs[rung, "faults"])
    record(f"faults_{rung}", found)
    assert sum(found["failed"].values()) >= 3
    assert found["failures"] == []

"""SIGINT at 1,000 random moments of rescued cells on a real card: no byte is lost and everything is put back.

``interrupted.py`` is the program; rungs and slices run side by side, each in a process with a limit of its own. MOMENTS
sets how many moments a slice has, SEED where the draw begins.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[2]
RUNGS = ("compact", "spill", "activations", "retry")
SLICES = 2
MOMENTS, SEED = int(os.environ.get("MOMENTS", "125")), int(os.environ.get("SEED", "1"))


def _start(rung: str, count: int, seed: int, *words: str) -> subprocess.Popen:
    line = [sys.executable, "-W", "ignore", "tests/gpu/interrupted.py", rung, str(count), str(seed), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(line, cwd=ROOT, env=environment, text=True, **pipes)


@pytest.fixture(scope="module")
def runs(request):
    """The programs that the chosen tests need, all at once: (rung, what) to the processes."""
    mine = [item for item in request.session.items if item.nodeid.startswith(request.node.nodeid)]
    wanted = {item.callspec.params["what"] for item in mine}
    started = {}
    for rung, kind in wanted:
        if kind == "moments":
            started[rung, kind] = [_start(rung, MOMENTS, SEED + n) for n in range(SLICES)]
        else:
            started[rung, kind] = [_start(rung, 0, SEED, *(["faults"] if kind == "faults" else []))]
    yield started
    for process in (p for several in started.values() for p in several):
        process.kill()
        process.communicate()


def _found(processes: list[subprocess.Popen]) -> list[dict]:
    found = []
    for process in processes:
        out, err = process.communicate(timeout=230)
        assert process.returncode == 0, out[-1500:] + err[-3000:]
        found.append(json.loads(out.strip().split("\n")[-1]))
    return found


@pytest.mark.parametrize("what", [(rung, "moments") for rung in RUNGS], ids=RUNGS)
def test_an_interrupt_at_any_moment_loses_nothing(runs, what):
    """Data, the result of what finished, modes, hooks, settings, SIGINT's handler and the bytes allocated."""
    from record import record

    found = _found(runs[what])
    ends = sum((Counter(one["ends"]) for one in found), Counter())
    figures = {
        "moments": sum(one["moments"] for one in found),
        "ends": dict(ends),
        "seeds": [one["seed"] for one in found],
        "cell_s": found[0]["cell_s"],
        "seconds": max(one["seconds"] for one in found),
        "errors of its own": sum(one["errors of its own"] for one in found),
        "failures": [failure for one in found for failure in one["failures"]],
    }
    record(f"interrupts_{what[0]}", figures)
    assert figures["moments"] == MOMENTS * SLICES
    assert figures["failures"] == []
    assert figures["errors of its own"] == 0, [one["the first"] for one in found]
    assert ends["KeyboardInterrupt"] > MOMENTS * SLICES // 3


OWN = ("compact", "spill")


@pytest.mark.parametrize("what", [(rung, "own") for rung in OWN], ids=OWN)
def test_the_users_own_error_shows_after_a_rescue(runs, what):
    """The statement is rescued and then raises: that error, and nothing stays changed."""
    assert _found(runs[what])[0]["failures"] == []


STEPS = ("compact", "spill", "activations")


@pytest.mark.parametrize("what", [(rung, "faults") for rung in STEPS], ids=STEPS)
def test_a_step_that_fails_loses_nothing(runs, what):
    """A host allocation, a copy, memory on the card, each at its first, second ... call: the user's error or none."""
    from record import record

    found = _found(runs[what])[0]
    record(f"faults_{what[0]}", found)
    assert sum(found["failed"].values()) >= 3
    assert found["failures"] == []
